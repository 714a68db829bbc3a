"""Reads all links every 10 ms for a short time: whether one is full, congested or paused.

A step waits for a transfer for one of three reasons, which an average over seconds hides: the link
carries all that it can, notifications of congestion slow its sender down, or it has something to
send and may not, since its receiver gives it no credit. Counters: sysfs-class-infiniband and
sysfs-class-net of the kernel's ABI documentation; ``hw_counters`` are those of mlx5.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from headway.health.sources.changes import children, read_int, read_text
from headway.health.sources.net_devices import has_device
from headway.health.sources.nics import gigabits, ports

PERIOD_S: Final = 0.01
SECONDS: Final = 2.0
FULL_SHARE: Final = 0.9
"""Share of its rate from which on a link carries what it can; headers are not counted."""
BUSY_SHARE: Final = 0.5
"""Share of the intervals in which a link must be full to be called so."""
PAUSED_SHARE: Final = 0.1
"""Share of the intervals in which a link must wait for credit to be called paused."""
NOTIFIED_A_SECOND: Final = 100
"""Notifications of congestion, from which a link is called congested: a few are ordinary."""
Verdict = Literal["free", "full", "congested", "paused"]
_IB_WORD_BYTES = 4
"""Unit of ``port_xmit_data`` and ``port_rcv_data``."""


class Link(NamedTuple):
    """A NIC's port, an interface, or a link of a GPU, whose counters have no files."""

    name: str
    rate: float
    """Bytes per second; 0.0 if it is not known, and the link is never called full."""
    unit_bytes: int
    sent: Path | None = None
    received: Path | None = None
    waits: Path | None = None
    notified: Path | None = None


class LinkBurst(msgspec.Struct, frozen=True, kw_only=True):
    """What one link did. Rates are in bytes per second, shares from 0 to 1."""

    name: str
    verdict: Verdict
    num_intervals: int
    interval_ms: float
    """Median: reading many counters may take longer than was asked for."""
    rate: float
    mean_sent: float
    peak_sent: float
    mean_received: float
    peak_received: float
    full_share: float
    """Share of the intervals in which the fuller direction is full."""
    paused_share: float
    num_notified: int
    """Notifications of congestion that slowed this sender down."""


def links(sysfs: Path) -> list[Link]:
    """All ports of NICs, and all interfaces of real devices."""
    return [*_nic_ports(sysfs / "class" / "infiniband"), *_interfaces(sysfs / "class" / "net")]


def burst(sysfs: Path, seconds: float = SECONDS) -> list[LinkBurst]:
    """Watch every link for ``seconds``."""
    watched = links(sysfs)
    until_s = time.monotonic() + seconds
    times, rows = [time.monotonic()], [_read(watched)]
    while watched and times[-1] < until_s:
        time.sleep(max(0.0, PERIOD_S - (time.monotonic() - times[-1])))
        times.append(time.monotonic())
        rows.append(_read(watched))
    values = np.array(rows, float).reshape(len(rows), len(watched), 4)
    return [judge(link, np.array(times), values[:, at]) for at, link in enumerate(watched)]


def judge(
    link: Link, times_s: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> LinkBurst:
    """The verdict on a link from its counters, [reading, (sent, received, waits, notified)]."""
    spent_s = np.diff(times_s)
    grown = np.maximum(np.nan_to_num(np.diff(values, axis=0)), 0)  # no growth to or from no value
    rates = grown[:, :2] * link.unit_bytes / spent_s[:, None] if len(spent_s) else np.zeros((1, 2))
    full = (rates >= FULL_SHARE * link.rate).mean(0).max() if link.rate else 0.0
    paused = float((grown[:, 2] > 0).mean()) if len(grown) else 0.0
    notified = int(grown[:, 3].sum())
    verdict: Verdict = "free"
    if full >= BUSY_SHARE:
        verdict = "full"
    elif notified >= NOTIFIED_A_SECOND * max(float(spent_s.sum()), 1.0):
        verdict = "congested"
    elif paused >= PAUSED_SHARE:
        verdict = "paused"
    mean, peak = rates.mean(0), rates.max(0)
    return LinkBurst(
        name=link.name,
        verdict=verdict,
        num_intervals=len(spent_s),
        interval_ms=round(float(np.median(spent_s)) * 1e3, 2) if len(spent_s) else 0.0,
        rate=link.rate,
        mean_sent=float(mean[0]),
        peak_sent=float(peak[0]),
        mean_received=float(mean[1]),
        peak_received=float(peak[1]),
        full_share=round(float(full), 3),
        paused_share=round(paused, 3),
        num_notified=notified,
    )


def _read(watched: Sequence[Link]) -> list[list[float]]:
    return [
        [_value(link.sent), _value(link.received), _value(link.waits), _value(link.notified)]
        for link in watched
    ]


def _value(path: Path | None) -> float:
    """A counter; not a number if it cannot be read, whatever it was before."""
    value = read_int(path) if path is not None else None
    return np.nan if value is None else float(value)


def _nic_ports(root: Path) -> Iterator[Link]:
    for device, port in ports(root):
        folder = root / device / "ports" / port
        yield Link(
            f"{device}/{port}",
            gigabits(read_text(folder / "rate") or "") * 1e9 / 8,
            _IB_WORD_BYTES,
            folder / "counters" / "port_xmit_data",
            folder / "counters" / "port_rcv_data",
            folder / "counters" / "port_xmit_wait",
            folder / "hw_counters" / "rp_cnp_handled",
        )


def _interfaces(root: Path) -> Iterator[Link]:
    for name in children(root):
        folder = root / name
        if has_device(folder):
            rate = max(0, read_int(folder / "speed") or 0) * 1e6 / 8  # -1: not known
            counters = folder / "statistics"
            yield Link(name, rate, 1, counters / "tx_bytes", counters / "rx_bytes")
