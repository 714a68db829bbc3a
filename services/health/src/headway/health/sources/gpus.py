"""GPUs, from NVML: Xids, memory errors, throttling, PCIe, NVLink, and the recovery they need."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from headway.common.wire.messages.health import Finding, Gpu
from headway.health.config import HealthConfig
from headway.health.rule_files import shipped
from headway.health.rulebook import pci_address
from headway.health.sources.changes import (
    Counters,
    Lasting,
    Window,
    again_s,
    changed,
    children,
    read_text,
)
from headway.health.sources.nvml import LINK_ERRORS, GpuReading, Reading

NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"
"""PCI base class of display and 3D controllers."""
SLOWDOWNS: Final = {0x8: "hardware slowdown", 0x40: "temperature", 0x80: "power brake"}
"""Bits of nvmlClocksEventReasons that are set by the hardware to protect itself."""
RECOVERIES: Final = {
    1: "reset the GPU", 2: "reboot the node", 3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU", 5: "reset the bus", 6: "recover the IMEX domain",
}  # fmt: skip
"""nvmlDeviceGpuRecoveryAction_t."""
_PCI: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Probe(Protocol):
    """What is asked for readings; see ``gpu_probe``."""

    def read(self) -> Reading: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Gpu:
    """A GPU as it was first seen, and its states."""

    first: GpuReading
    links: Window
    replays: Window
    throttled: Lasting
    lost: Lasting
    narrow: Lasting
    recovery: Lasting
    link_down: Lasting
    inactive: set[int] = field(default_factory=set)
    """NVLinks that have been down since the first reading, such as those that are not wired."""
    was_on_bus: bool = False
    """Whether sysfs has listed its PCI device."""


class GpuSource:
    """Compares each reading with the first one of each GPU."""

    def __init__(
        self,
        probe: Probe,
        config: HealthConfig,
        clock_s: Callable[[], float] = time.monotonic,
        wants_xids: Callable[[], bool] = lambda: True,
        sysfs: Path = Path("/sys"),
    ) -> None:
        """``wants_xids`` is false while the kernel's log is read, which has each Xid, too."""
        self._probe, self._config, self._clock_s = probe, config, clock_s
        self._wants_xids, self._bus = wants_xids, sysfs / "bus" / "pci" / "devices"
        self._gpus: dict[str, _Gpu] = {}
        self._counters = Counters()
        self._num_unreadable = 0
        """Readings in a row that were not complete."""
        self._hung, self._unreadable = (Lasting(again_s=again_s(config)) for _ in range(2))
        self.identity: tuple[Gpu, ...] = ()
        """The GPUs at the first reading, the lost ones included."""
        self.driver = ""

    def read(self) -> list[Finding]:
        """The changes since the last reading; one finding while there is none."""
        now_s = self._clock_s()
        try:
            reading = self._probe.read()
        except TimeoutError as error:
            is_new = self._hung.is_due(True, now_s)
            return [_of_node("gpu_probe_hung", str(error))] if is_new else []
        self._hung.is_due(False, now_s)
        found = [] if reading.error else self._compare(reading, now_s)
        return found + self._incomplete(reading, now_s)

    def close(self) -> None:
        self._probe.close()

    def _compare(self, reading: Reading, now_s: float) -> list[Finding]:
        present: dict[str, GpuReading] = {}
        for gpu in reading.gpus:
            if _PCI.fullmatch(pci := pci_address(gpu.pci)):
                present.setdefault(pci, gpu)
        for pci, gpu in present.items():
            self._gpus.setdefault(pci, self._new(gpu))
        self.driver = reading.driver
        self.identity = tuple(
            Gpu(index=one.first.index, pci=pci, uuid=one.first.uuid, name=one.first.name)
            for pci, one in self._gpus.items()
        )
        found: list[Finding] = []
        on_bus = children(self._bus)
        for pci, known in self._gpus.items():
            now = present.get(pci)
            why_lost = self._why_lost(pci, known, now, on_bus)
            if known.lost.is_due(bool(why_lost), now_s):
                found.append(_of_gpu("gpu_lost", pci, known, why_lost))
            if now is not None and not why_lost and not now.error:
                found += self._states(pci, known, now, now_s)
                found += self._growth(pci, known, now, now_s)
        if self._wants_xids():
            found += [self._xid(pci_address(pci), number) for pci, number in reading.xids]
        return found

    @staticmethod
    def _why_lost(pci: str, known: _Gpu, now: GpuReading | None, on_bus: list[str]) -> str:
        """What proves that a GPU is lost; empty if nothing does."""
        if now is not None and now.is_lost:
            return "is lost to the driver"
        known.was_on_bus = known.was_on_bus or pci in on_bus
        is_gone = known.was_on_bus and bool(on_bus) and pci not in on_bus
        return "is gone from the PCI bus" if is_gone else ""

    def _incomplete(self, reading: Reading, now_s: float) -> list[Finding]:
        """That a reading lacks a GPU, which proves nothing about it; reported if two in a row do.

        A driver that is being reset or loaded leaves out GPUs for a moment, or all of them.
        """
        answers = {pci_address(gpu.pci): gpu.error for gpu in reading.gpus}
        missing = [
            f"{pci} ({answers.get(pci) or 'not listed'})"
            for pci, known in self._gpus.items()
            if known.lost.is_off and (pci not in answers or answers[pci])
        ]
        why = reading.error or (f"NVML does not answer for {', '.join(missing)}" if missing else "")
        self._num_unreadable = self._num_unreadable + 1 if why else 0
        is_due = self._unreadable.is_due(self._num_unreadable > 1, now_s)
        return [_of_node("gpu_unreadable", why)] if is_due else []

    def _new(self, gpu: GpuReading) -> _Gpu:
        limit, within_s = self._config.gpu_link_errors, self._config.counter_window_s
        every_s = again_s(self._config)
        return _Gpu(
            gpu,
            Window(limit, within_s),
            Window(limit, within_s),
            throttled=Lasting(self._config.throttle_hold_s, every_s),
            lost=Lasting(again_s=every_s),
            narrow=Lasting(again_s=every_s),
            recovery=Lasting(again_s=every_s),
            link_down=Lasting(again_s=every_s),
            inactive=set(gpu.inactive_links),
        )

    def _states(self, pci: str, known: _Gpu, now: GpuReading, now_s: float) -> list[Finding]:
        found = []
        recovery = now.values.get("recovery", 0)
        if known.recovery.is_due(recovery in RECOVERIES, now_s):
            found.append(_of_gpu("gpu_recovery", pci, known, f"needs: {RECOVERIES[recovery]}"))
        reasons = [why for bit, why in SLOWDOWNS.items() if now.values.get("throttle", 0) & bit]
        if known.throttled.is_due(bool(reasons), now_s):
            watts = now.values.get("power_mw", 0) / 1000
            what = f"is slowed down by {', '.join(reasons)}"
            detail = f"{now.values.get('temperature', 0)} C, {watts:.0f} W"
            found.append(_of_gpu("gpu_throttled", pci, known, f"{what} at {detail}"))
        before = known.first.values.get("pcie_width", 0)
        width = now.values.get("pcie_width", before)
        if known.narrow.is_due(0 < width < before, now_s):
            what = f"uses {width} PCIe lanes, and used {before}"
            found.append(_of_gpu("gpu_pcie_width", pci, known, what))
        known.inactive &= set(now.inactive_links)
        links = sorted(set(now.inactive_links) - known.inactive)
        if known.link_down.is_due(bool(links), now_s):
            what = f"has NVLink {', '.join(map(str, links))} down"
            found.append(_of_gpu("gpu_link_down", pci, known, what))
        return found

    def _growth(self, pci: str, known: _Gpu, now: GpuReading, now_s: float) -> list[Finding]:
        grown = {
            name: self._counters.growth(f"{pci} {name}", now.values.get(name))
            for name in ("ecc", "remap_pending", "remap_failed", "pcie_replays")
        }
        link_errors = sum(
            self._counters.growth(f"{pci} {name}", value)
            for name, value in now.values.items()
            if name.startswith(LINK_ERRORS)
        )
        found = []
        for name, rule, what in (
            ("ecc", "gpu_memory_error", "counts uncorrected memory errors"),
            ("remap_pending", "gpu_remap", "has memory rows that are to be remapped"),
            ("remap_failed", "gpu_remap_failed", "could not remap a row of its memory"),
        ):
            if grown[name]:
                found.append(_of_gpu(rule, pci, known, what, count=grown[name]))
        if total := known.links.add(link_errors, now_s):
            what = f"counts {total} NVLink errors"
            found.append(_of_gpu("gpu_link_errors", pci, known, what, count=total))
        if total := known.replays.add(grown["pcie_replays"], now_s):
            what = f"repeated {total} PCIe transfers"
            found.append(_of_gpu("gpu_pcie_replays", pci, known, what, count=total))
        return found

    def _xid(self, pci: str, number: int) -> Finding:
        """The finding of an Xid, by the rule for the kernel's log: both are one problem."""
        known = self._gpus.get(pci)
        rule = "gpu_lost" if number == 79 else f"xid_{number}"
        rule = rule if rule in shipped().by_name else "xid"
        uuid = known.first.uuid if known else ""
        line = f"NVML reports Xid {number} of GPU {pci}"
        return changed(rule, "gpu", "gpu", line, name=pci, file="nvml", uuid=uuid)


def has_gpus(sysfs: Path) -> bool:
    """Whether the machine has GPUs that NVML would know of."""
    root = sysfs / "bus" / "pci" / "devices"
    return any(
        read_text(root / device / "vendor") == NVIDIA
        and (read_text(root / device / "class") or "").startswith(DISPLAY)
        for device in children(root)
    )


def _of_gpu(rule: str, pci: str, known: _Gpu, what: str, count: int = 1) -> Finding:
    line = f"GPU {pci} {what}"
    uuid = known.first.uuid
    return changed(rule, "gpu", "gpu", line, name=pci, uuid=uuid, count=count)


def _of_node(rule: str, line: str) -> Finding:
    return changed(rule, "gpu", "node", line)
