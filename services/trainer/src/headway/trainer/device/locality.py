"""Keeps a rank on the CPUs next to its GPU, where its memory and its network adapters are, too.

A machine with several sockets has a memory node for each, and each GPU and adapter belongs to one.
A thread that runs on another node launches kernels and copies snapshots over the link between
sockets. Memory that a bound thread touches first comes from its own node, as is Linux's default
policy, so that page-locked slots and batches follow without more.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch
from headway.common.log import get_logger
from headway.common.node.memory_nodes import parse_cpus

SYSFS = Path("/sys")

log = get_logger("device")


@dataclass(frozen=True)
class Locality:
    """What is next to a device, as the kernel says (Documentation/ABI/testing/sysfs-bus-pci)."""

    memory_node: int
    """-1 on a machine that has only one."""
    cpus: frozenset[int]
    nics: tuple[str, ...]
    """InfiniBand and RoCE adapters of the same memory node."""


def locality_of(address: str, sysfs: Path = SYSFS) -> Locality | None:
    """The locality of the PCI device with this address, ``0000:1b:00.0``; None: not known."""
    folder = sysfs / "bus/pci/devices" / address
    try:
        node = int((folder / "numa_node").read_text())
        cpus = parse_cpus((folder / "local_cpulist").read_text())
    except (OSError, ValueError):
        return None
    adapters = sorted((sysfs / "class/infiniband").glob("*"))
    nics = tuple(one.name for one in adapters if _memory_node(one / "device") == node)
    return Locality(node, cpus, nics)


def bind_near(address: str, sysfs: Path = SYSFS) -> frozenset[int]:
    """Keep the calling thread, and those that it starts, on the allowed CPUs next to a device.

    Nothing changes where that is not known, or where none of them is allowed (by Slurm, a container
    or taskset), which is logged. Returns the CPUs that were allowed before, for ``unbind``.
    """
    before = frozenset(os.sched_getaffinity(0))
    found = locality_of(address, sysfs)
    if found is None:
        log.warning("the GPU's place is not known: not bound to its CPUs", address=address)
        return before
    near = found.cpus & before
    if not near:
        log.warning("no CPU next to the GPU is allowed", address=address, cpus=len(before))
    else:
        os.sched_setaffinity(0, near)
        fields = {"memory_node": found.memory_node, "cpus": len(near), "nics": found.nics}
        log.info("bound to the CPUs next to the GPU", address=address, **fields)
    return before


def unbind(before: AbstractSet[int]) -> None:
    """Let the calling thread run where it could before ``bind_near``."""
    os.sched_setaffinity(0, before)


def pci_address(device: torch.device) -> str:
    """The address of a GPU on the PCI bus."""
    found = torch.cuda.get_device_properties(device)
    where = found.pci_domain_id, found.pci_bus_id, found.pci_device_id  # type: ignore[attr-defined]
    return "{:04x}:{:02x}:{:02x}.0".format(*where)


def _memory_node(device: Path) -> int | None:
    try:
        return int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
