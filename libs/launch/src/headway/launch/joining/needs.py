"""Whether a machine has the GPUs and the shared memory that a node of the run needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from headway.common.errors import InputError
from headway.launch.joining.bundle import Bundle

SHM = "/dev/shm"
GPUS = Path("/proc/driver/nvidia/gpus")


def num_gpus() -> int:
    """GPUs that the NVIDIA driver of this machine reports."""
    return len(list(GPUS.iterdir())) if GPUS.is_dir() else 0


def check(bundle: Bundle) -> None:
    """
    Raises:
        InputError: there are too few GPUs, or too little shared memory is free.
    """
    if (there := num_gpus()) < bundle.gpus:
        raise InputError(
            f"this machine has {there} GPUs, a node of the run needs {bundle.gpus}",
            remedy="use another machine, or set launch.ranks_per_node and parallel",
        )
    free_bytes = shutil.disk_usage(SHM).free
    if free_bytes < bundle.shm_bytes:
        raise InputError(
            f"{SHM} of this machine has {free_bytes >> 20} MiB free, the snapshots of a node need "
            f"{bundle.shm_bytes >> 20} MiB",
            remedy="enlarge it (mount -o remount,size=... /dev/shm)",
        )
