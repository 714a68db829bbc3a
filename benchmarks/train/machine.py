"""What the measuring machine is, and which compute type is fastest on it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
PEAK_SIZE = 2048


def facts() -> dict[str, Any]:
    """Processor, cores, flags, versions, date and load, to stand in every result."""
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in text.splitlines() if ":" in line
    )
    has = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in has],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def peak_flops(dtype: torch.dtype, size: int = PEAK_SIZE, repeats: int = 3) -> float:
    """FLOP/s of the best of ``repeats`` square products."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    for _ in range(repeats + 1):  # the first is slower and never the best
        began_s = time.perf_counter()
        torch.nn.functional.linear(a, b)
        best = min(best, time.perf_counter() - began_s)
    return 2.0 * size**3 / best


def fastest_dtype() -> str:
    """``bf16`` where a bf16 product is faster than an fp32 one, else ``fp32``."""
    bf16, fp32 = (peak_flops(dtype, 512) for dtype in (torch.bfloat16, torch.float32))
    return "bf16" if bf16 > fp32 else "fp32"
