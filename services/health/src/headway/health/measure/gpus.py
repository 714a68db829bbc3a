"""The GPUs of this machine through cupy, an extra that CPU machines do not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpus:
    """cupy, and the number of GPUs that it sees; or the reason why there is none."""

    cupy: Any
    count: int
    missing: str


def find_gpus() -> Gpus:
    """Look for GPUs; no error if there is none."""
    try:
        import cupy
    except ImportError:
        return Gpus(None, 0, "cupy is not installed (headway-health[gpu])")
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return Gpus(cupy, 0, f"no GPU can be used: {error}")
    return Gpus(cupy, count, "" if count else "this machine has no GPU")
