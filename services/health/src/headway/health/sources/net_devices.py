"""Network interfaces, from sysfs and /proc/net/snmp: carrier, errors, drops, TCP retransmissions.

Documentation/ABI/testing/sysfs-class-net; RFC 1213 for the counters of TCP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import (
    Counters,
    Lasting,
    Window,
    again_s,
    changed,
    children,
    read_int,
    read_text,
)

ERRORS: Final = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")
DROPS: Final = ("rx_dropped", "tx_dropped", "rx_missed_errors")
PACKETS: Final = ("rx_packets", "tx_packets")
MIN_SEGMENTS: Final = 1000
"""Fewer TCP segments in a window prove nothing about a share of them."""


@dataclass(slots=True)
class _Device:
    errors: Window
    drops: Window
    down: Lasting
    was_up: bool = False


class NetSource:
    """Reads every interface of a real device below ``class/net`` of ``sysfs``.

    Those of containers, bridges and tunnels come and go, and have no ``device``.
    """

    def __init__(
        self, sysfs: Path, config: HealthConfig, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._config, self._clock_s = sysfs / "class" / "net", config, clock_s
        self._devices: dict[str, _Device] = {}
        self._counters = Counters()
        self._tcp = _Retransmits(config)

    def read(self) -> list[Finding]:
        """The changes of all interfaces, and of the node's TCP as a whole."""
        now_s = self._clock_s()
        found: list[Finding] = []
        present = [name for name in children(self._root) if has_device(self._root / name)]
        for name in sorted(self._devices.keys() - set(present)):
            found += self._forget(name)
        for name in present:
            found += self._read_device(name, self._root / name, now_s)
        return found + self._tcp.read(now_s)

    def close(self) -> None:
        """Nothing is held."""

    def _forget(self, name: str) -> list[Finding]:
        """An interface that is gone is one finding; if it returns, it is a new one."""
        device = self._devices.pop(name)
        path = self._root / name / "operstate"
        return [_finding("net_down", name, path, "is gone")] if device.was_up else []

    def _read_device(self, name: str, folder: Path, now_s: float) -> list[Finding]:
        window_s = self._config.counter_window_s
        device = self._devices.setdefault(name, self._new())
        state = read_text(folder / "operstate") or ""
        device.was_up = device.was_up or state == "up"
        found: list[Finding] = []
        changes = read_int(folder / "carrier_changes")
        if grown := self._counters.growth(f"{name}/carrier", changes):
            line = f"carrier changed {grown} times, now {state or 'unknown'}"
            found.append(_finding("net_flap", name, folder / "carrier_changes", line, grown))
        is_down = state in ("down", "lowerlayerdown", "notpresent")
        if device.down.is_due(device.was_up and is_down, now_s):
            found.append(_finding("net_down", name, folder / "operstate", f"is {state}"))
        errors = self._grown(name, folder, ERRORS)
        if total := device.errors.add(errors, now_s):
            line = f"counts {total} errors within {window_s:.0f} s"
            found.append(_finding("net_errors", name, folder / "statistics", line, total))
        drops, packets = self._grown(name, folder, DROPS), self._grown(name, folder, PACKETS)
        is_much = drops > self._config.net_drop_fraction * packets
        if total := device.drops.add(drops if is_much else 0, now_s):
            line = f"drops {total} packets within {window_s:.0f} s"
            found.append(_finding("net_drops", name, folder / "statistics/rx_dropped", line, total))
        return found

    def _new(self) -> _Device:
        config, window_s = self._config, self._config.counter_window_s
        errors, drops = Window(config.nic_errors, window_s), Window(config.net_drops, window_s)
        return _Device(errors, drops, Lasting(again_s=again_s(config)))

    def _grown(self, name: str, folder: Path, counters: tuple[str, ...]) -> int:
        return sum(
            self._counters.growth(f"{name}/{one}", read_int(folder / "statistics" / one))
            for one in counters
        )


def has_device(folder: Path) -> bool:
    """Whether an interface belongs to hardware, or to what a hypervisor shows as such."""
    return "device" in children(folder)


class _Retransmits:
    """The share of sent TCP segments that were sent again, in one window after the other."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._begun: tuple[float, int, int] | None = None
        self._state = Lasting(again_s=again_s(config))

    def read(self, now_s: float) -> list[Finding]:
        path = Path(psutil.PROCFS_PATH, "net", "snmp")
        sent, again = tcp_segments(read_text(path) or "")
        if self._begun is None or sent < self._begun[1]:
            self._begun = (now_s, sent, again)
        begun_s, sent_before, again_before = self._begun
        if now_s - begun_s < self._config.counter_window_s:
            return []
        self._begun = (now_s, sent, again)
        num_sent, num_again = sent - sent_before, again - again_before
        fraction = num_again / num_sent if num_sent >= MIN_SEGMENTS else 0.0
        if not self._state.is_due(fraction > self._config.retransmit_fraction, now_s):
            return []
        line = f"{num_again} of {num_sent} TCP segments were sent again ({fraction:.1%})"
        return [changed("tcp_retransmits", "net", "node", line, file=str(path), count=num_again)]


def tcp_segments(snmp: str) -> tuple[int, int]:
    """Segments sent and sent again, from the text of /proc/net/snmp; zeros if it has none."""
    rows = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
    if len(rows) != 2:
        return 0, 0
    values = dict(zip(*rows, strict=False))
    try:
        return int(values.get("OutSegs", 0)), int(values.get("RetransSegs", 0))
    except ValueError:
        return 0, 0


def _finding(rule: str, name: str, path: Path, what: str, count: int = 1) -> Finding:
    return changed(rule, "net", "nic", f"{name} {what}", name=name, file=str(path), count=count)
