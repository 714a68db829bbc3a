"""Each cause of slow steps is found once, with its subject and its first step."""

from __future__ import annotations

import numpy as np
import pytest
from headway.common.plan.grid import Grid
from headway.health.slowness.judge import judge_steps, slowness_of
from headway.health.slowness.notes import Note

from services.health.tests.slowness.played_steps import (
    DP_LINE,
    FIRST,
    PASSES_US,
    RECEIVED,
    TP_LINE,
    PlayedSteps,
)

PP2_DP4 = Grid(pp=2, dp=4)
SINCE = 20
"""Steps after the first; of ``FIRST + SINCE`` is spoken."""


@pytest.mark.parametrize("factor", [1.1, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_computes_slower_is_named_with_its_first_slow_step(
    rank: int, factor: float
) -> None:
    steps = PlayedSteps(PP2_DP4, seed=rank)
    steps.own_us[SINCE:, rank] *= factor
    [found] = judge_steps(steps.table())
    assert (found.cause, [one.rank for one in found.culprits]) == ("compute", [rank])
    assert found.since_step == FIRST + SINCE
    assert f"since step {FIRST + SINCE}" in found.summary
    assert found.confidence >= 0.9


@pytest.mark.parametrize("seed", range(8))
def test_the_first_slow_step_is_exact_to_one_step_with_jitter(seed: int) -> None:
    steps = PlayedSteps(PP2_DP4, seed=seed, jitter=0.02)
    since = 12 + 2 * seed
    steps.own_us[since:, 3] *= 1.2
    [found] = judge_steps(steps.table())
    assert found.since_step is not None
    assert abs(found.since_step - FIRST - since) <= 1


def test_a_rank_that_was_always_slow_has_no_beginning() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[:, 6] *= 1.3
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks, found.since) == ("compute", (6,), None)


def test_a_rank_that_is_fast_again_is_said_to_be() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[SINCE : SINCE + 16, 1] *= 1.3
    [found] = slowness_of(steps.table())
    assert (found.ranks, found.since, found.until) == (
        (1,), FIRST + SINCE, FIRST + SINCE + 15
    )  # fmt: skip


def test_two_slow_ranks_are_both_named() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[SINCE:, 1] *= 1.3
    steps.own_us[SINCE:, 4] *= 1.5
    assert [one.ranks for one in slowness_of(steps.table())] == [(4,), (1,)]


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("data_us", "data"), ("snapshot_us", "checkpoint_write"), ("other_us", "host_stall"),
        ("collection_us", "garbage_collection"),
    ],
)  # fmt: skip
def test_what_a_rank_does_beside_its_passes_is_the_cause(part: str, cause: str) -> None:
    steps = PlayedSteps(PP2_DP4)
    getattr(steps, part)[SINCE:, 2] += 0.2 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks, found.since) == (cause, (2,), FIRST + SINCE)


def test_collections_in_every_fourth_step_are_one_cause() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.collection_us[SINCE::4, 2] += 0.6 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("garbage_collection", (2,))
    assert found.since == FIRST + SINCE


def test_collections_that_have_ended_are_judged_by_the_steps_between_them() -> None:
    steps = PlayedSteps(Grid(pp=4))
    steps.collection_us[13:29:3, 2] += 0.3 * PASSES_US  # 3.6 % of all steps, and 10 % of those
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("garbage_collection", (2,))
    assert (found.since, found.until) == (FIRST + 13, FIRST + 28)
    assert found.excess == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("data_us", "data"), ("snapshot_us", "checkpoint_write"),
        ("collection_us", "garbage_collection"),
    ],
)  # fmt: skip
def test_what_all_ranks_wait_for_is_no_rank_s_fault(part: str, cause: str) -> None:
    steps = PlayedSteps(PP2_DP4)
    getattr(steps, part)[:] += 0.2 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == (cause, ())


def test_collections_on_another_rank_each_time_are_no_rank_s_fault() -> None:
    steps = PlayedSteps(PP2_DP4)
    hit = np.random.default_rng(1).integers(0, 8, steps.num_steps)
    steps.collection_us[np.arange(steps.num_steps), hit] += 0.3 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("garbage_collection", ())


def test_long_transfers_while_passes_are_equal_are_the_network() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.waits_us[RECEIVED] = np.full(steps.own_us.shape, 0.05 * PASSES_US)
    steps.waits_us[DP_LINE][SINCE:, 4:] += 0.3 * PASSES_US
    steps.waits_us[RECEIVED][SINCE:, 6] += 0.1 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks, found.since) == ("network", (6,), FIRST + SINCE)


def test_of_long_transfers_alone_no_member_is_singled_out() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.waits_us[DP_LINE][SINCE:, 4:] += 0.3 * PASSES_US
    [found] = judge_steps(steps.table())
    assert found.cause == "network"
    assert found.summary.startswith("one of ranks 4, 5, 6, 7 (data-parallel group 4) ")


def test_a_stage_that_is_always_slower_has_more_to_do() -> None:
    steps = PlayedSteps(Grid(pp=4, dp=2))
    steps.own_us[:, 4:6] *= 1.2
    [found] = judge_steps(steps.table())
    assert (found.cause, found.where) == ("stage_imbalance", "stage 2")
    assert "1.20x" in found.summary


def test_without_replicas_a_rank_is_held_against_its_own_earlier_time() -> None:
    steps = PlayedSteps(Grid(pp=4))
    steps.own_us *= np.linspace(1.0, 1.6, steps.num_steps)[:, None]  # longer sequences
    steps.own_us[SINCE:, 2] *= 1.2
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("compute", (2,))
    assert found.since is not None
    assert abs(found.since - FIRST - SINCE) <= 1


def test_replicas_of_unequal_sequences_are_no_rank_s_fault() -> None:
    steps = PlayedSteps(PP2_DP4)
    longer = np.random.default_rng(1).random((steps.num_steps, 4)) ** 2
    steps.own_us *= 1 + 0.6 * np.tile(longer, 2)
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("sequence_imbalance", ())


@pytest.mark.parametrize("grid", [PP2_DP4, Grid(pp=2, dp=2)])
def test_short_stalls_of_other_ranks_each_time_are_noise(grid: Grid) -> None:
    steps = PlayedSteps(grid)
    hit = np.random.default_rng(1).integers(0, grid.world_size, steps.num_steps)
    steps.own_us[np.arange(steps.num_steps), hit] += 0.3 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("host_noise", ())


@pytest.mark.parametrize(("jitter", "causes"), [(0.03, []), (0.2, ["host_noise"])])
def test_passes_that_vary_more_than_on_a_healthy_machine_are_noise(
    jitter: float, causes: list[str]
) -> None:
    steps = PlayedSteps(Grid(pp=2, dp=2), jitter=jitter)
    assert [one.cause for one in slowness_of(steps.table())] == causes


@pytest.mark.parametrize(("largest", "shown"), [(0.5, 1.0), (0.25, 0.25)])
def test_steps_that_grow_while_passes_do_not_are_a_growing_launch_skew(
    largest: float, shown: float
) -> None:
    """Also if pipeline bubbles hide most of it."""
    steps = PlayedSteps(PP2_DP4)
    count = steps.num_steps
    hit = np.random.default_rng(1).integers(0, 8, count)
    late = largest * PASSES_US * np.arange(count) / count
    steps.other_us[np.arange(count), hit] += late
    for rank in range(8):
        steps.waits_us[DP_LINE][:, rank] += np.where(hit == rank, 0, shown * late)
    found = slowness_of(steps.table())
    assert [(one.cause, one.ranks) for one in found][:1] == [("launch_skew", ())]


def test_the_member_of_a_tensor_parallel_group_that_waits_for_nobody_is_named() -> None:
    steps = PlayedSteps(Grid(tp=2, dp=4))
    steps.own_us[:, 4:6] *= 1.25
    steps.waits_us[TP_LINE] = np.full(steps.own_us.shape, np.nan)
    steps.waits_us[TP_LINE][:] = 0.01 * PASSES_US
    steps.waits_us[TP_LINE][:, 4] += 0.25 * PASSES_US
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("compute", (5,))


def _of_a_pair(late: float, chance: float = 0.0) -> PlayedSteps:
    """Stage 1 takes 1.25x from SINCE on; of its two members rank 2 waits ``late`` longer."""
    steps = PlayedSteps(Grid(tp=2, pp=2))
    steps.own_us[SINCE:, 2:] *= 1.25
    waits = 0.3 * PASSES_US * np.ones(steps.own_us.shape)
    waits += chance * PASSES_US * np.random.default_rng(7).normal(size=waits.shape)
    waits[SINCE:, 2] += late * PASSES_US
    waits[np.arange(len(waits)) % 4 != 0] = -1  # not recorded in these steps
    steps.waits_us[TP_LINE] = waits
    return steps


def test_the_member_of_a_stage_without_replicas_that_waits_for_nobody_is_named() -> None:
    [found] = slowness_of(_of_a_pair(0.25, chance=0.03).table())
    assert (found.cause, found.ranks, found.is_one_of) == ("compute", (3,), False)


@pytest.mark.parametrize(("late", "chance"), [(0.02, 0.0), (0.1, 0.2)])
def test_neither_member_is_named_whose_waits_do_not_show_it(late: float, chance: float) -> None:
    [found] = slowness_of(_of_a_pair(late, chance).table())
    assert (found.cause, found.ranks, found.is_one_of) == ("compute", (2, 3), True)


@pytest.mark.parametrize("recorded", [range(SINCE), range(SINCE + 5, SINCE + 6)])
def test_neither_member_is_named_by_waits_before_it_was_slow_or_by_a_single_one(
    recorded: range,
) -> None:
    """Rank 2 always waits a little less than rank 3."""
    steps = _of_a_pair(0.2 if recorded.start else 0.0)
    waits = np.full(steps.own_us.shape, -1.0)
    waits[recorded] = 0.3 * PASSES_US
    waits[recorded, 3] += 0.05 * PASSES_US
    steps.waits_us[TP_LINE] = waits
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks, found.is_one_of) == ("compute", (2, 3), True)


def test_data_that_come_late_to_one_tensor_parallel_rank_do_not_slow_the_passes_of_its_group() -> (
    None
):
    steps = PlayedSteps(Grid(tp=2, dp=4))
    steps.data_us[SINCE:, 4] += 0.3 * PASSES_US
    steps.own_us[SINCE:, 5] += 0.3 * PASSES_US  # it waits for rank 4 in its first pass
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("data", (4,))


def test_a_finding_of_its_node_is_among_the_reasons_and_makes_it_surer() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[SINCE:, 5] *= 1.3
    table = steps.table()
    notes = [
        Note("compute", 1, "GPU 0000:3b:00.0 is slowed down by temperature"),
        Note("compute", 0, "another node's"),
        Note("network", 1, "another cause"),
    ]
    [without], [found] = judge_steps(table), judge_steps(table, notes)
    assert set(found.why) - set(without.why) == {notes[0].text}
    assert found.confidence > without.confidence
