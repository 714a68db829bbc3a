"""Looks closely at all links and GPUs for two seconds after a step took twice as long as usual."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding, WorkerSignals
from headway.health.sources.burst import SECONDS, LinkBurst, burst
from headway.health.sources.changes import changed
from headway.health.sources.gpu_burst import GpuBurst, GpuBursts
from headway.health.sources.gpu_probe import GpuProbe

SLOW_FACTOR: Final = 2.0
MIN_STEPS: Final = 8
"""Steps that a generation needs before there is a usual time."""
PAUSE_S: Final = 60.0
"""From one look to the next, however many steps are slow."""
GPU_DEADLINE_S: Final = 3.0
"""Deadline of the driver's answer, before and after the two seconds; the three together stay below
``source_deadline_s``."""
SLOWED_SHARE: Final = 0.1
"""Share of slowed readings from which on a GPU counts as slowed down."""
PROTECTIVE: Final = ("hardware slowdown", "temperature", "temperature (driver)", "power brake")
"""What slows a GPU down that is not well; a power cap holds every busy one."""
RULES: Final = {"full": "link_full", "congested": "link_congested", "paused": "link_paused"}
GPU_RULES: Final = {"full": "gpu_link_full", "paused": "gpu_link_paused"}


class SlowStepSource:
    """Its ``read`` takes two seconds when it has been asked, and else nothing.

    Args:
        nvml: library for the GPUs, whose process lives as long as one reading; empty without GPUs.
    """

    def __init__(
        self, sysfs: Path, nvml: str = "", clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sysfs, self._clock_s = sysfs, clock_s
        self._probe = GpuProbe(nvml, GPU_DEADLINE_S) if nvml else None
        self._asked = threading.Event()
        self._rests_until_s = 0.0
        self._seen: dict[int, tuple[int, int]] = {}
        """By rank, generation and step when its steps were last looked at."""

    def look(self, workers: Sequence[WorkerSignals]) -> bool:
        """Ask for a reading if a rank's newest step was slow; whether it is asked for.

        Never blocks.
        """
        for worker in workers:
            newest = (worker.generation, worker.step)
            if self._seen.get(worker.rank) != newest:
                self._seen[worker.rank] = newest
                if is_slow(worker):
                    self._asked.set()
        return self._asked.is_set()

    def read(self) -> list[Finding]:
        """What each link was at that is full, congested or paused; and GPUs that were slowed."""
        was_asked = self._asked.is_set()
        self._asked.clear()
        if not was_asked or self._clock_s() < self._rests_until_s:
            return []
        self._rests_until_s = self._clock_s() + PAUSE_S
        if self._probe is None:
            return _of_links(burst(self._sysfs))
        found, gpus = self._probe.burst(SECONDS, lambda: burst(self._sysfs))
        self._probe.close()
        return [*_of_links(found), *_of_gpus(gpus)]

    def close(self) -> None:
        """End the process of a reading that has not ended."""
        if self._probe is not None:
            self._probe.close()


def is_slow(worker: WorkerSignals) -> bool:
    """Whether the newest step took much longer than the steps before it."""
    return (
        worker.num_steps >= MIN_STEPS and worker.step_s > SLOW_FACTOR * worker.median_step_s > 0.0
    )


def _of_links(found: Sequence[LinkBurst]) -> list[Finding]:
    return [_finding(link) for link in found if link.verdict != "free"]


def _of_gpus(found: GpuBursts) -> list[Finding]:
    findings = [_of_gpu_link(link) for link in found.links if link.verdict in GPU_RULES]
    for gpu in found.gpus:
        reasons = [why for why in PROTECTIVE if gpu.slowed.get(why, 0.0) >= SLOWED_SHARE]
        if reasons:
            findings.append(_slowed(gpu, reasons))
    return findings


def _of_gpu_link(link: LinkBurst) -> Finding:
    pci, _, kind = link.name.partition(" ")
    what = {
        "full": f"is at its limit in {link.full_share:.0%} of the time",
        "paused": f"repeated or recovered transfers in {link.paused_share:.0%} of the time",
    }[link.verdict]
    name = {"pcie": "PCIe", "nvlink": "NVLink"}[kind]
    line = f"{name} of GPU {pci} {what}, at most {_most(link):.2f} GB/s, after a slow step"
    return changed(GPU_RULES[link.verdict], "gpu", "gpu", line, name=pci, detail=kind)


def _slowed(gpu: GpuBurst, reasons: Sequence[str]) -> Finding:
    line = (
        f"GPU {gpu.pci} is slowed down by {', '.join(reasons)}, {gpu.least_mhz} to {gpu.most_mhz} "
        f"MHz at {gpu.mean_w:.0f} W, after a slow step"
    )
    return changed("gpu_throttled", "gpu", "gpu", line, name=gpu.pci)


def _finding(link: LinkBurst) -> Finding:
    what = {
        "full": f"is at its limit in {link.full_share:.0%} of the time",
        "congested": f"was slowed down by {link.num_notified} notifications of congestion",
        "paused": f"had to wait for its receiver in {link.paused_share:.0%} of the time",
    }[link.verdict]
    line = f"{link.name} {what}, at most {_most(link):.2f} GB/s, after a slow step"
    return changed(RULES[link.verdict], "nic", "nic", line, name=link.name)


def _most(link: LinkBurst) -> float:
    """Its highest rate, in GB/s."""
    return max(link.peak_sent, link.peak_received) / 1e9
