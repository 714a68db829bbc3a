"""What a machine has, and whether that is enough for a node: GPUs, shared memory, a compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.compiler import INSTALL_COMPILER, lack_for_compiling
from headway.launch.join.bundle import Bundle

SHM = "/dev/shm"
MIN_SHM_BYTES = 1 << 30
"""What a small run needs of it: rings and snapshots of a GPT of 10 M parameters take 0.7 GiB.
Containers come with 64 MiB."""
GPUS = Path("/proc/driver/nvidia/gpus")
CPUINFO = Path("/proc/cpuinfo")


def num_gpus() -> int:
    """GPUs that the NVIDIA driver of this machine reports."""
    return len(list(GPUS.iterdir())) if GPUS.is_dir() else 0


def describe() -> str:
    """JSON of what a run is fitted to before its machines join.

    ``gpus``: number of GPUs. ``cpu_flags``: the processor's, as in ``/proc/cpuinfo``.
    ``compiler_lack``: what torch's compiler lacks for GPUs, empty if nothing.
    """
    lines = CPUINFO.read_text().splitlines()
    flags = next((one for one in lines if one.startswith(("flags", "Features"))), "")
    lack = lack_for_compiling(on_gpu=True)
    return json.dumps({"gpus": num_gpus(), "cpu_flags": flags, "compiler_lack": lack})


def check(bundle: Bundle) -> None:
    """Check that this machine has what a node of the run needs.

    Raises:
        InputError: there are too few GPUs, too little shared memory is free, or there is no
            compiler for ranks that compile kernels.
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
    if bundle.compiles_on and (lack := lack_for_compiling(on_gpu=bundle.compiles_on == "gpu")):
        raise InputError(
            f"this machine cannot compile kernels (train.compile=true): {lack}",
            remedy=INSTALL_COMPILER,
        )
