"""Carries out what the ranks of ``nccl_model`` have issued, message by message, up to an abort.

A call that loads a kernel, locks memory, or gets or frees memory of the device keeps its host until
all that the rank has issued is done. It holds the lock of the context meanwhile, so that an abort
reaches the rank only afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from services.trainer.tests.pipeline.nccl_model import Message, Trace


class Devices:
    """All ranks' devices and hosts from the begin of a step on."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces
        self._queues = [
            {name: deque(queue) for name, queue in trace.issued.items()} for trace in traces
        ]
        self._done: set[Message] = set()
        self._waits = [0] * len(traces)  # that a rank's compute stream has behind it
        self._gates = [0] * len(traces)  # that a rank's host has behind it
        self._gone: set[int] = set()

    @property
    def num_left(self) -> int:
        """Messages that are not done."""
        return sum(len(queue) for queues in self._queues for queue in queues.values())

    def advance(self) -> bool:
        """Do the next message of which both ends can start; whether there was one."""
        for rank, queues in enumerate(self._queues):
            for name, queue in queues.items():
                if not queue or not queue[0].is_send or not self._starts(rank, queue[0]):
                    continue
                send, peer = queue[0], queue[0].peer
                other = self._queues[peer].get(name)
                if not other or other[0].is_send or other[0].peer != rank:
                    continue
                if self._starts(peer, other[0]):
                    assert send.tag == other[0].tag, "NCCL knows no tags: order must match messages"
                    self._done |= {queue.popleft(), other.popleft()}
                    return True
        return False

    def stranded(self) -> list[int]:
        """Return the ranks that never end if all are aborted now.

        Those that an abort reaches leave first, which is the worst for the others.
        """
        if not any(map(self._is_held, range(len(self._traces)))):
            return []
        aborted = Devices(self._traces)
        aborted._queues = [{k: deque(q) for k, q in queues.items()} for queues in self._queues]
        aborted._done = set(self._done)
        ranks = range(len(self._traces))
        while True:
            aborted._gone |= {rank for rank in ranks if not aborted._is_held(rank)}
            if not aborted.advance():
                return [rank for rank in ranks if rank not in aborted._gone]

    def _starts(self, rank: int, message: Message) -> bool:
        """Whether the rank's host has issued the message and its compute stream has come to it."""
        trace = self._traces[rank]
        while self._waits[rank] < message.after and trace.waits[self._waits[rank]] in self._done:
            self._waits[rank] += 1
        self._is_held(rank)
        reached = self._waits[rank] >= message.after and self._gates[rank] >= message.behind
        return reached and rank not in self._gone

    def _is_held(self, rank: int) -> bool:
        """Whether the rank's host is in a call that waits for an idle device."""
        gates = self._traces[rank].gates
        while self._gates[rank] < len(gates) and self._done.issuperset(gates[self._gates[rank]]):
            self._gates[rank] += 1
        return self._gates[rank] < len(gates)


def carry_out(traces: Sequence[Trace]) -> int:
    """Carry out what can be; the number of messages, by both ends, that never start."""
    devices = Devices(traces)
    while devices.advance():
        pass
    return devices.num_left


def stranded_by_aborts(traces: Sequence[Trace]) -> set[int]:
    """The ranks that never end, over an abort before the first message and after each one."""
    devices = Devices(traces)
    found = set(devices.stranded())
    while devices.advance():
        found |= set(devices.stranded())
    return found
