"""Who has recovered, was replaced, or only does other work is not named as slow now."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from headway.common.plan.grid import Grid
from headway.health.slowness.judge import judge_steps, slowness_of
from headway.health.slowness.steps import COLUMNS, OVER_STEPS, Rows

from services.health.tests.slowness.played_steps import FIRST, PASSES_US, PlayedSteps, taken

PP2_DP4 = Grid(pp=2, dp=4)
AT = 24
"""Steps after the first, when something changes."""


def moved(rows: Rows, rank: int, node: int, at: int = AT, generation: int = 1) -> Rows:
    """A rank is on another node from a step on, in a newer generation of the run."""
    is_new = rows.step >= FIRST + at
    return replace(
        rows,
        node=np.where(is_new & (rows.rank == rank), node, rows.node),
        generation=np.where(is_new, generation, rows.generation),
    )


# ---- recoveries -------------------------------------------------------------------------------


@pytest.mark.parametrize("growth", [0.0, 0.5])
@pytest.mark.parametrize("grid", [Grid(pp=2), Grid(pp=2, dp=2), Grid(pp=3)])
def test_the_recovery_of_a_stage_is_not_the_onset_of_another(grid: Grid, growth: float) -> None:
    steps = PlayedSteps(grid)
    steps.own_us *= np.linspace(1.0, 1.0 + growth, steps.num_steps)[:, None]
    slow = slice(0, grid.dp)
    steps.own_us[:AT, slow] *= 1.2
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("compute", tuple(range(grid.dp)))
    assert found.since is None
    assert found.until is not None
    assert abs(found.until - (FIRST + AT - 1)) <= 1


def test_a_stage_that_is_slow_after_another_has_recovered_is_held_against_the_time_before() -> None:
    steps = PlayedSteps(Grid(pp=2))
    steps.own_us[:16, 0] *= 1.3
    steps.own_us[36:, 1] *= 1.3
    now = [one for one in slowness_of(steps.table()) if one.until is None]
    assert [(one.ranks, one.since) for one in now] == [((1,), FIRST + 36)]
    assert now[0].excess == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("left", [OVER_STEPS - 1, OVER_STEPS])
def test_what_the_newest_steps_do_not_show_is_over(left: int) -> None:
    steps = PlayedSteps(PP2_DP4, jitter=0.001)
    steps.own_us[AT:-left, 5] *= 1.3
    [found] = slowness_of(steps.table())
    is_over = left >= OVER_STEPS
    assert found.until == (FIRST + steps.num_steps - 1 - left if is_over else None)


@pytest.mark.parametrize("slow", [None, 0, 1, 6])
@pytest.mark.parametrize("each", [(3, 2, 2, 2), (3, 3, 2, 2), (3, 2)])
def test_replicas_with_more_passes_are_compared_by_pass(
    each: tuple[int, ...], slow: int | None
) -> None:
    steps = unequal(Grid(pp=2, dp=len(each)), each)
    slow = None if slow is None else slow % steps.grid.world_size
    if slow is not None:
        steps.own_us[AT:, slow] *= 1.2
    found = slowness_of(steps.table())
    assert [one.ranks for one in found] == ([] if slow is None else [(slow,)])


@pytest.mark.parametrize("silent", range(4))
@pytest.mark.parametrize("each", [(3, 3, 2, 2), (3, 2)])
def test_a_replica_that_is_not_heard_of_makes_no_other_one_slow(
    each: tuple[int, ...], silent: int
) -> None:
    steps = unequal(Grid(pp=2, dp=len(each)), each)

    def cut(rows: Rows) -> Rows:
        return taken(rows, np.flatnonzero((rows.rank != silent) | (rows.step < FIRST + AT)))

    assert slowness_of(steps.table(cut)) == []


def test_replicas_with_more_passes_read_more_data_in_more_time() -> None:
    steps = unequal(PP2_DP4, (3, 2, 2, 2))
    more = steps.num_passes > 4
    steps.data_us[:] = 0.12 * PASSES_US
    steps.other_us[:] = 0.12 * PASSES_US
    steps.data_us[more] *= 1.5
    steps.other_us[more] *= 1.5
    assert [one.ranks for one in slowness_of(steps.table()) if one.ranks] == []


def unequal(grid: Grid, each: tuple[int, ...]) -> PlayedSteps:
    """Steps in which each replica has so many micro-batches."""
    steps = PlayedSteps(grid)
    number = np.array(each)[np.arange(grid.world_size) % grid.dp]
    steps.num_passes[:] = 2 * number
    steps.own_us *= number / 2
    return steps


def test_steps_of_an_older_version_name_no_number_of_passes() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.num_passes[:] = 0
    steps.own_us[AT:, 5] *= 1.3
    assert [one.ranks for one in slowness_of(steps.table())] == [(5,)]


# ---- generations and nodes --------------------------------------------------------------------


def test_a_fault_of_a_node_that_was_replaced_is_over_and_the_old_node_s() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[10:AT, 5] *= 1.3
    [found] = judge_steps(steps.table(lambda rows: moved(rows, 5, 9)))
    assert [str(one) for one in found.culprits] == ["rank 5 on node 1"]
    assert found.until_step == FIRST + AT - 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_node_that_was_replaced_just_now_is_not_slow_any_more(order: int) -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[10:, 5] *= 1.3
    at = steps.num_steps - 2  # the new generation has only steps that are not judged
    places = np.arange(steps.own_us.size)[::order]
    [found] = judge_steps(steps.table(lambda rows: taken(moved(rows, 5, 9, at), places)))
    assert [str(one) for one in found.culprits] == ["rank 5 on node 1"]
    assert found.until_step == FIRST + at - 1


def test_a_rank_that_is_slow_on_its_new_node_too_began_there() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[10:, 5] *= 1.3
    [found] = judge_steps(steps.table(lambda rows: moved(rows, 5, 9)))
    assert [str(one) for one in found.culprits] == ["rank 5 on node 9"]
    assert (found.since_step, found.until_step) == (FIRST + AT + 3, None)
    assert "it was slow on node 1 before as well" in found.why


def test_a_few_steps_on_the_new_node_do_not_blame_it() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[10:, 5] *= 1.3
    at = steps.num_steps - 8
    [found] = judge_steps(steps.table(lambda rows: moved(rows, 5, 9, at)))
    assert [str(one) for one in found.culprits] == ["rank 5 on node 1"]
    assert found.until_step == FIRST + at - 1


@pytest.mark.parametrize("order", [1, -1])
def test_steps_that_a_newer_generation_repeats_are_not_judged(order: int) -> None:
    steps = PlayedSteps(PP2_DP4)
    before, rows = steps.rows(), steps.rows()
    before.times["own_us"][(before.step >= FIRST + AT) & (before.rank == 5)] *= 2
    # the newer one is still at an earlier step
    again = np.flatnonzero((rows.step >= FIRST + AT - 6) & (rows.step < FIRST + AT + 6))
    rows = both(before, replace(taken(rows, again), generation=np.ones(len(again), np.int64)))
    places = np.arange(len(rows.rank))[::order]
    table = steps.table(lambda _: taken(rows, places))
    assert table.steps.tolist() == [
        *range(FIRST + 3, FIRST + AT - 6), *range(FIRST + AT - 3, FIRST + AT + 6)
    ]  # fmt: skip
    assert slowness_of(table) == []


def test_the_first_three_steps_of_each_generation_are_not_judged() -> None:
    steps = PlayedSteps(PP2_DP4)
    table = steps.table(lambda rows: moved(rows, 5, 9))
    numbers = [*range(3, AT), *range(AT + 3, steps.num_steps)]
    assert (table.steps - FIRST).tolist() == numbers


def both(one: Rows, other: Rows) -> Rows:
    """The rows of both."""

    def joined(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Rows(
        joined("node"), joined("rank"), joined("generation"), joined("step"),
        {name: np.concatenate([one.times[name], other.times[name]]) for name in COLUMNS},
        np.concatenate([one.owner, other.owner + len(one.rank)]), joined("line"),
        np.concatenate([one.wait_us, other.wait_us]),
    )  # fmt: skip


# ---- other work, and chance -------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("dp", [1, 4])
def test_a_stage_with_more_work_is_a_note_about_the_program_that_blames_no_rank(
    stage: int, dp: int
) -> None:
    steps = PlayedSteps(Grid(pp=4, dp=dp))
    steps.own_us[:, stage * dp : (stage + 1) * dp] *= 1.25
    [found] = judge_steps(steps.table())
    assert (found.cause, found.culprits, found.where) == ("stage_imbalance", (), f"stage {stage}")
    assert found.summary.startswith(
        f"stage {stage} has more work than the other stages: its passes take 1.2"
    )
    assert found.do.startswith(f"give stage {stage} fewer layers")


def test_noise_beside_an_uneven_stage_is_still_found() -> None:
    steps = PlayedSteps(PP2_DP4)
    steps.own_us[:, 4:] *= 1.3
    steps.collection_us += 0.2 * PASSES_US
    causes = {one.cause for one in slowness_of(steps.table())}
    assert causes == {"stage_imbalance", "garbage_collection"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("jitter", [0.03, 0.045, 0.06])
@pytest.mark.parametrize("dp", [2, 3, 4, 8])
def test_jitter_without_stages_is_not_called_an_imbalance_of_lengths(
    dp: int, jitter: float, seed: int
) -> None:
    steps = PlayedSteps(Grid(dp=dp), seed=seed, jitter=jitter)
    assert slowness_of(steps.table()) == []


def test_without_stages_a_few_long_sequences_among_many_short_ones_are_an_imbalance() -> None:
    steps = PlayedSteps(Grid(dp=8))
    steps.own_us *= 1 + 0.6 * np.random.default_rng(1).random((steps.num_steps, 8)) ** 3
    [found] = slowness_of(steps.table())
    assert (found.cause, found.ranks) == ("sequence_imbalance", ())
