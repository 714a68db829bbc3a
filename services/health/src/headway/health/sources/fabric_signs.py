"""What two readings of a connection show: that its network loses, delays or carries too little.

Each connection is compared with itself since it was opened, never with a fixed rate: what is usual
differs by a factor of thousands between networks. All limits were chosen on gloo between two
namespaces of two cores that eight other processes wanted. There, a round trip of 0.1 ms was read
as 5.9 ms with a mean deviation of 11.8 ms, and all that was sent again was needless by the peer's
own words (RFC 2883).

A low rate alone says little, since many small messages have one too: each waits a round trip for
its acknowledgement. But a rate is what is on its way, divided by the round trip. So a network that
carries less, and loses nothing, shows in longer round trips with much on its way, and a program
that sends little in a nearly empty connection. The kernel's own delivery rate does not tell them
apart: while a program sends too little to fill the window, it stays at the highest of an earlier
time (tcp_rate_gen in net/ipv4), whether the network is slower since or not.
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
"""Bytes in a reading from which on its rate counts, and peers acknowledge at once."""
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
FULL_SEGMENTS: Final = 0.5
"""Mean size of the segments of bulk, as a share of the largest mean; small messages have less."""
LEAST_ON_WAY: Final = 10 * 1460
"""Bytes on their way at the same time: what a connection sends at once when it begins (RFC 6928).
With less, and nothing lost, it is not the network that limits the rate."""
SLOW_ROUND_TRIPS: Final = 2.0
"""So many times longer than usual a round trip is on a slow way, at least."""


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
    _rtts_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP_USUAL))
    """Smoothed round trips, of bulk."""
    _largest_bytes: float = 0.0
    """Largest mean size of the segments of a reading in which much was sent."""
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
        is_bulk = self._is_bulk(info, before, acked_bytes)
        is_slow = self._is_slow(rate, busy_s / elapsed_s) if is_bulk else None
        is_late = self._is_late(info, steady_s, acked_bytes, lowers_rate=bool(is_slow))
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
            if acked_bytes:
                self._steady_s.append(steady_s)
            if is_bulk:
                self._rates.append(rate)
                self._rtts_s.append(info.rtt_s)
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

    def _is_late(
        self, info: TcpInfo, steady_s: float, acked_bytes: int, *, lowers_rate: bool
    ) -> bool | None:
        """Whether round trips are longer, and steadily so.

        With ``lowers_rate`` much less gets through as well. Busy processors alone do not explain
        that, so the round trip counts as it is, and not less its deviation.
        """
        if not acked_bytes or len(self._steady_s) < MIN_USUAL:
            return None
        usual_s = max(self._steady_s)
        floor_s = DELAY_FLOOR_S if acked_bytes >= BULK_BYTES else LONE_FLOOR_S
        is_steady = info.rtt_spread_s <= STEADY * info.rtt_s
        shown_s = info.rtt_s if lowers_rate else steady_s
        return is_steady and shown_s > max(DELAY_FACTOR * usual_s, usual_s + floor_s)

    def _is_bulk(self, info: TcpInfo, before: TcpInfo, acked_bytes: int) -> bool:
        """Whether much was sent, and not in many small messages."""
        num_sent = info.num_data_segments - before.num_data_segments
        if acked_bytes < BULK_BYTES or not num_sent:
            return False
        # not by what was acknowledged: at first, most of what a slow network was given waits in it
        mean_bytes = (info.sent_bytes - before.sent_bytes) / num_sent
        self._largest_bytes = max(self._largest_bytes, mean_bytes)
        return mean_bytes >= FULL_SEGMENTS * self._largest_bytes

    def _is_slow(self, rate: float, busy: float) -> bool | None:
        if len(self._rates) < MIN_USUAL:
            return None
        rtt_s = self.newest.rtt_s
        is_filled = rate * rtt_s >= LEAST_ON_WAY
        is_longer = rtt_s >= SLOW_ROUND_TRIPS * statistics.median(self._rtts_s)
        is_less = rate * SLOW_FACTOR < statistics.median(self._rates)
        return busy >= SLOW_BUSY and is_less and is_filled and is_longer

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
