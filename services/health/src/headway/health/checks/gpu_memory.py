"""Checks the memory of every GPU with the patterns of the host memory check, through cupy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from headway.health.checks.base import MIB, CheckSettings, Finding, not_run
from headway.health.checks.memory import PATTERNS
from headway.health.measure.gpus import find_gpus

SHARE = 0.8
"""Most of the memory that is free; less if ``memory_bytes`` is less."""


@dataclass(frozen=True)
class Kept:
    """What the memory of one GPU kept of all patterns."""

    num_wrong: int
    """Words that do not read back."""
    bytes_per_s: float
    """Written."""


def check(settings: CheckSettings) -> Finding:
    """Write each pattern over a block of each GPU, then count the words that differ."""
    gpus = find_gpus()
    if not gpus.count:
        return not_run(gpus.missing)
    measured: dict[str, Kept] = {}
    for index in range(gpus.count):
        with gpus.cupy.cuda.Device(index):
            measured[f"gpu{index}"] = write_and_compare(gpus.cupy, settings.memory_bytes)
    return judge(measured, settings)


def judge(measured: dict[str, Kept], _settings: CheckSettings) -> Finding:
    """The finding about the memory of each GPU."""
    values: dict[str, float | str] = {
        f"{name} MiB/s": round(kept.bytes_per_s / MIB, 1) for name, kept in measured.items()
    }
    bad = [
        f"{name} lost {kept.num_wrong} words" for name, kept in measured.items() if kept.num_wrong
    ]
    if bad:
        remedy = "reset the GPU and run the vendor's memory test (dcgmi diag -r 3), or drain it"
        return Finding(False, "; ".join(bad), remedy, values)
    return Finding(True, f"{len(measured)} GPUs kept {len(PATTERNS) + 1} patterns", "", values)


def write_and_compare(cupy: Any, num_bytes: int) -> Kept:
    """Measure the memory of the current GPU."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    words = cupy.empty(min(num_bytes, int(free * SHARE)) // 8, dtype=cupy.uint64)
    began_s = time.perf_counter()
    num_wrong = 0
    for pattern in PATTERNS:
        words.fill(pattern)
        num_wrong += int((words != cupy.uint64(pattern)).sum())
    addresses = cupy.arange(len(words), dtype=cupy.uint64)
    words[:] = addresses
    num_wrong += int((words != addresses).sum())
    rate = (len(PATTERNS) + 1) * words.nbytes / (time.perf_counter() - began_s)
    return Kept(num_wrong, rate)
