"""A rank that stays slow is named while the run trains, with its cause, and nobody else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import AgentBeat, Finding
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.config import HealthConfig
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.responses import response
from headway.health.slowness.live import LiveSlowness
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID
from hypothesis import given, settings
from hypothesis import strategies as st

from services.health.tests.slowness.live_run import RANKS_PER_NODE, LiveRun, facts, messages
from services.health.tests.slowness.played_steps import (
    DP_LINE,
    FIRST,
    PASSES_US,
    RECEIVED,
    TP_LINE,
    PlayedSteps,
)

PP2_DP4 = Grid(pp=2, dp=4)
SINCE = 60
WITHIN = 20


def played(grid: Grid = PP2_DP4, num_steps: int = SINCE + 60, seed: int = 0) -> PlayedSteps:
    return PlayedSteps(grid, num_steps, seed)


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0])
@pytest.mark.parametrize("rank", [0, 5])
def test_a_slow_rank_is_named_within_twenty_steps_and_so_is_its_end(
    rank: int, factor: float
) -> None:
    steps = played(seed=rank)
    steps.own_us[SINCE : SINCE + 30, rank] *= factor
    run = LiveRun(PP2_DP4).run(steps)
    (step, named, said), (ended, _, over) = run.said()
    assert SINCE < step < SINCE + WITHIN
    assert named == rank
    assert said.startswith(f"rank {rank} computes slower than its peers: ")
    assert SINCE + 30 <= ended < SINCE + 30 + WITHIN
    assert over == f"rank {rank} is as fast as usual again"
    verdict = run.reported[0][1]
    assert (verdict.kind, verdict.cause, verdict.subject) == ("slow_rank", "compute", "rank")
    assert (verdict.node, response(verdict)) == (rank // 2, "observe")


def test_a_verdict_says_since_when_how_sure_and_what_else_it_may_be() -> None:
    steps = played()
    steps.own_us[SINCE:, 5] *= 1.2
    run = LiveRun(PP2_DP4).run(steps)
    [(_, verdict)] = run.reported
    assert verdict.since_unix_s == SINCE + 1, "when that step was reported"
    assert verdict.confidence >= 0.9
    assert verdict.alternatives
    assert "node 2" in verdict.remedy
    found = diagnosis_of(verdict)
    assert (found.kind, found.since_step) == ("slow", FIRST + SINCE)
    assert [str(one) for one in found.culprits] == ["rank 5 on node 2"]


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("data_us", "data"), ("snapshot_us", "checkpoint_write"), ("other_us", "host_stall"),
        ("collection_us", "garbage_collection"),
    ],
)  # fmt: skip
def test_what_a_rank_does_beside_its_passes_is_the_cause(part: str, cause: str) -> None:
    steps = played()
    getattr(steps, part)[SINCE:, 2] += 0.2 * PASSES_US
    [(step, verdict)] = LiveRun(PP2_DP4).run(steps).reported
    assert (verdict.cause, verdict.rank) == (cause, 2)
    assert step < SINCE + WITHIN


def test_collections_in_every_fourth_step_are_one_verdict() -> None:
    steps = played()
    steps.collection_us[SINCE::4, 2] += 0.8 * PASSES_US
    [(step, verdict)] = LiveRun(PP2_DP4).run(steps).reported
    assert (verdict.cause, verdict.rank) == ("garbage_collection", 2)
    assert step < SINCE + WITHIN


def test_long_transfers_of_a_rank_are_the_network() -> None:
    steps = played()
    steps.waits_us[RECEIVED] = np.full(steps.own_us.shape, 0.05 * PASSES_US)
    steps.waits_us[DP_LINE][SINCE:, 4:] += 0.3 * PASSES_US
    steps.waits_us[RECEIVED][SINCE:, 6] += 0.1 * PASSES_US
    run = LiveRun(PP2_DP4).run(steps)
    assert {(one.cause, one.rank) for _, one in run.reported} == {("network", 6)}
    assert run.reported[0][0] < SINCE + WITHIN


@pytest.mark.parametrize(("step_s", "count"), [(0.05, 0), (0.1, 1)])
def test_a_slowdown_shorter_than_two_seconds_is_no_verdict(step_s: float, count: int) -> None:
    steps = played()
    steps.own_us[SINCE : SINCE + 36, 5] *= 1.5
    run = LiveRun(PP2_DP4, step_s=step_s).run(steps)
    assert len([one for _, one in run.reported if one.is_open]) == count


def test_one_fault_that_has_passed_does_not_hide_the_next_one() -> None:
    steps = played(num_steps=360)
    steps.own_us[200:230, 2] *= 1.8
    steps.own_us[290:, 5] *= 1.3
    run = LiveRun(PP2_DP4).run(steps)
    opened = [(rank, step) for step, rank, said in run.said() if "computes slower" in said]
    assert [rank for rank, _ in opened] == [2, 5]
    assert 290 < opened[1][1] < 290 + WITHIN


def test_at_first_too_little_is_known_of_the_machines_to_name_a_small_slowdown() -> None:
    for factor, until in ((1.3, 100), (2.0, 40)):
        steps = played()
        steps.own_us[10:, 5] *= factor
        (step, _), *_ = LiveRun(PP2_DP4).run(steps).reported
        assert 20 <= step < until


def test_another_cause_revises_the_verdict_once_it_lasts() -> None:
    steps = played(num_steps=SINCE + 100)
    steps.own_us[SINCE : SINCE + 30, 2] *= 1.4
    steps.data_us[SINCE + 30 :, 2] += 0.4 * PASSES_US
    reported = [one for _, one in LiveRun(PP2_DP4).run(steps).reported]
    assert [(one.revision, one.cause, one.is_open) for one in reported] == [
        (0, "compute", True), (1, "data", True)
    ]  # fmt: skip
    assert len({one.id for one in reported}) == 1
    assert facts(reported[1])["since_step"] == facts(reported[0])["since_step"]
    assert reported[1].since_unix_s == reported[0].since_unix_s


def test_two_slow_ranks_have_a_verdict_each() -> None:
    steps = played()
    steps.own_us[SINCE:, 1] *= 1.3
    steps.own_us[SINCE + 5 :, 4] *= 1.5
    assert {one.rank for _, one in LiveRun(PP2_DP4).run(steps).reported} == {1, 4}


def test_a_rank_that_is_slow_from_the_start_is_named_too() -> None:
    steps = played()
    steps.own_us[:, 3] *= 1.3
    [(_, verdict)] = LiveRun(PP2_DP4).run(steps).reported
    assert verdict.rank == 3


# ---- without peers ----------------------------------------------------------------------------
def test_all_replicas_of_a_stage_that_are_slow_together_are_one_verdict_until_that_is_over() -> (
    None
):
    steps = played(num_steps=SINCE + 100)
    steps.own_us[SINCE : SINCE + 40, :4] *= 1.5
    (step, verdict), (ended, over) = LiveRun(PP2_DP4).run(steps).reported
    assert (over.id, over.is_open) == (verdict.id, False), "the others were never slow"
    assert SINCE + 40 < ended < SINCE + 40 + WITHIN
    assert (verdict.rank, verdict.subject, verdict.name) == (-1, "domain", "stage 0")
    assert step < SINCE + WITHIN
    assert [one.rank for one in diagnosis_of(verdict).culprits] == [0, 1, 2, 3]


def test_without_replicas_a_rank_is_held_against_its_own_earlier_time_however_long_it_lasts() -> (
    None
):
    grid = Grid(pp=4)
    steps = played(grid, SINCE + 250)
    steps.own_us[SINCE : SINCE + 200, 2] *= 1.3
    (step, first), (ended, last) = LiveRun(grid).run(steps).reported
    assert (first.rank, first.cause, last.is_open) == (2, "compute", False)
    assert step < SINCE + WITHIN
    assert SINCE + 200 <= ended < SINCE + 200 + WITHIN


@pytest.mark.parametrize("grid", [Grid(pp=4), PP2_DP4, Grid(dp=2)])
def test_what_slows_all_ranks_names_none(grid: Grid) -> None:
    steps = played(grid)
    steps.own_us[SINCE:] *= 2.5
    assert LiveRun(grid).run(steps).reported == []


@pytest.mark.parametrize(("factor", "count"), [(2.5, 0), (4.0, 1)])
def test_a_run_of_one_rank_is_held_against_its_earlier_time(factor: float, count: int) -> None:
    steps = played(Grid())
    steps.own_us[SINCE:] *= factor
    assert len(LiveRun(Grid()).run(steps).reported) == count


def test_without_a_grid_nobody_is_a_peer() -> None:
    steps = played(Grid(pp=2))
    steps.own_us[:, 1] *= 2.0
    steps.own_us[SINCE:, 0] *= 2.5
    assert {one.rank for _, one in LiveRun(None).run(steps).reported} == {0}


def test_tensor_parallel_ranks_are_one_until_it_is_known_for_whom_the_others_wait() -> None:
    grid = Grid(tp=2, dp=4)
    steps = played(grid)
    steps.own_us[SINCE:, 4:6] *= 1.25
    steps.waits_us[TP_LINE] = np.full(steps.own_us.shape, 0.01 * PASSES_US)
    steps.waits_us[TP_LINE][SINCE + 20 :, 4] += 0.25 * PASSES_US
    reported = [one for _, one in LiveRun(grid).run(steps).reported]
    assert [(one.id, one.revision, one.rank) for one in reported] == [
        (reported[0].id, 0, -1), (reported[0].id, 1, 5)
    ]  # fmt: skip
    assert reported[0].name == "tensor-parallel group 2"


# ---- nobody is named --------------------------------------------------------------------------
def _sequences(steps: PlayedSteps, chance: np.random.Generator) -> None:
    longer = chance.random((steps.num_steps, 4)) ** 2
    steps.own_us *= 1 + 0.6 * np.tile(longer, 2)


def _stalls(steps: PlayedSteps, chance: np.random.Generator) -> None:
    hit = chance.integers(0, 8, steps.num_steps)
    steps.own_us[np.arange(steps.num_steps), hit] += 0.5 * PASSES_US


def _busy(steps: PlayedSteps, chance: np.random.Generator) -> None:
    """Each rank loses its core to others now and then, for ten steps or so."""
    for rank in range(8):
        at = 0
        while at < steps.num_steps:
            at += int(chance.exponential(20.0))
            until = at + int(chance.exponential(8.0))
            steps.own_us[at:until, rank] *= chance.uniform(1.0, 1.3)
            at = until
    steps.own_us *= 1 + 1.0 * (np.arange(steps.num_steps) // 100 % 2)[:, None]
    pauses = chance.random(steps.own_us.shape) < 0.02
    steps.other_us[pauses] += 5 * PASSES_US


def _uneven(steps: PlayedSteps, _chance: np.random.Generator) -> None:
    steps.own_us[:, 4:] *= 1.4


@pytest.mark.parametrize("disturb", [_sequences, _stalls, _busy, _uneven])
def test_what_does_not_stay_with_a_rank_is_no_verdict(
    disturb: Callable[[PlayedSteps, np.random.Generator], None],
) -> None:
    steps = played(num_steps=500)
    disturb(steps, np.random.default_rng(0))
    assert LiveRun(PP2_DP4).run(steps).reported == []


def test_steps_too_short_to_compare_name_nobody() -> None:
    steps = played()
    for name in ("own_us", "data_us", "other_us"):
        getattr(steps, name)[:] *= 0.05
    steps.own_us[SINCE:, 1] *= 1.5
    assert LiveRun(PP2_DP4).run(steps).reported == []


# ---- over time --------------------------------------------------------------------------------
def test_a_new_generation_is_measured_anew() -> None:
    slow, well = played(num_steps=SINCE + 30), played()
    slow.own_us[SINCE:, 1] *= 1.5
    run = LiveRun(PP2_DP4).run(slow).run(well, generation=1)
    (_, first), (_, last) = run.reported
    assert (first.is_open, last.is_open) == (True, False)
    assert facts(last)["ended"] == "generation 1 has begun"
    assert run.state.open_verdicts() == []


def test_a_restarted_monitor_neither_repeats_it_nor_misses_its_end() -> None:
    slow = played(num_steps=SINCE + 30)
    slow.own_us[SINCE:, 1] *= 1.5
    run = LiveRun(PP2_DP4).run(slow)
    run.restart_monitor()
    still = played(num_steps=40)
    still.own_us[:, 1] *= 1.5
    run.run(still)
    assert len(run.reported) == 1
    run.restart_monitor()
    run.run(played())
    assert [one.is_open for _, one in run.reported] == [True, False]


@pytest.mark.parametrize(("grid", "slow"), [(Grid(pp=4), [1]), (Grid(pp=2, dp=2), [2, 3])])
def test_a_restarted_monitor_does_not_end_what_only_earlier_steps_show(
    grid: Grid, slow: list[int]
) -> None:
    before, after = played(grid), played(grid, seed=1)
    before.own_us[SINCE:, slow] *= 1.5
    after.own_us[:, slow] *= 1.5
    run = LiveRun(grid).run(before)
    run.restart_monitor()
    run.run(after)
    assert [one.is_open for _, one in run.reported] == [True]
    assert [one.is_open for one in run.state.open_verdicts()] == [True]


def test_a_rank_without_summaries_is_not_called_fast_again() -> None:
    steps, more = played(), played(seed=1)
    steps.own_us[SINCE:, 5] *= 1.5
    run = LiveRun(PP2_DP4).run(steps)
    run.lost = {5 // RANKS_PER_NODE}
    run.run(more)
    assert [one.is_open for _, one in run.reported] == [True]
    run.lost = set()
    run.run(played(seed=2))
    assert run.said()[-1][2] == "rank 5 is as fast as usual again"


def test_a_finding_of_its_node_becomes_a_reason_and_makes_it_surer() -> None:
    steps = played(num_steps=SINCE + 30)
    steps.own_us[SINCE:, 5] *= 1.3
    run = LiveRun(PP2_DP4).run(steps)
    hot = Finding(
        rule="cgroup_throttled", source="host", file="/sys/fs/cgroup/cpu.stat", offset=1,
        line="the container was held for 40 % of the time",
    )  # fmt: skip
    beat = AgentBeat(run_id=RUN_ID, node=2, pid=1, start_ticks=1, sequence=1, findings=(hot,))
    run.state.on_beat(beat, run.now_s)
    more = played(num_steps=40)
    more.own_us[:, 5] *= 1.3
    run.run(more)
    before, after = (one for _, one in run.reported)
    assert (after.id, after.revision) == (before.id, 1)
    assert facts(after)["because"] == hot.line
    assert after.confidence > before.confidence


# ---- any rows ---------------------------------------------------------------------------------
@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    grid=st.sampled_from((Grid(), Grid(dp=2), Grid(pp=2), Grid(tp=2, pp=2, dp=2), None)),
    lost=st.sampled_from((0.0, 0.1, 0.6)),
    late=st.sampled_from((0, 3, 60)),
)
def test_lost_late_and_doubled_summaries_of_a_healthy_run_accuse_nobody(
    seed: int, grid: Grid | None, lost: float, late: int
) -> None:
    chance = np.random.default_rng(seed)
    live = LiveSlowness(grid, HealthConfig())
    steps = PlayedSteps(grid or Grid(dp=3), 90, seed)
    arrived = [message for one in messages(steps, 0, 0) for message in one]
    order = np.argsort(np.arange(len(arrived)) + chance.uniform(0, late + 1, len(arrived)))
    for at in order:
        for _ in range(0 if chance.random() < lost else 1 + int(chance.random() < lost)):
            live.add([(arrived[at], float(at))])
        judged = live.judge(float(at)) if at % 5 == 0 else None
        assert judged is None or judged.named == ()


@settings(deadline=None, max_examples=20)
@given(
    grid=st.sampled_from((Grid(), Grid(dp=2), Grid(tp=2, pp=2), None)),
    rows=st.lists(
        st.tuples(*[st.integers(-3, 40) | st.integers(-(2**63), 2**64 - 1)] * 12),
        min_size=25, max_size=60,
    ),
    generations=st.booleans(),
    line=st.integers(-2, 2**40),
    wait_us=st.integers(-(2**63), 2**64 - 1),
)  # fmt: skip
def test_summaries_of_any_content_fail_nothing(
    grid: Grid | None, rows: list[tuple[int, ...]], generations: bool, line: int, wait_us: int
) -> None:
    live, state = LiveSlowness(grid, HealthConfig()), MonitorState(HealthConfig(), RUN_ID)
    group, num_judged = GroupSum(line, 0, 1, wait_us, 0, 0, 0), 0
    for number, row in enumerate(rows):
        step = StepSum(*row, (group,))
        if not generations:  # one of any content begins an empty table
            step = step._replace(generation=0)
        message = StepSummary(
            run_id=RUN_ID, node=0, pid=1, boot_id="b", sequence=number, num_dropped=0,
            steps=(step, step._replace(step=number, rank=0)),
        )  # fmt: skip
        live.add([(message, float(number))])
        if (judged := live.judge(float(number))) is not None:
            num_judged += 1
            state.on_judged(judged, float(number))
    assert num_judged or generations or max(row[2] for row in rows) > len(rows)
