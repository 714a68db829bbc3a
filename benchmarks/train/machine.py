"""What the measuring machine is, and which compute type is fastest on it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.train.gpu_bench import peak_flops

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


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


def fastest_dtype() -> str:
    """``bf16`` where a bf16 product is faster than an fp32 one, else ``fp32``."""
    bf16, fp32 = (
        peak_flops(torch.device("cpu"), 512, dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    return "bf16" if bf16 > fp32 else "fp32"
