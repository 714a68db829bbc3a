"""The predicted memory of a run's ranks, and whether this machine has it."""

from __future__ import annotations

import shutil
from pathlib import Path

from headway.common.errors import InputError
from headway.common.plan.memory import RankMemory, describe, predict_all, size
from headway.console.machine.preflight import SHM, shared_bytes
from headway.trainer.client import resolve_auto
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape

MEMINFO = Path("/proc/meminfo")
ON_CPU = (
    "on a CPU the process uses more: the allocator keeps freed tensors (1.6 to 2.8 times as much "
    "was measured with models of 16 to 77 MiB)"
)
"""Not a bound: what fragmentation costs depends on the sizes of all tensors."""


def predictable(config: RunConfig) -> RunConfig | str:
    """The configuration without ``auto``, or why neither memory nor traffic is predicted."""
    if config.model.architecture.own_block is not None:
        return "the layers are your own (model.block)"
    try:
        return resolve_auto(config, ranks=config.parallel.world_size)[0]
    except InputError as error:
        return f"this machine would refuse the run: {error}"


def memory_report(config: RunConfig) -> list[str]:
    """Lines for ``--dry-run``: the worst rank with its parts, each pipeline rank, warnings.

    ``config`` is ``predictable``.
    """
    ranks = predict_all(memory_shape(config))
    most = max(ranks, key=lambda memory: memory.total)
    line = (
        f"predicted tensors of a rank ({config.train.dtype} on {config.train.device}): "
        f"{size(most.total)} at pp rank {most.pp_rank}: {describe(most)}; snapshots in shared "
        f"memory {size(most.snapshots)}"
    )
    on_cpu = [] if config.train.device == "gpu" else [ON_CPU]
    return [line, *_table(ranks), *on_cpu, *memory_warnings(config, ranks)]


def memory_warnings(config: RunConfig, ranks: list[RankMemory] | None = None) -> list[str]:
    """What this machine has too little of for all ranks together; ``auto`` must be resolved.

    The ranks of all emulated nodes are here. Snapshots are memory too, on top of the ranks' own.
    """
    if config.model.architecture.own_block is not None:
        return []
    ranks = predict_all(memory_shape(config)) if ranks is None else ranks
    replicas = config.parallel.tp * config.parallel.dp
    on_cpu = config.train.device != "gpu"
    snapshots = shared_bytes(config)
    need = snapshots + on_cpu * replicas * sum(memory.total for memory in ranks)
    found, free = [], _available()
    if free is not None and need > free:
        found.append(
            f"warning: the ranks need {size(need)} of this machine together, snapshots included; "
            f"{size(free)} are available"
        )
    there = shutil.disk_usage(SHM).free
    if snapshots > there:
        found.append(f"warning: the snapshots need {size(snapshots)} of {SHM}, {size(there)} free")
    return found


def memory_table(config: RunConfig) -> list[dict[str, int]]:
    """The prediction of each pipeline rank as data; ``config`` is ``predictable``."""
    return [
        {
            "pp_rank": memory.pp_rank,
            **memory.parts(),
            "total": memory.total,
            "snapshots": memory.snapshots,
            "in_flight": memory.in_flight,
        }
        for memory in predict_all(memory_shape(config))
    ]


def _table(ranks: list[RankMemory]) -> list[str]:
    names = ("parameters", "gradients", "optimizer", "activations", "messages", "working", "total")
    rows = [["pp rank", *names, "in flight"]]
    for memory in ranks:
        cells = [size(getattr(memory, name)) for name in names]
        rows.append([str(memory.pp_rank), *cells, str(memory.in_flight)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _available() -> int | None:
    """Memory that this machine can still give, in bytes."""
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return None
