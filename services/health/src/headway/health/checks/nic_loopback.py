"""Checks that each NIC's address carries bytes to itself, from each memory node and each GPU.

This is a form for plain sockets of the loopback test of MegaScale, section 4.3 (arXiv
2402.15627): the kernel passes what a machine sends to its own address through memory, so the CPUs,
the memory nodes and the paths to the GPUs are measured, and not the NIC's own port, which is left
to ``headway health pairwise``. GPU buffers need cupy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from headway.common.node.memory_nodes import memory_nodes
from headway.common.output import counted
from headway.health.checks.base import MIB, CheckSettings, Finding, not_run
from headway.health.judgement import Thresholds
from headway.health.measure.gpus import Gpus, find_gpus
from headway.health.measure.mesh import blame, cells, slow_cells
from headway.health.measure.nics import nics
from headway.health.measure.streams import Received, Via, best_transfer, same

NUM_BYTES = 32 * MIB
GPU_BYTES = 8 * MIB


Mesh = dict[str, dict[str, Received]]
"""NIC -> memory, or other NIC -> what arrived."""


class Memory(NamedTuple):
    """Where the bytes of a stream begin and end."""

    name: str
    cpus: Collection[int]
    via: Via
    num_bytes: int


def check(settings: CheckSettings) -> Finding:
    """Measure every NIC with every memory, then name what explains the slow ones."""
    found = nics()
    if not found:
        return not_run("no network interface is up and has an address")
    meshes = [
        mesh
        for memories in (host_memories(), gpu_memories(find_gpus()))
        if (mesh := _measure(found, memories, settings.mesh))
    ]
    return judge(meshes, settings)


def judge(measured: list[Mesh], settings: CheckSettings, how: str = "from itself") -> Finding:
    """The finding about meshes whose cells are compared within each only."""
    meshes = [cells(mesh) for mesh in measured]
    ways = {cell: received for mesh in meshes for cell, received in mesh.items()}
    values: dict[str, float | str] = {
        f"{a} {b} MiB/s": round(received.bytes_per_s / MIB, 1) for (a, b), received in ways.items()
    }
    damaged = [f"{a} {b}" for (a, b), received in ways.items() if received.num_damaged]
    if damaged:
        message = f"bytes changed on the way: {', '.join(damaged)}"
        return Finding(False, message, "drain the node: memory, GPU or kernel fault", values)
    rates = [{cell: one.bytes_per_s for cell, one in mesh.items()} for mesh in meshes]
    blames = [found for mesh in rates if not (found := blame(mesh, settings.mesh)).is_none]
    if blames:
        remedy = "check its slot, cable and firmware (lspci -vv, ethtool, nvidia-smi topo -m)"
        return Finding(False, "; ".join(map(str, blames)), remedy, values)
    slowest = min(received.bytes_per_s for received in ways.values()) / MIB
    return Finding(
        True, f"{counted(len(ways), 'way')} {how}, the slowest {slowest:.0f} MiB/s", "", values
    )


def host_memories() -> list[Memory]:
    return [Memory(f"memory{n}", cpus, same, NUM_BYTES) for n, cpus in memory_nodes().items()]


def gpu_memories(gpus: Gpus) -> list[Memory]:
    return [Memory(f"gpu{n}", (), through_gpu(gpus.cupy, n), GPU_BYTES) for n in range(gpus.count)]


def through_gpu(cupy: object, index: int) -> Callable[[bytes | bytearray], bytes]:
    """Copy each block to the GPU and back."""

    def via(block: bytes | bytearray) -> bytes:
        with cupy.cuda.Device(index):  # type: ignore[attr-defined]
            on_gpu = cupy.asarray(np.frombuffer(block, dtype=np.uint8))  # type: ignore[attr-defined]
            return bytes(on_gpu.get().tobytes())

    return via


def _measure(found: dict[str, str], memories: list[Memory], thresholds: Thresholds) -> Mesh:
    """Empty without memories."""
    by_name = {memory.name: memory for memory in memories}

    def measure(nic: str, memory: str) -> Received:
        address, (_, cpus, via, num_bytes) = found[nic], by_name[memory]
        return best_transfer(num_bytes, address, address, cpus, via)

    mesh = (
        {nic: {name: measure(nic, name) for name in by_name} for nic in found} if memories else {}
    )
    return confirmed(mesh, measure, thresholds)


def confirmed(mesh: Mesh, measure: Callable[[str, str], Received], thresholds: Thresholds) -> Mesh:
    """Measure the slow ways of a mesh once more, and keep the better result of the two.

    Other work on the machine slows single transfers, too, but seldom the same ones twice.
    """
    rates = {cell: one.bytes_per_s for cell, one in cells(mesh).items()}
    for a, b in slow_cells(rates, thresholds):
        first, again = mesh[a][b], measure(a, b)
        best = max(first, again, key=lambda one: one.bytes_per_s)
        mesh[a][b] = replace(best, num_damaged=first.num_damaged + again.num_damaged)
    return mesh
