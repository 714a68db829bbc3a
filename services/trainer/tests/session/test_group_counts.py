"""After any step each rank's group table holds what the plan of its layout says, on all members."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import WAITING
from headway.common.node.group_table import GroupCount
from headway.common.plan.collectives import Op, kind_of, members
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

from services.trainer.tests.session.planned_counts import planned_counts

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3
LIMIT_S = 20.0
Table = dict[int, GroupCount]


def layouts() -> list[tuple[str, str, dict[str, Any]]]:
    """Every grid under the schedules that apply, the interleaved one, tied models and lamb."""
    found = [
        (grid, schedule, {})
        for grid in GRIDS
        for schedule in ("gpipe", "1f1b", "zb-h1", "zb-v")
        if "pp" in grid or schedule == "1f1b"
    ]
    found += [(grid, "interleaved", {}) for grid in ("pp2", "tp2xpp2", "pp2xdp2")]
    tied = {"model": {"preset": "llama", "kv_heads": 2, "tied": True}}
    found += [(grid, "1f1b", tied) for grid in ("pp2", "tp2xpp2", "dp2")]
    found += [("pp2", "zb-v", tied)]
    found += [("pp2", "interleaved", tied), ("tp2xdp2", "1f1b", {"model": {"block": "parallel"}})]
    found += [("tp2xpp2", "zb-h1", {"model": {"block": "parallel"}})]
    found += [("tp2xpp2", "1f1b", {"optim": {"name": "lamb"}})]
    whole = {"parallel": {"tp_keep": "whole"}}
    found += [("tp2xpp2", "zb-h1", whole), ("tp2xdp2", "1f1b", whole)]
    unequal = {"train": {"global_batch_size": 14}}
    found += [("pp2xdp2", "1f1b", unequal), ("dp4", "1f1b", unequal)]
    return found


class Tables(StepHooks):
    """The rank's table after each step."""

    def __init__(self, reader: FlightReader) -> None:
        self._reader = reader
        self.after: list[Table] = []

    def on_step(self, result: StepResult) -> None:
        del result
        # the gathers for the next step are under way
        assert wait_until(
            lambda: all(one.entered == one.done for one in self._reader.groups()), LIMIT_S
        )
        self.after.append({one.line: one for one in self._reader.groups()})


def train(config: RunConfig, folder: Path) -> list[list[Table]]:
    """By rank the tables after each of ``STEPS`` steps."""
    grid = config.parallel.grid
    writers = [
        FlightWriter.create(folder / f"flight-{rank}.bin", rank, 4096)
        for rank in range(grid.world_size)
    ]

    def member(groups: Groups) -> list[Table]:
        rank = groups.every_rank.rank
        session = Session(
            config, rank, data_factory=synthetic(config, rank), recorder=writers[rank]
        )
        hooks = Tables(FlightReader(folder / f"flight-{rank}.bin"))
        session.join(groups)
        session.load("init")
        session.run(hooks, STEPS)
        session.leave()
        return hooks.after

    tables = [writer.table for writer in writers]
    try:
        return over_gloo(grid, member, tables, joins_ends=config.exchanges_table)
    finally:
        for writer in writers:
            writer.close()


def test_there_are_24_layouts_or_more() -> None:
    assert len(layouts()) >= 24


@pytest.mark.parametrize(("grid", "schedule", "more"), layouts(), ids=str)
def test_the_tables_hold_what_the_plan_says(
    grid: str, schedule: str, more: dict[str, Any], tmp_path: Path
) -> None:
    parallel = {**GRIDS[grid], "schedule": schedule}
    if schedule == "interleaved":
        parallel["vp"] = 2
    settings = small_run("fp32", parallel=parallel, world_size=math.prod(GRIDS[grid].values()))
    settings["train"]["eval_every"] = 0
    for table, values in more.items():
        settings[table] |= values
    config = from_dict(RunConfig, settings)
    found = train(config, tmp_path)
    for rank, tables in enumerate(found):
        plan = planned_counts(config, rank)
        for before, after in itertools.pairwise(tables):
            grown = {line: one.entered - before[line].entered for line, one in after.items()}
            assert {line: count for line, count in grown.items() if count} == plan, rank
        for table in tables:
            assert all(one.entered == one.done for one in table.values()), rank
            assert not any(one.is_broken for one in table.values())
    for step in range(STEPS):
        _check_members(config, [tables[step] for tables in found])


@pytest.mark.parametrize(("grid", "more"), [("tp2xpp2", {}), ("dp2", {"optim": {"name": "lamb"}})])
def test_each_wait_names_the_collective_that_it_waits_for(
    grid: str, more: dict[str, Any], tmp_path: Path
) -> None:
    parallel = {**GRIDS[grid], "schedule": "1f1b"}
    settings = small_run("fp32", parallel=parallel, world_size=math.prod(GRIDS[grid].values()))
    settings["train"]["eval_every"] = 0
    for table, values in more.items():
        settings[table] |= values
    config = from_dict(RunConfig, settings)
    train(config, tmp_path)
    found: dict[int, set[tuple[str, str]]] = {}
    for rank in range(config.parallel.world_size):
        rows = FlightReader(tmp_path / f"flight-{rank}.bin").snapshot()
        waits = rows[rows["flags"] & WAITING > 0]
        for row in waits[waits["line"] > 0]:
            names = (kind_of(int(row["line"])).name, Op(int(row["op"])).name)
            found.setdefault(int(row["kind"]), set()).add(names)
    sums = {("EVERY_RANK", "ALL_REDUCE")}
    wanted = {Kind.SUMS: sums, Kind.AGREEMENT: sums}
    if grid == "dp2":
        wanted[Kind.REDUCE_SCATTER] = {("DP", "REDUCE_SCATTER")}
        wanted[Kind.ALL_GATHER] = {("DP", "ALL_GATHER"), ("STAGE", "ALL_REDUCE")}
    else:
        wanted[Kind.TENSOR_PARALLEL] = {("TP", "ALL_GATHER"), ("TP", "REDUCE_SCATTER")}
        wanted[Kind.RECV_FORWARD] = {("FORWARD", "RECV")}
        wanted[Kind.RECV_BACKWARD] = {("BACKWARD", "RECV")}
    assert {kind: found.get(kind) for kind in wanted} == wanted


def _check_members(config: RunConfig, tables: list[Table]) -> None:
    """All members of a group, and both ends of messages, have counted as many."""
    counts: dict[int, dict[int, int]] = {}
    for rank, table in enumerate(tables):
        for one in table.values():
            counts.setdefault(one.group, {})[rank] = one.entered
            assert one.op in list(Op) if one.entered else one.op == 0
    for group, by_rank in counts.items():
        assert set(by_rank) == set(members(config.parallel.grid, group))
        assert len(set(by_rank.values())) == 1, (hex(group), by_rank)
