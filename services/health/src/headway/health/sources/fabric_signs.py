"""What two readings of a connection show: that its network loses, delays or carries too little.

Each connection is compared with itself since it was opened, never with a fixed rate: what is usual
differs by a factor of thousands between networks. All limits were chosen on gloo between two
namespaces of two cores that eight other processes wanted. There, a round trip of 0.1 ms was read
as 5.9 ms with a mean deviation of 11.8 ms, and all that was sent again was needless by the peer's
own words (RFC 2883).
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from headway.health.sources.tcp_info import TcpInfo

Rule = Literal["fabric_stop", "fabric_loss", "fabric_delay", "fabric_slow"]
RULES: Final[tuple[Rule, ...]] = ("fabric_stop", "fabric_loss", "fabric_delay", "fabric_slow")
"""The cause comes before what follows from it: what is lost or late also carries less."""

READINGS: Final = 2
"""Consecutive ones that must agree, where the kernel has not counted by itself."""
NEEDED: Final[dict[Rule, int]] = {
    "fabric_stop": 1, "fabric_loss": 1, "fabric_delay": READINGS, "fabric_slow": READINGS + 1
}  # fmt: skip
"""One more for a low rate: a delay lowers it too, and the kernel's mean takes some 16 round trips
to become steady."""
MIN_USUAL: Final = 3
"""Readings with traffic before anything is compared with them."""
KEEP_USUAL: Final = 30
KEEP_S: Final = 10.0
"""What was seen counts for this long while no traffic shows more."""
STOP_REPEATS: Final = 2
"""Times that a segment was sent again without any answer: 0.6 s at least (RFC 6298)."""
LOSS_SEGMENTS: Final = 8
"""Fewer lost segments prove nothing about a share."""
LOSS_SHARE: Final = 0.01
"""At 1 % a TCP connection carries a small part of its bandwidth (Mathis et al., 1997)."""
LOSS_WINDOW: Final = 5
"""Readings over which segments are counted."""
BULK_BYTES: Final = 1 << 16
"""With as much in a reading, its rate counts, and peers acknowledge at once."""
DELAY_FACTOR: Final = 8.0
DELAY_FLOOR_S: Final = 0.01
"""A round trip must grow by this and by ``DELAY_FACTOR``."""
LONE_FLOOR_S: Final = 0.06
"""Without bulk: a peer may wait 40 ms before it acknowledges a small segment (Linux's
TCP_DELACK_MIN)."""
STEADY: Final = 0.35
"""Largest mean deviation of a longer round trip, as a share of it. A busy processor and a queue
that fills and empties make round trips vary by about as much as they last."""
SLOW_FACTOR: Final = 5.0
"""Busy cores made the rate vary by 3."""
SLOW_BUSY: Final = 0.5
"""Share of the time in which something had to wait for the network."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What is wrong with the way to a peer, as part of a sentence."""

    rule: Rule
    what: str


@dataclass(slots=True)
class _Run:
    """Consecutive readings that show one thing."""

    count: int = 0
    last_s: float = 0.0

    def note(self, is_on: bool | None, now_s: float) -> int:
        """How many there are; None is a reading that shows nothing about it."""
        if is_on is None:
            if now_s - self.last_s > KEEP_S:
                self.count = 0
        else:
            self.count, self.last_s = (self.count + 1 if is_on else 0), now_s
        return self.count


@dataclass(slots=True)
class Link:
    """One connection, from its first reading on."""

    newest: TcpInfo
    read_s: float
    _steady_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP_USUAL))
    """Round trips less their deviation."""
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP_USUAL))
    """Bytes that were acknowledged per second in which any were waiting."""
    _lost: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=LOSS_WINDOW))
    """Segments lost and sent."""
    _runs: dict[Rule, _Run] = field(default_factory=lambda: {rule: _Run() for rule in RULES})

    def judge(self, info: TcpInfo, now_s: float) -> Sign | None:
        """What the time since the last reading shows, the likeliest cause of it only."""
        before, elapsed_s = self.newest, max(now_s - self.read_s, 1e-3)
        self.newest, self.read_s = info, now_s
        acked_bytes = info.acked_bytes - before.acked_bytes
        steady_s = max(0.0, info.rtt_s - 2 * info.rtt_spread_s)
        busy_s = (info.busy_s - before.busy_s) - (info.held_s - before.held_s)
        rate = acked_bytes / max(busy_s, 1e-3)
        is_late = self._is_late(info, steady_s, acked_bytes)
        is_slow = self._is_slow(rate, acked_bytes, busy_s / elapsed_s)
        if is_late and is_slow:  # a queue before a slow link delays; what is late is slow at first
            is_queue = self._runs["fabric_slow"].count >= NEEDED["fabric_slow"]
            is_late, is_slow = (None, True) if is_queue else (True, False)
        seen: dict[Rule, bool | None] = {
            "fabric_stop": _is_stopped(info, before),
            "fabric_loss": self._is_lossy(info, before),
            "fabric_delay": is_late,
            "fabric_slow": is_slow,
        }
        shown = [rule for rule in RULES if self._runs[rule].note(seen[rule], now_s) >= NEEDED[rule]]
        if not any(seen.values()):
            self._learn(steady_s, rate, acked_bytes)
        return self._sign(shown[0], rate, elapsed_s) if shown else None

    def _is_lossy(self, info: TcpInfo, before: TcpInfo) -> bool | None:
        num_lost = info.num_resent - info.num_needless - before.num_resent + before.num_needless
        num_sent = info.num_data_segments - before.num_data_segments
        if not num_sent:
            return None
        self._lost.append((num_lost, num_sent))
        lost, sent = self._losses()
        num_times = sum(one > 0 for one, _ in self._lost)
        return num_times >= READINGS and lost >= max(LOSS_SEGMENTS, LOSS_SHARE * sent)

    def _losses(self) -> tuple[int, int]:
        return sum(lost for lost, _ in self._lost), sum(sent for _, sent in self._lost)

    def _is_late(self, info: TcpInfo, steady_s: float, acked_bytes: int) -> bool | None:
        if not acked_bytes or len(self._steady_s) < MIN_USUAL:
            return None
        usual_s = max(self._steady_s)
        floor_s = DELAY_FLOOR_S if acked_bytes >= BULK_BYTES else LONE_FLOOR_S
        is_steady = info.rtt_spread_s <= STEADY * info.rtt_s
        return is_steady and steady_s > max(DELAY_FACTOR * usual_s, usual_s + floor_s)

    def _is_slow(self, rate: float, acked_bytes: int, busy: float) -> bool | None:
        if acked_bytes < BULK_BYTES or len(self._rates) < MIN_USUAL:
            return None
        return busy >= SLOW_BUSY and rate * SLOW_FACTOR < statistics.median(self._rates)

    def _learn(self, steady_s: float, rate: float, acked_bytes: int) -> None:
        if acked_bytes:
            self._steady_s.append(steady_s)
        if acked_bytes >= BULK_BYTES:
            self._rates.append(rate)

    def _sign(self, rule: Rule, rate: float, elapsed_s: float) -> Sign:
        info = self.newest
        if rule == "fabric_stop":
            what = f"sent again {info.num_repeats} times, and nothing came for {elapsed_s:.1f} s"
        elif rule == "fabric_loss":
            lost, sent = self._losses()
            what = f"{lost} of {sent} segments were lost ({lost / max(sent, 1):.1%})"
        elif rule == "fabric_delay":
            usual_s = max(self._steady_s)
            what = f"a round trip takes {info.rtt_s * 1e3:.1f} ms, before {usual_s * 1e3:.1f} ms"
        else:
            usual = statistics.median(self._rates)
            what = f"{rate / 1e6:.2f} MB/s get through, before {usual / 1e6:.2f} MB/s"
        return Sign(rule, what)


def _is_stopped(info: TcpInfo, before: TcpInfo) -> bool:
    is_silent = info.num_received == before.num_received and before.acked_bytes > 0
    return bool(info.num_unacked) and info.num_repeats >= STOP_REPEATS and is_silent
