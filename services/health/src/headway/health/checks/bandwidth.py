"""Checks that loopback transfers bytes intact, and fast enough for collectives of local ranks."""

from __future__ import annotations

from headway.health.checks.base import MIB, CheckSettings, Finding
from headway.health.measure.streams import Received, transfer

NUM_BYTES = 128 * MIB


def check(settings: CheckSettings) -> Finding:
    """One TCP stream through loopback, compared block by block."""
    return judge(transfer(NUM_BYTES), settings)


def judge(measured: Received, settings: CheckSettings) -> Finding:
    """The finding about what arrived."""
    rate = measured.bytes_per_s
    values: dict[str, float | str] = {"MiB/s": round(rate / MIB, 1)}
    if measured.num_damaged:
        return Finding(
            False,
            "bytes changed on the way through loopback",
            "drain the node: memory or kernel fault",
            values,
        )
    if rate < settings.min_loopback_bytes_per_s:
        wanted = settings.min_loopback_bytes_per_s / MIB
        message = f"loopback carries {rate / MIB:.0f} MiB/s, below {wanted:.0f}"
        return Finding(
            False,
            message,
            "see what else uses the CPUs (top), and for traffic shaping (tc qdisc)",
            values,
        )
    return Finding(True, f"loopback carries {rate / MIB:.0f} MiB/s", values=values)
