"""Checks the memory of every GPU with the patterns of the host memory check, through cupy."""

from __future__ import annotations

import time
from typing import Any

from headway.health.checks.base import MIB, CheckSettings, Finding, not_run
from headway.health.checks.memory import PATTERNS
from headway.health.measure.gpus import find_gpus

SHARE = 0.8
"""Most of the memory that is free; less if ``memory_bytes`` is less."""


def check(settings: CheckSettings) -> Finding:
    """Write each pattern over a block of each GPU, then count the words that differ."""
    gpus = find_gpus()
    if not gpus.count:
        return not_run(gpus.missing)
    values: dict[str, float | str] = {}
    bad: list[str] = []
    for index in range(gpus.count):
        with gpus.cupy.cuda.Device(index):
            num_wrong, rate = write_and_compare(gpus.cupy, settings.memory_bytes)
        values[f"gpu{index} MiB/s"] = round(rate / MIB, 1)
        if num_wrong:
            bad.append(f"gpu{index} lost {num_wrong} words")
    if bad:
        remedy = "reset the GPU and run the vendor's memory test (dcgmi diag -r 3), or drain it"
        return Finding(False, "; ".join(bad), remedy, values)
    return Finding(True, f"{gpus.count} GPUs kept {len(PATTERNS) + 1} patterns", "", values)


def write_and_compare(cupy: Any, num_bytes: int) -> tuple[int, float]:
    """(words that do not read back, bytes written per second) on the current GPU."""
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
    return num_wrong, (len(PATTERNS) + 1) * words.nbytes / (time.perf_counter() - began_s)
