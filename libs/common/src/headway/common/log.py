"""Structured logs: JSON lines in files, coloured lines on a terminal; every line says who wrote it."""

from __future__ import annotations

import os
import sys
from typing import Any

import structlog


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
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
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
    structlog.contextvars.clear_contextvars()
    who = {
        "service": service,
        "run_id": run_id or os.environ.get("HEADWAY_RUN_ID", ""),
        "node": node,
        "rank": rank,
    }
    structlog.contextvars.bind_contextvars(**{k: v for k, v in who.items() if v not in ("", None)})


def get_logger(name: str) -> Any:
    """A logger whose lines carry ``component=name``."""
    return structlog.get_logger(component=name)
