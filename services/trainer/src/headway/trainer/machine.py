"""What this machine computes fast in; read without torch, so that a launch can settle it for all ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headway.trainer.config import RunConfig

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU flags of x86 and Arm; without them torch's bf16 is slower than fp32 (measured: 2 and 42 GFLOP/s)."""


def machine_dtype(cpuinfo: str | None = None, *, has_gpu: bool | None = None) -> tuple[str, str]:
    """The compute type that ``auto`` means here, and why.

    >>> machine_dtype("flags : fpu avx2", has_gpu=False)
    ('fp32', 'this CPU has no bf16 units')
    """
    if Path("/dev/nvidia0").exists() if has_gpu is None else has_gpu:
        return "bf16", "the GPU has bf16 units"
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    flags = {word for line in text.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    if flags.intersection(BF16_UNITS):
        return "bf16", "this CPU has bf16 units"
    return "fp32", "this CPU has no bf16 units"


def settled(config: RunConfig) -> tuple[RunConfig, str]:
    """The configuration with ``train.dtype = "auto"`` and the corpus path made definite, and a line that says so."""
    line = f"dtype {config.train.dtype}"
    train = config.train
    if train.dtype == "auto":
        dtype, why = machine_dtype()
        train = dataclasses.replace(train, dtype=dtype)  # type: ignore[arg-type]
        line = f"dtype auto: {dtype} ({why})"
    data = dataclasses.replace(config.data, path=str(Path(config.data.path).resolve()))
    return dataclasses.replace(config, train=train, data=data), line
