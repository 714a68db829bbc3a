"""A process group of threads: the same calls as over gloo or NCCL, without processes.

Sums are taken in rank order, so results are exact and repeatable; calls are recorded, so
tests can count them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from headway.testkit.trainer.threads import run_threads
from headway.trainer.comm.interface import Done, Op, Ticket

T = TypeVar("T")


class _Meeting:
    """Exchanges tensors between the members of a group.

    Each contributes one, all see all of them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60.0)
        self._brought: list[torch.Tensor | None] = [None] * size
        self._calls: list[str] = [""] * size

    def exchange(self, rank: int, call: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return everyone's tensor as it was at the call.

        Raises RuntimeError if members made different calls.
        """
        self._brought[rank], self._calls[rank] = tensor.clone(), call
        self._barrier.wait()
        everyone = [tensor for tensor in self._brought if tensor is not None]
        calls = set(self._calls)
        self._barrier.wait()
        if len(calls) > 1:
            raise RuntimeError(f"members of one group made different calls: {sorted(calls)}")
        return everyone

    def leave(self) -> None:
        """Free the others: a member failed."""
        self._barrier.abort()


class ThreadComm:
    """One member of a group of threads.

    ``calls`` lists (name, elements) of every call, in order.
    """

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self.calls: list[tuple[str, int]] = []

    @property
    def rank(self) -> int:
        """This thread's position."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of threads."""
        return self._meeting.size

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """See ``Comm``."""
        everyone = torch.stack(self._exchange(f"all_reduce {op}", tensor))
        tensor.copy_(everyone.sum(0) if op == "sum" else everyone.amax(0))
        return Done()

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """See ``Comm``."""
        assert out.ndim == shard.ndim == 1, "all_gather takes flat tensors"
        out.copy_(torch.cat(self._exchange("all_gather", shard)))
        return Done()

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """See ``Comm``; spoils ``flat`` as a real one may."""
        assert out.ndim == flat.ndim == 1, "reduce_scatter takes flat tensors"
        everyone = self._exchange("reduce_scatter", flat)
        flat.fill_(torch.nan)
        out.copy_(torch.stack(everyone).sum(0).chunk(self.size)[self._rank])
        return Done()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Not part of this double."""
        raise NotImplementedError(f"send of {tuple(tensor.shape)} to {peer} (tag {tag})")

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Not part of this double."""
        raise NotImplementedError(f"receive of {tuple(tensor.shape)} from {peer} (tag {tag})")

    def _exchange(self, name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.calls.append((name.split()[0], tensor.numel()))
        return self._meeting.exchange(self._rank, f"{name} of {tensor.numel()}", tensor)


def run_ranks(size: int, member: Callable[[ThreadComm], T]) -> list[T]:
    """Run ``member`` once per rank; see ``run_threads``."""
    meeting = _Meeting(size)
    return run_threads(size, lambda rank: member(ThreadComm(meeting, rank)), meeting.leave)
