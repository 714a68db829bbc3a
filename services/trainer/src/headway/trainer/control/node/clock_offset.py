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
        self._samples: deque[tuple[int, Estimate]] = deque(maxlen=KEPT)

    def add(self, sent_ns: int, run_ns: int, received_ns: int) -> None:
        """An answer: when its beat was sent and when it came, by the node's clock, and the run's
        clock in between."""
        if received_ns < sent_ns:
            return  # it answers no beat of this clock
        offset_ns = run_ns - (sent_ns + received_ns) // 2
        half_ns = (received_ns - sent_ns + 1) // 2
        self._samples.append((received_ns, Estimate(offset_ns, half_ns)))

    def estimate(self, now_ns: int) -> Estimate | None:
        """The best that is known at ``now_ns`` of the node's clock; None before the first answer.

        A sample grows less certain with its age, since the clocks may drift.
        """
        aged = (
            Estimate(one.offset_ns, one.uncertainty_ns + int((now_ns - at_ns) * DRIFT))
            for at_ns, one in self._samples
        )
        return min(aged, key=lambda one: one.uncertainty_ns, default=None)

    def begin_again(self) -> None:
        """Forget the samples: another driver answers, whose clock may differ."""
        self._samples.clear()
