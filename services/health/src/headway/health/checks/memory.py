"""Checks host memory with patterns that set, clear and alternate every bit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.health.checks.base import MIB, CheckSettings, Finding

PATTERNS = (0x00000000_00000000, 0xFFFFFFFF_FFFFFFFF, 0x55555555_55555555, 0xAAAAAAAA_AAAAAAAA)
"""All clear, all set, and the two checkerboards; the last pass writes each word's own address."""


@dataclass(frozen=True)
class Kept:
    """What a block of memory kept."""

    num_bytes: int
    num_wrong: dict[str, int]
    """Pattern -> words that do not read back."""
    bytes_per_s: float
    """Written and read back."""


def check(settings: CheckSettings) -> Finding:
    """Write each pattern over the whole block, then read it back."""
    words = np.empty(settings.memory_bytes // 8, dtype=np.uint64)
    began_s = time.perf_counter()
    wrong = {f"{pattern:#018x}": write_and_compare(words, pattern) for pattern in PATTERNS}
    words[:] = np.arange(len(words), dtype=np.uint64)
    addresses = np.arange(len(words), dtype=np.uint64)
    wrong["their addresses"] = int((words != addresses).sum())
    rate = len(wrong) * words.nbytes / (time.perf_counter() - began_s)
    return judge(Kept(settings.memory_bytes, wrong, rate), settings)


def judge(measured: Kept, _settings: CheckSettings) -> Finding:
    """The finding about a block of memory."""
    values: dict[str, float | str] = {
        "MiB": measured.num_bytes / MIB,
        "MiB/s": round(measured.bytes_per_s / MIB, 1),
    }
    bad = [f"{count} words after {name}" for name, count in measured.num_wrong.items() if count]
    if bad:
        return Finding(
            False, "memory lost " + ", ".join(bad), "drain the node and run a memory test", values
        )
    message = f"{measured.num_bytes // MIB} MiB kept {len(measured.num_wrong)} patterns"
    return Finding(True, message, values=values)


def write_and_compare(words: npt.NDArray[Any], pattern: int) -> int:
    """Number of words that do not read back as ``pattern``."""
    words[:] = np.uint64(pattern)
    return int((words != np.uint64(pattern)).sum())
