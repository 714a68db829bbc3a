"""Checks the bandwidth of copies: within each memory node, and to, in and between the GPUs.

The host's part is numpy on every machine; the GPUs' part needs cupy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from headway.common.node.memory_nodes import bound_to, memory_nodes
from headway.health.checks.base import GIB, MIB, CheckSettings, Finding
from headway.health.measure.gpus import Gpus, find_gpus
from headway.health.measure.mesh import blame, cells

NUM_BYTES = 64 * MIB
"""Above the last-level cache of one core complex, so that memory is measured."""
GPU_BYTES = 256 * MIB
ROUNDS = 5

Mesh = dict[str, dict[str, float]]
"""Bytes per second of each copy: from, to."""


@dataclass(frozen=True)
class Copies:
    """All copies that were measured."""

    meshes: list[Mesh]
    """One mesh for each kind of copy; all copies of a kind should be equally fast."""
    num_gpus: int
    no_gpus: str = ""
    """Why there is none."""


def check(settings: CheckSettings) -> Finding:
    """Measure every copy, then name what explains the slow ones."""
    gpus = find_gpus()
    copies = Copies([host_copies(), *gpu_copies(gpus)], gpus.count, gpus.missing)
    return judge(copies, settings)


def judge(measured: Copies, settings: CheckSettings) -> Finding:
    """The finding about copies, each compared with those of its kind."""
    meshes = [cells(mesh) for mesh in measured.meshes]
    values: dict[str, float | str] = {
        f"{a} to {b} GiB/s": round(rate / GIB, 2)
        for mesh in meshes
        for (a, b), rate in mesh.items()
    }
    blames = [found for mesh in meshes if not (found := blame(mesh, settings.mesh)).is_none]
    if blames:
        remedy = "check memory modules, PCIe width and NVLink (dmidecode, lspci -vv, nvidia-smi)"
        return Finding(False, "; ".join(map(str, blames)), remedy, values)
    listed = ", ".join(f"{name} {value}" for name, value in list(values.items())[:4])
    count = measured.num_gpus
    of_gpus = f"{count} GPUs (cupy)" if count else f"GPUs not run: {measured.no_gpus}"
    return Finding(True, f"{listed}; host by numpy, {of_gpus}", "", values)


def host_copies() -> Mesh:
    """One thread copies within the memory node of its CPUs."""
    mesh: Mesh = {}
    for number, cpus in memory_nodes().items():
        with bound_to(cpus):
            source = np.ones(NUM_BYTES, dtype=np.uint8)
            target = np.zeros(NUM_BYTES, dtype=np.uint8)
            name = f"memory{number}"
            mesh[name] = {name: best_rate(partial(copy_into, target, source), NUM_BYTES)}
    return mesh


def gpu_copies(gpus: Gpus) -> list[Mesh]:
    """Host to GPU, GPU to host, within each GPU, and between each two: separate kinds of ways."""
    to_gpu: Mesh = {"host": {}} if gpus.count else {}
    to_host: Mesh = {}
    inside: Mesh = {}
    peers: Mesh = {}
    blocks: list[Any] = []
    for index in range(gpus.count):
        with gpus.cupy.cuda.Device(index):
            host = pinned(gpus.cupy, GPU_BYTES)
            block = gpus.cupy.zeros(GPU_BYTES, dtype=gpus.cupy.uint8)
            blocks.append(block)
            other = gpus.cupy.zeros_like(block)
        name = f"gpu{index}"
        to_gpu["host"][name] = _on_gpu(gpus, index, partial(block.set, host))
        to_host[name] = {"host": _on_gpu(gpus, index, partial(block.get, out=host))}
        inside[name] = {name: _on_gpu(gpus, index, partial(copy_into, block, other))}
    for a, b in itertools.permutations(range(gpus.count), 2):
        rate = _on_gpu(gpus, b, partial(copy_into, blocks[b], blocks[a]))
        peers.setdefault(f"gpu{a}", {})[f"gpu{b}"] = rate
    return [mesh for mesh in (to_gpu, to_host, inside, peers) if mesh]


def pinned(cupy: Any, num_bytes: int) -> Any:
    """Host memory that the GPU reads directly; pageable memory would measure a further copy."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(num_bytes), dtype=np.uint8, count=num_bytes)


def copy_into(target: Any, source: Any) -> None:
    target[:] = source


def best_rate(copying: Callable[[], object], num_bytes: int) -> float:
    """Bytes per second of the fastest of some rounds after a first one, which maps the pages."""
    copying()
    seconds = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        copying()
        seconds.append(time.perf_counter() - began_s)
    return num_bytes / max(min(seconds), 1e-9)


def _on_gpu(gpus: Gpus, index: int, copying: Callable[[], object]) -> float:
    device = gpus.cupy.cuda.Device(index)

    def finished() -> None:
        copying()
        device.synchronize()

    with device:
        return best_rate(finished, GPU_BYTES)
