"""Checks host memory with patterns that set, clear and alternate every bit."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.health.checks.base import MIB, CheckSettings, Finding

PATTERNS = (0x00000000_00000000, 0xFFFFFFFF_FFFFFFFF, 0x55555555_55555555, 0xAAAAAAAA_AAAAAAAA)
"""All clear, all set, and the two checkerboards; the last pass writes each word's own address."""


def check(settings: CheckSettings) -> Finding:
    """Write each pattern over the whole block, then read it back."""
    words = np.empty(settings.memory_bytes // 8, dtype=np.uint64)
    began_s = time.perf_counter()
    bad = [
        f"{wrong} words after {pattern:#018x}"
        for pattern in PATTERNS
        if (wrong := write_and_compare(words, pattern))
    ]
    words[:] = np.arange(len(words), dtype=np.uint64)
    if wrong := int((words != np.arange(len(words), dtype=np.uint64)).sum()):
        bad.append(f"{wrong} words after their addresses")
    rate = (len(PATTERNS) + 1) * words.nbytes / (time.perf_counter() - began_s) / MIB
    values: dict[str, float | str] = {"MiB": settings.memory_bytes / MIB, "MiB/s": round(rate, 1)}
    if bad:
        return Finding(
            False, "memory lost " + ", ".join(bad), "drain the node and run a memory test", values
        )
    return Finding(
        True, f"{settings.memory_bytes // MIB} MiB kept {len(PATTERNS) + 1} patterns", values=values
    )


def write_and_compare(words: npt.NDArray[Any], pattern: int) -> int:
    """Number of words that do not read back as ``pattern``."""
    words[:] = np.uint64(pattern)
    return int((words != np.uint64(pattern)).sum())
