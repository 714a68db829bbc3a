"""For tests of the wire protocol: a fuzz driver, stored message examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.testkit.wire.fuzz import FuzzReport, fuzz_endpoint
    from headway.testkit.wire.messages import all_messages, example_of, strategy_of
    from headway.testkit.wire.server_thread import serving

__all__ = ["FuzzReport", "all_messages", "example_of", "fuzz_endpoint", "serving", "strategy_of"]

__getattr__, __dir__ = lazy(
    __name__,
    fuzz="FuzzReport fuzz_endpoint",
    messages="all_messages example_of strategy_of",
    server_thread="serving",
)
