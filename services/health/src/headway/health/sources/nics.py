"""InfiniBand and RoCE ports, from sysfs: link state, rate, lost links and transfer errors.

Documentation/ABI/stable/sysfs-class-infiniband; ``hw_counters`` are those of mlx5.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding, NicPort
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

ACTIVE: Final = "ACTIVE"
ERRORS: Final = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/req_cqe_error",
    "hw_counters/resp_cqe_error",
    "hw_counters/rx_icrc_encapsulated",
)
"""What grows by a fault of the link or its other end. Left out is what congestion also counts, such
as ``port_xmit_wait``, ``out_of_sequence`` and ``packet_seq_err``, and ``local_ack_timeout_err``,
which counts on every healthy port whose peer has died."""
FLUSHED: Final = {
    "hw_counters/req_cqe_error": "hw_counters/req_cqe_flush_error",
    "hw_counters/resp_cqe_error": "hw_counters/resp_cqe_flush_error",
}
"""The part of a counter that requests make which are cancelled as a connection is closed."""


@dataclass(slots=True)
class _Port:
    """A port as it was first seen."""

    was_active: bool
    rate: str
    down: Lasting
    slow: Lasting
    errors: dict[str, Window] = field(default_factory=dict)


class NicSource:
    """Reads every port below ``class/infiniband`` of ``sysfs``."""

    def __init__(
        self, sysfs: Path, config: HealthConfig, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._config, self._clock_s = sysfs / "class" / "infiniband", config, clock_s
        self._ports: dict[str, _Port] = {}
        self._counters = Counters()

    def read(self) -> list[Finding]:
        """The changes of all ports; a port that is gone counts as down."""
        found: list[Finding] = []
        present = {f"{device}/{port}" for device, port in ports(self._root)}
        for name in sorted(present | self._ports.keys()):
            found += self._read_port(name, self._root / name.replace("/", "/ports/"))
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _read_port(self, name: str, folder: Path) -> list[Finding]:
        now_s = self._clock_s()
        state = _word(read_text(folder / "state"))
        rate = read_text(folder / "rate") or ""
        port = self._ports.setdefault(name, self._new(state, rate))
        if state == ACTIVE and not port.was_active:
            port.was_active, port.rate = True, rate
        found: list[Finding] = []
        is_gone = not folder.exists()
        if port.down.is_due(port.was_active and (is_gone or state not in (ACTIVE, "")), now_s):
            what = "is gone" if is_gone else f"is {state.lower()}"
            found.append(_finding("nic_down", name, folder / "state", what))
        if port.slow.is_due(gigabits(rate) < gigabits(port.rate) and state == ACTIVE, now_s):
            line = f"runs at {rate}, and ran at {port.rate}"
            found.append(_finding("nic_slow", name, folder / "rate", line))
        path = folder / "counters" / "link_downed"
        value = read_int(path)
        if lost := self._counters.growth(f"{name}/link_downed", value):
            line = f"lost its link: link_downed rose from {(value or 0) - lost} to {value}"
            found.append(_finding("nic_flap", name, path, line, count=lost))
        return found + self._errors(name, folder, port, now_s)

    def _grown(self, name: str, folder: Path, counter: str) -> int:
        return self._counters.growth(f"{name}/{counter}", read_int(folder / counter))

    def _new(self, state: str, rate: str) -> _Port:
        every_s = again_s(self._config)
        return _Port(state == ACTIVE, rate, Lasting(again_s=every_s), Lasting(again_s=every_s))

    def _errors(self, name: str, folder: Path, port: _Port, now_s: float) -> list[Finding]:
        limit, within_s = self._config.nic_errors, self._config.counter_window_s
        found = []
        for counter in ERRORS:
            grown = self._grown(name, folder, counter)
            if flushed := FLUSHED.get(counter):
                grown = max(0, grown - self._grown(name, folder, flushed))
            window = port.errors.setdefault(counter, Window(limit, within_s))
            if total := window.add(grown, now_s):
                line = f"counts {total} {counter.split('/')[1]} within {within_s:.0f} s"
                found.append(_finding("nic_errors", name, folder / counter, line, count=total))
        return found


def ports(root: Path) -> list[tuple[str, str]]:
    """(adapter, number) of the ports below ``class/infiniband``."""
    return [
        (device, port)
        for device in children(root)
        for port in children(root / device / "ports")
        if port.isdigit()
    ]


def read_nics(sysfs: Path) -> tuple[NicPort, ...]:
    """The ports of the machine, for its identity."""
    root = sysfs / "class" / "infiniband"
    return tuple(
        NicPort(
            name=device,
            port=int(port),
            link_layer=read_text(root / device / "ports" / port / "link_layer") or "",
            rate=read_text(root / device / "ports" / port / "rate") or "",
            firmware=read_text(root / device / "fw_ver") or "",
        )
        for device, port in ports(root)
    )


def _finding(rule: str, name: str, path: Path, what: str, count: int = 1) -> Finding:
    device, _, port = name.partition("/")
    line = f"{device} port {port} {what}"
    return changed(rule, "nic", "nic", line, name=name, file=str(path), count=count)


def _word(text: str | None) -> str:
    """``ACTIVE`` of ``4: ACTIVE``; empty without a text."""
    return (text or "").rpartition(":")[2].strip()


def gigabits(rate: str) -> float:
    """The number in ``400 Gb/sec (4X NDR)``, 0.0 without one."""
    try:
        return float(rate.split()[0])
    except (ValueError, IndexError):
        return 0.0
