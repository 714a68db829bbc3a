"""For tests of whoever talks over the wire: a fuzz driver, stored message examples, memory readings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.testkit.wire.fuzz import FuzzReport, fuzz_endpoint
    from headway.testkit.wire.memory import resident_bytes
    from headway.testkit.wire.messages import all_messages, example_of, strategy_of
    from headway.testkit.wire.server_thread import serving

_HOME = {
    "FuzzReport": "fuzz",
    "all_messages": "messages",
    "example_of": "messages",
    "fuzz_endpoint": "fuzz",
    "strategy_of": "messages",
    "resident_bytes": "memory",
    "serving": "server_thread",
}

__all__ = [
    "FuzzReport",
    "all_messages",
    "example_of",
    "fuzz_endpoint",
    "resident_bytes",
    "serving",
    "strategy_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
