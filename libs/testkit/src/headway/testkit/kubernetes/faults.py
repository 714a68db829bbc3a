"""Ways in which the fake API server fails for a while."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Fault:
    """What happens to the next requests that match."""

    code: int
    """The status that is answered; 0: the connection is closed without an answer."""
    times: int = 1 << 30
    method: str = ""
    """Empty: each."""
    part: str = ""
    """Part of the path of each request that it strikes."""
    retry_after: str = ""
    """The header of this name."""
    is_late: bool = False
    """The request is carried out, and only its answer is lost."""
    num_seen: int = 0
    """How many requests it has struck."""

    def strikes(self, method: str, path: str) -> bool:
        """Whether it is this request's turn; counts it."""
        is_mine = self.method in ("", method) and self.part in path and self.num_seen < self.times
        self.num_seen += is_mine
        return is_mine


class Faults:
    """Those that are present."""

    def __init__(self) -> None:
        self._present: list[Fault] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, fault: Fault) -> Iterator[Fault]:
        """The fault is present in the body, and over after it."""
        self._present.append(fault)
        try:
            yield fault
        finally:
            self._present.remove(fault)

    def of(self, method: str, path: str) -> Fault | None:
        """The one that strikes this request."""
        with self._lock:
            return next((one for one in self._present if one.strikes(method, path)), None)
