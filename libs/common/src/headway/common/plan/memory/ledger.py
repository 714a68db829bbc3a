"""Bytes that are in use while a list of operations is replayed without tensors.

A ``Block`` of memory is in use for as long as Python refers to it, as a tensor is. So the replay
in ``layers`` keeps the names, stacks and queues of the model's code, and has its lifetimes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias


class Ledger:
    """Bytes in use now, and the most so far."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def new(self, nbytes: int) -> Block:
        """Allocate."""
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        return Block(self, nbytes)

    def restart_peak(self) -> None:
        """Count the peak from now on."""
        self.peak = self.now


class Block:
    """An allocation; freed with its last reference."""

    __slots__ = ("_ledger", "nbytes")

    def __init__(self, ledger: Ledger, nbytes: int) -> None:
        self._ledger, self.nbytes = ledger, nbytes

    def __del__(self) -> None:
        self._ledger.now -= self.nbytes


Held: TypeAlias = "Block | tuple[Held, ...] | Callable[[], Block]"
"""What is kept for a backward: memory, several of it, or a function that makes it again."""


class Tape:
    """What one micro-batch keeps: a stack for the backward, and weight gradients that wait."""

    def __init__(self, *, deferred: bool = False) -> None:
        self.saved: list[Held] = []
        self.waiting: deque[Callable[[], None]] = deque()
        self.deferred = deferred

    def flush(self) -> None:
        """Add the weight gradients that wait, unless they are deferred."""
        if not self.deferred:
            self.finish()

    def finish(self) -> None:
        """Add the weight gradients that wait; each frees its inputs."""
        while self.waiting:
            self.waiting.popleft()()


def made(held: Held) -> Held:
    """The memory behind ``held``, allocated if it is to be made again."""
    return held() if callable(held) else held
