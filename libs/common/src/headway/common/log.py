"""Structured logs: JSON lines in files, coloured lines on a terminal; every line says who wrote it."""

from __future__ import annotations

import os
import sys
from typing import Any

import structlog

_who: dict[str, Any] = {}
"""On every line of this process. No context variable: those of one thread are unknown to the others."""


def setup(
    service: str,
    *,
    run_id: str = "",
    node: int | None = None,
    rank: int | None = None,
    json: bool | None = None,
) -> None:
    """Configure this process's logs, on stderr. ``json`` None means: JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    processors: list[Any] = [
        _add_who,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        cache_logger_on_first_use=False,
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    _who.clear()
    identify(
        service=service, run_id=run_id or os.environ.get("HEADWAY_RUN_ID", ""), node=node, rank=rank
    )


def identify(**who: Any) -> None:
    """Say on every line from now on who this process is; what is learned later, as a worker its rank."""
    _who.update({key: value for key, value in who.items() if value not in ("", None)})


def get_logger(name: str) -> Any:
    """A logger whose lines carry ``component=name``."""
    return structlog.get_logger(component=name)


def _add_who(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    del logger, method
    return {**_who, **event}
