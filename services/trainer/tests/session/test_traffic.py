"""The bytes that a step is predicted to send are those that its collectives and messages have."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.node.group_table import TABLE_BYTES, GroupLine, GroupTable
from headway.common.plan.collectives import GroupKind, Op, kind_of
from headway.common.plan.traffic import step_traffic
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import FAMILIES, GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")
LANES = {
    GroupKind.FORWARD: "pipeline",
    GroupKind.FORWARD_WRAP: "pipeline",
    GroupKind.BACKWARD: "pipeline",
    GroupKind.BACKWARD_WRAP: "pipeline",
    GroupKind.TIED_TABLE: "tied table",
    GroupKind.TIED_GRADIENT: "tied table",
}
ON_A_RING = {Op.ALL_GATHER: 1, Op.REDUCE_SCATTER: 1, Op.ALL_REDUCE: 2}
"""How often each piece of the tensor travels to every other member."""
Layout = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
LAYOUTS: list[Layout] = [
    ("tp2xpp2xdp2", {}, {}, {}),
    ("tp2xpp2", {"schedule": "zb-h1"}, {}, {}),
    ("tp2xpp2", {"schedule": "zb-h1"}, {"block": "parallel"}, {}),
    ("tp2xpp2", {"schedule": "zb-h1"}, FAMILIES["neox"], {}),
    ("tp2xpp2", {"schedule": "zb-v"}, {}, {}),
    ("pp2xdp2", {"schedule": "zb-v"}, FAMILIES["tied llama"], {}),
    ("tp2", {"tp_keep": "whole"}, {}, {}),
    ("tp2", {}, {"block": "parallel"}, {"recompute": "full"}),
    ("tp2", {}, FAMILIES["neox"], {"recompute": "selective"}),
    ("tp2", {}, FAMILIES["gpt2"], {"recompute": "full", "recompute_layers": [1]}),
    ("tp2xdp2", {}, FAMILIES["qwen3"], {}),
    ("tp2xdp2", {"grad_reduce": "bf16"}, {}, {}),
    ("pp2xdp2", {"schedule": "interleaved", "vp": 2}, FAMILIES["tied llama"], {}),
]


class Sent(StepHooks):
    """Bytes that one rank has sent until the end of each step, by the kind of group."""

    def __init__(self, lines: dict[int, GroupLine], nbytes: Counter[int]) -> None:
        self._lines, self._nbytes = lines, nbytes
        self.after: list[Counter[GroupKind]] = []

    def on_step(self, result: StepResult) -> None:
        del result
        found: Counter[GroupKind] = Counter()
        for line in self._lines.values():
            found[kind_of(line.line)] += self._nbytes[id(line)]
        self.after.append(found)


def sent_in_a_step(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that all ranks send in the second step: by axis, where its collectives are rings."""
    grid, nbytes = config.parallel.grid, Counter[int]()
    enter = GroupLine.enter

    def counting(line: GroupLine, op: int, size: int) -> int:
        kind = kind_of(line.line)
        if kind in LANES and op == Op.SEND:
            nbytes[id(line)] += size
        elif kind in (GroupKind.TP, GroupKind.DP, GroupKind.PP) and op in ON_A_RING:
            members = {"TP": grid.tp, "DP": grid.dp, "PP": grid.pp}[kind.name]
            nbytes[id(line)] += ON_A_RING[Op(op)] * size * (members - 1) // members
        return enter(line, op, size)

    def member(groups: Groups) -> Counter[GroupKind]:
        rank = groups.every_rank.rank
        session = Session(config, rank, data_factory=synthetic(config, rank))
        hooks = Sent(groups.lines, nbytes)
        session.join(groups)
        session.load("init")
        session.run(hooks, 2)
        session.leave()
        first, second = hooks.after
        return second - first

    monkeypatch.setattr(GroupLine, "enter", counting)
    words = [memoryview(bytearray(TABLE_BYTES)).cast("Q") for _ in range(grid.world_size)]
    tables = [GroupTable(one) for one in words]
    found: Counter[str] = Counter()
    for counted in over_gloo(grid, member, tables, joins_ends=config.exchanges_table):
        for kind, size in counted.items():
            found[LANES.get(kind, kind.name.lower())] += size
    return dict(found)


@pytest.mark.parametrize(("grid", "parallel", "model", "train"), LAYOUTS, ids=str)
def test_a_step_sends_the_bytes_that_its_layout_says(
    grid: str,
    parallel: dict[str, Any],
    model: dict[str, Any],
    train: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parallel = {**GRIDS[grid], "buckets": 1, **parallel}
    settings = small_run("fp32", parallel=parallel, world_size=math.prod(GRIDS[grid].values()))
    settings["model"] |= model
    settings["train"] |= {"eval_every": 0, **train}
    config = from_dict(RunConfig, settings)
    planned: Counter[str] = Counter()
    traffic = step_traffic(memory_shape(config))
    for ring in traffic.rings:
        members = config.parallel.tp * config.parallel.dp
        planned[ring.axis] += members * sum(ring.nbytes)
    for lane in traffic.lanes:
        planned[lane.use] += config.parallel.tp * config.parallel.dp * lane.nbytes
    assert sent_in_a_step(config, monkeypatch) == {use: n for use, n in planned.items() if n}
