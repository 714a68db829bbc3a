"""Which machine this is: its name, and the host type whose machines it is compared with."""

from __future__ import annotations

import os
import platform
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Machine:
    """What does not change while a machine is not rebuilt."""

    hostname: str
    host_type: str
    """Machines of one type should reach the same figures: CPU model, number of CPUs, GPUs."""
    cpu: str
    num_cpus: int
    """CPUs that this process may use, which is what its measurements depend on."""
    gpus: tuple[str, ...]
    kernel: str


def this_machine(proc: Path = PROC) -> Machine:
    """Read the machine's identity; what cannot be read is called unknown."""
    cpu, gpus = _cpu_model(proc), _gpu_models(proc)
    num_cpus = len(os.sched_getaffinity(0))
    return Machine(
        hostname=socket.gethostname(),
        host_type=host_type(cpu, num_cpus, gpus),
        cpu=cpu,
        num_cpus=num_cpus,
        gpus=gpus,
        kernel=platform.release(),
    )


def host_type(cpu: str, num_cpus: int, gpus: Iterable[str]) -> str:
    """The type in words.

    >>> host_type("EPYC 9654", 96, ["H100", "H100"])
    'EPYC 9654, 96 CPUs, 2 x H100'
    """
    counted = sorted(Counter(gpus).items())
    return ", ".join([cpu, f"{num_cpus} CPUs", *(f"{count} x {name}" for name, count in counted)])


def _cpu_model(proc: Path) -> str:
    for key in ("model name", "cpu model", "Hardware"):  # x86, MIPS and others; ARM often has none
        if found := _value(proc / "cpuinfo", key):
            return found
    return f"unknown {platform.machine()} CPU"


def _gpu_models(proc: Path) -> tuple[str, ...]:
    """Models of the NVIDIA GPUs that the driver shows, without loading CUDA."""
    files = sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information"))
    return tuple(_value(file, "Model") or "unknown GPU" for file in files)


def _value(file: Path, key: str) -> str:
    """The first value of ``key : value`` lines, empty if there is none."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key and value.strip():
            return " ".join(value.split())[:100]
    return ""
