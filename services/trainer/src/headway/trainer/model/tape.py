"""What one micro-batch's forward leaves for its backward.

The model computes its backward by hand: each layer's ``forward`` pushes what its ``backward`` pops, in
reverse order. Weight gradients are not part of that chain: a layer hands them to ``later``, and they are
carried out while a collective is under way, at the latest when ``backward`` returns, or, if deferred, as an
action of their own (zero-bubble schedules, arXiv 2401.10241). Either way the same operations run on the
same tensors in the same order, so the bits are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Tape:
    """One micro-batch's saved tensors (a stack) and waiting weight gradients (a queue)."""

    __slots__ = ("_saved", "_waiting", "deferred")

    def __init__(self) -> None:
        self._saved: list[Any] = []
        self._waiting: deque[Callable[[], None]] = deque()
        self.deferred = False
        """True keeps weight gradients waiting until ``finish``."""

    def push(self, saved: Any) -> None:
        """Keep ``saved`` for the backward of the same layer."""
        self._saved.append(saved)

    def pop(self) -> Any:
        """What the forward of this layer pushed."""
        return self._saved.pop()

    def later(self, work: Callable[[], None]) -> None:
        """Queue a weight gradient."""
        self._waiting.append(work)

    def flush(self) -> None:
        """Carry out what waits, unless deferred. Called where a collective is under way."""
        if not self.deferred:
            self.finish()

    def finish(self) -> None:
        """Carry out what waits, in the order queued; each lets go of its tensors when done."""
        while self._waiting:
            self._waiting.popleft()()

    @property
    def is_empty(self) -> bool:
        """True if nothing is saved and nothing waits."""
        return not self._saved and not self._waiting
