"""What the forward of a micro-batch saves for its backward.

The model computes its backward by hand: each layer's ``forward`` pushes what its ``backward`` pops,
in reverse order. Weight gradients are not part of that chain: a layer passes them to ``later``, and
they run during a collective, at the latest when ``backward`` returns, or, if deferred, as a
separate action (zero-bubble schedules, arXiv 2401.10241). Either way the same operations run on the
same tensors in the same order, so the bits are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Tape:
    """One micro-batch's saved tensors (a stack) and pending weight gradients (a queue)."""

    __slots__ = ("_saved", "_waiting", "deferred")

    def __init__(self) -> None:
        self._saved: list[Any] = []
        self._waiting: deque[Callable[[], None]] = deque()
        self.deferred = False
        """True defers weight gradients until ``finish``."""

    def push(self, saved: Any) -> None:
        """Keep ``saved`` for the backward of the same layer."""
        self._saved.append(saved)

    def pop(self) -> Any:
        """Take back what the forward of this layer pushed."""
        return self._saved.pop()

    def later(self, work: Callable[[], None]) -> None:
        """Queue a weight gradient."""
        self._waiting.append(work)

    def flush(self) -> None:
        """Run pending weight gradients, unless deferred. Called during a collective."""
        if not self.deferred:
            self.finish()

    def finish(self) -> None:
        """Run pending weight gradients in order; each releases its tensors when done."""
        while self._waiting:
            self._waiting.popleft()()

    @property
    def is_empty(self) -> bool:
        """True if nothing is saved or pending."""
        return not self._saved and not self._waiting
