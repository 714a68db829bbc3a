"""How far a node's monotonic clock is from the run's clock, found by the node's beats as NTP does.

The driver answers a beat with the run's clock, which it read between the beat's sending and the
answer's arrival. So the offset is known to half of the time in between, whatever part of it each
direction took (RFC 5905, section 8).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT = 64
"""Samples that the best is chosen of; half a minute of beats."""
DRIFT = 100e-6
"""How far two clocks may diverge per second: crystals of two machines, 50 ppm each."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The run's clock is the node's clock plus ``offset_ns``, to ``uncertainty_ns`` either way."""

    offset_ns: int
    uncertainty_ns: int


class ClockOffset:
    """``add`` each answer of the driver; ``estimate`` is the best of the newest ``KEPT``."""

    def __init__(self) -> None:
        self._num_added = 0
        self._best: deque[tuple[int, int, Estimate]] = deque()
        """(number, time, sample) of those that are or will be the best: each is more certain than
        all that came after it. All grow less certain at one pace, so their order stays."""

    def add(self, sent_ns: int, run_ns: int, received_ns: int) -> None:
        """Add an answer of the driver to one of the node's beats.

        ``sent_ns`` and ``received_ns`` are when the beat was sent and the answer came, by the
        node's clock; ``run_ns`` is the run's clock in between.
        """
        if received_ns < sent_ns:
            return  # it answers no beat of this clock
        offset_ns = run_ns - (sent_ns + received_ns) // 2
        sample = Estimate(offset_ns, (received_ns - sent_ns + 1) // 2)
        while self._best and _aged(*self._best[-1][1:], received_ns) >= sample.uncertainty_ns:
            self._best.pop()
        self._best.append((self._num_added, received_ns, sample))
        self._num_added += 1
        if self._best[0][0] < self._num_added - KEPT:
            self._best.popleft()

    def estimate(self, now_ns: int) -> Estimate | None:
        """The best that is known at ``now_ns`` of the node's clock; None before the first answer.

        A sample grows less certain with its age, since the clocks may drift.
        """
        if not self._best:
            return None
        _, at_ns, sample = self._best[0]
        return Estimate(sample.offset_ns, _aged(at_ns, sample, now_ns))

    def begin_again(self) -> None:
        """Forget the samples: another driver answers, whose clock may differ."""
        self._best.clear()


def _aged(at_ns: int, sample: Estimate, now_ns: int) -> int:
    return sample.uncertainty_ns + int((now_ns - at_ns) * DRIFT)
