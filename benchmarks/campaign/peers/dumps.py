"""Writes a played trace as dumps of torch's flight recorder, as NCCL's ranks would leave them.

Format: ``torch/csrc/distributed/c10d/FlightRecorder.hpp``, version 2.10, as JSON. Only layouts
without a pipeline are written: tools number the messages of a pipeline in different ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.common.plan.collectives import GroupKind
from headway.health.diagnosis.positions import Position

from benchmarks.campaign.faults import HOST, Trace, draw
from benchmarks.campaign.play import Player
from benchmarks.campaign.program import group_of
from benchmarks.campaign.scene import name_of, scene_at
from benchmarks.campaign.truth import truth_of

KINDS = frozenset({*HOST, "device", "op", "size"})
"""Faults after which every rank can still write its dump."""
VERSION = "2.10"
PREFIX = "dump_"
FAULT_LOG = "fault_injection.log"
START_NS = 1_700_000_000_000_000_000
_NAMES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_all_gather_base"}


@dataclass(frozen=True, slots=True)
class Case:
    """A folder of dumps, and who is at fault."""

    name: str
    kind: str
    folder: Path
    culprits: frozenset[int]
    source: str
    """``played`` or ``recorded``."""

    @property
    def prefix(self) -> str:
        """What the names of its dumps begin with, before the rank."""
        return PREFIX if self.source == "played" else "_dump_"


def played_cases(folder: Path, count: int, first: int, most: int) -> Iterator[Case]:
    """The first ``count`` seeds from ``first`` on with a fault that such dumps show for certain."""
    seed, found = first - 1, 0
    while found < count:
        seed += 1
        trace = draw(seed, most, clean=0.0)
        kinds = set(trace.faults.values())
        if trace.layout.pp > 1 or trace.stuck or not kinds or not kinds <= KINDS:
            continue
        on_device = kinds == {"device"} or trace.on_device
        trace.on_device = on_device
        played = Player(trace.programs, trace.sizes, seed, 0.02, trace.halts, trace.stuck).play()
        truth = truth_of(trace, played, sorted(trace.programs))
        if not truth.can_be_known or not truth.culprits:
            continue
        found += 1
        scene = scene_at(trace, played, played.end_s + 5.0, frozenset(), frozenset())
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        for rank, position in scene.positions.items():
            (place / f"{PREFIX}{rank}").write_text(json.dumps(_dump(trace, rank, position)))
        yield Case(f"seed {seed}", trace.kind, place, truth.culprits, "played")


def recorded_cases(folder: Path) -> Iterator[Case]:
    """Folders of recorded dumps, each with the log of the faults that were put in, as in
    nvidia-resiliency-ext's ``tests/attribution/unit/fr_traces``."""
    for log in sorted(folder.glob(f"*/{FAULT_LOG}")):
        text = log.read_text()
        ranks = json.loads(text.partition("Fault ranks:")[2].splitlines()[0])
        kind = text.rpartition("fault_type:")[2].strip()
        yield Case(log.parent.name, kind, log.parent, frozenset(ranks), "recorded")


def _dump(trace: Trace, rank: int, position: Position) -> dict[str, Any]:
    names = {name_of(key): key for key in trace.sizes if key[0] is not GroupKind.EVERY_RANK}
    config, number_of = {}, {}
    for number, (name, key) in enumerate(sorted(names.items())):
        members = group_of(trace.layout.grid, key)
        if rank in members:
            number_of[name] = number
            config[name] = {"name": name, "desc": key[0].name, "ranks": str(list(members))}
    pending = {(one.group, one.sequence): one.has_begun for one in position.pending}
    entries = []
    for record, ((group, sequence), operation) in enumerate(position.operations.items()):
        size = max(1, operation.num_elements)
        num_members = trace.sizes[names[group]]
        sizes = {"reduce_scatter": (size * num_members, size),
                 "all_gather": (size, size * num_members)}  # fmt: skip
        taken, given = sizes.get(operation.name, (size, size))
        at_ns = START_NS + record * 1_000_000
        is_done = (group, sequence) not in pending
        # without TORCH_NCCL_ENABLE_TIMING a recorder does not know what has begun
        has_begun = position.knows_starts and (is_done or bool(pending[group, sequence]))
        entries.append({
            "record_id": record,
            "pg_id": number_of[group],
            "process_group": [group, names[group][0].name],
            "collective_seq_id": sequence,
            "p2p_seq_id": 0,
            "op_id": sequence,
            "profiling_name": f"nccl:{_NAMES.get(operation.name, operation.name)}",
            "time_created_ns": at_ns,
            "input_sizes": [[taken]],
            "input_dtypes": ["Float"],
            "output_sizes": [[given]],
            "output_dtypes": ["Float"],
            "state": "completed" if is_done else "started" if has_begun else "scheduled",
            "time_discovered_started_ns": at_ns + 1000 if has_begun else None,
            "time_discovered_completed_ns": at_ns + 2000 if is_done else None,
            "retired": is_done,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "frames": [],
        })  # fmt: skip
    return {"version": VERSION, "rank": rank, "pg_config": config, "entries": entries}
