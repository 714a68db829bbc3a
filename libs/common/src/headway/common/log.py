"""Structured logs: JSON lines in files, coloured lines on a terminal; every line says who wrote it.

Logging never raises ``OSError``: on a full disk lines are lost and counted (``log_stream``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from headway.common.log_stream import tolerate_stderr, tolerate_stdout, writer_of

# Where rich is installed, structlog imports it for tracebacks on a terminal: a third of what it
# takes to import a service. None stands for a module that cannot be imported.
with contextlib.ExitStack() as _stack:
    if "rich" not in sys.modules:
        sys.modules["rich"] = cast("Any", None)
        _stack.callback(sys.modules.pop, "rich")
    import structlog

_who: dict[str, Any] = {}
"""Fields on every line of this process. Not a context variable, which is local to its thread."""


def setup(
    service: str,
    *,
    run_id: str = "",
    node: int | None = None,
    rank: int | None = None,
    json: bool | None = None,
    in_background: bool = False,
) -> None:
    """Configure this process's logs, on stderr.

    Args:
        json: None means JSON unless stderr is a terminal.
        in_background: a thread writes the lines, so that a file system that hangs cannot stop this
            process; for those that others depend on.
    """
    tolerate_stderr(_lost_line, in_background=in_background)
    tolerate_stdout(_lost_line, in_background=in_background)
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
    """Add fields to every later line, such as the rank that a worker has been assigned."""
    _who.update({key: value for key, value in who.items() if value not in ("", None)})


def trouble() -> str:
    """Why the log cannot be written at the moment; empty while it can."""
    writer = writer_of(sys.stderr)
    if writer is None or not writer.num_lost:
        return ""
    return f"{writer.num_lost} log lines lost: {writer.error}"


def complain(log: Callable[..., Any], event: str, **fields: Any) -> None:
    """Log an error that a loop must survive; never raises.

    ``log`` is a method such as ``logger.exception``.

    If a field or traceback cannot be rendered, its line is lost and the caller continues.
    """
    with contextlib.suppress(Exception):
        log(event, **fields)


def get_logger(name: str) -> Any:
    """A logger whose lines carry ``component=name``."""
    return structlog.get_logger(component=name)


def _add_who(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    del logger, method
    return {**_who, **event}


def _lost_line(num_lost: int, reason: str) -> str:
    """The line that reports lost lines, in the format of the log."""
    event: Any = {
        "component": "log",
        "event": "log lines were lost",
        "num_lost": num_lost,
        "reason": reason,
    }
    for processor in structlog.get_config()["processors"]:
        event = processor(None, "warning", event)
    return f"{event}\n"
