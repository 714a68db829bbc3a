"""Faults inside a rank leave evidence of it: in its records, its group table, the run's steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import BROKEN, WAITING
from headway.common.node.group_table import GroupCount
from headway.common.node.run_dir import NodePaths
from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.common.wire.messages.health import Verdict
from headway.console.live.findings import Findings
from headway.console.run import Run
from headway.health.client import diagnose_run
from headway.health.journal import read_verdicts
from headway.testkit.journal import query

from benchmarks.drill import look
from benchmarks.drill.rig import Rig

LIMIT_S = 60.0
RANK = 1
LAYOUT = (
    "parallel.tp=1", "parallel.pp=1", "parallel.dp=2", "launch.nodes=1",
    "launch.ranks_per_node=2", "launch.spares=0", "recovery.hang_act_s=3",
    "health.digest_every=4",
)  # fmt: skip

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch, Rig() as rig:
        patch.chdir(Path(__file__).resolve().parents[2])
        launched = rig.launch("inside", *LAYOUT)
        yield launched
        rig.finish(launched)


def struck(run: Run, fault: str, seconds: float = 0.0) -> int:
    """Break rank 1 of a healthy run; returns the step at which it was healthy."""
    step = look.healthy(run, 4).step
    run.inject(fault, rank=RANK, duration_s=seconds)
    return step


def ring(run: Run, rank: int) -> FlightReader:
    return FlightReader(NodePaths(run.folder.run_id, 0).segment("flight", rank))


def table(run: Run, rank: int, kind: GroupKind) -> GroupCount:
    """Its line of this kind, once it has one: between two generations it has none."""
    found: list[GroupCount] = []

    def is_there() -> bool:
        found[:] = [one for one in ring(run, rank).groups() if one.line == 2 * kind]
        return bool(found)

    until(is_there)
    return found[0]


def until(found: Callable[[], object]) -> None:
    assert wait_until(lambda: bool(found()), LIMIT_S, every_s=0.02)


@pytest.mark.parametrize(("fault", "shown"), [("nan", "skipped = 1"), ("flip", "grad_norm > 1e6")])
def test_a_wrong_gradient_shows_in_one_step_of_all_ranks(run: Run, fault: str, shown: str) -> None:
    step = struck(run, fault)
    sql = f"SELECT step FROM course WHERE {shown} AND step >= ?"
    until(lambda: query(run, sql, (step,)))
    assert len(query(run, sql, (step,))) == 1, "one step, and it goes on"
    look.healthy(run, step + 6)


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        ("nan", "not_finite", r"the first value .* in the gradient of [\w.]+, of rank 1"),
        ("flip_weight", "silent_corruption", r"the weights of [\w.]+, of rank 1, differ from .*"),
    ],
)
def test_wrong_numbers_are_named_by_rank_and_tensor(
    run: Run, fault: str, kind: str, sentence: str
) -> None:
    struck(run, fault)

    def named() -> list[Verdict]:
        return [one for one in read_verdicts(run.folder.verdicts) if one.kind == kind]

    until(named)
    assert {(one.rank, one.node, one.action) for one in named()} == {(RANK, 0, "observe")}
    found = diagnose_run(run.folder.verdicts.parent, run.folder.summaries).found
    assert any(re.fullmatch(sentence, one.summary) for one in found)
    until(lambda: any(re.fullmatch(sentence, one) for one in Findings(run).update()))


def test_collections_of_garbage_are_records_of_their_rank(run: Run) -> None:
    step = struck(run, "gc", 2.0)

    def collections(rank: int) -> int:
        rows = ring(run, rank).snapshot()
        return int(((rows["kind"] == Kind.GARBAGE_COLLECTION) & (rows["step"] >= step - 1)).sum())

    until(lambda: collections(RANK) >= 3)
    assert collections(0) < 3


def test_a_held_interpreter_lock_stops_the_life_of_the_process(run: Run) -> None:
    struck(run, "gil", 3.0)
    seen: dict[int, int] = {}

    def stands() -> bool:
        """One rank's count stands while the other's goes on."""
        lives = {rank: ring(run, rank).header.alive for rank in (0, RANK)}
        has_moved = lives[0] > seen.get(0, lives[0])
        stands = lives[RANK] == seen.get(RANK, -1)
        seen.update(lives)
        return has_moved and stands and ring(run, 0).header.is_waiting

    assert wait_until(stands, LIMIT_S, every_s=1.0)
    look.healthy(run, 4)


@pytest.mark.parametrize("fault", ["hang", "hang_before_collective", "hang_in_data"])
def test_a_hanging_main_thread_is_behind_in_the_table_and_is_the_one_replaced(
    run: Run, fault: str
) -> None:
    before = look.healthy(run, 4)
    pids = {one.rank: one.pid for one in before.ranks}
    known = len(read_verdicts(run.folder.path / "verdicts.jsonl"))
    struck(run, fault)
    until(lambda: table(run, 0, GroupKind.DP).entered > table(run, RANK, GroupKind.DP).entered)
    after = look.healthy(run, before.step + 8, fallen={pids[RANK]})
    replaced = {one.rank for one in after.ranks if pids[one.rank] != one.pid}
    assert replaced == {RANK}
    news = read_verdicts(run.folder.path / "verdicts.jsonl")[known:]
    assert {one.rank for one in news if one.kind == "silence"} == {RANK}


@pytest.mark.parametrize("fault", ["skip", "mismatch"])
def test_a_collective_left_out_or_of_another_size_is_a_record_of_its_rank(
    run: Run, fault: str
) -> None:
    """The group table shows it, too, but only until the next generation begins."""
    step = struck(run, fault)

    def odd(rank: int) -> int:
        rows = ring(run, rank).snapshot()
        is_here = (rows["kind"] == Kind.REDUCE_SCATTER) & (rows["step"] >= step)
        ours = rows[is_here & (rows["flags"] & WAITING == 0) & (rows["end_ns"] > 0)]
        if fault == "skip":  # one that the end of its generation kept from being issued has no line
            return int((ours[ours["flags"] & BROKEN == 0]["line"] == 0).sum())
        # the odd one may be broken itself: the other rank can be the first to fail
        chunks = [ours[ours["chunk"] == chunk]["nbytes"] for chunk in set(ours["chunk"])]
        return sum(int((sizes < sizes.max()).sum()) for sizes in chunks)

    until(lambda: odd(RANK))
    look.healthy(run, step + 6)
    assert (odd(0), odd(RANK)) == (0, 1)
