"""Rows in any order, lost and doubled: nothing fails, and healthy runs are not accused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from headway.common.plan.grid import Grid
from headway.health.slowness.judge import judge_steps, slowness_of
from headway.health.slowness.steps import COLUMNS, Rows, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from services.health.tests.slowness.played_steps import FIRST, PASSES_US, PlayedSteps, taken

NOTHING = np.zeros(0, np.int64)
GRIDS = (Grid(), Grid(dp=2), Grid(pp=2), Grid(tp=2, dp=2), Grid(tp=2, pp=2, dp=2), Grid(dp=8))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    grid=st.sampled_from(GRIDS),
    share=st.floats(0.0, 1.5),
    ramp=st.sampled_from((0.0, 0.5)),
)
def test_a_healthy_run_is_not_accused_whatever_becomes_of_its_rows(
    seed: int, grid: Grid, share: float, ramp: float
) -> None:
    steps = PlayedSteps(grid, num_steps=30, seed=seed)
    steps.own_us *= np.linspace(1.0, 1.0 + ramp, 30)[:, None]
    chance = np.random.default_rng(seed)
    count = steps.own_us.size

    def spoiled(rows: Rows) -> Rows:
        return taken(rows, chance.integers(0, count, int(share * count)))

    assert slowness_of(steps.table(spoiled)) == []


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    grid=st.sampled_from((*GRIDS, None)),
    values=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=8),
    count=st.integers(0, 120),
)
def test_rows_of_any_content_fail_nothing(
    seed: int, grid: Grid | None, values: list[int], count: int
) -> None:
    chance = np.random.default_rng(seed)

    def drawn(low: int, high: int, size: int = count) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return chance.integers(low, high, size)

    rows = Rows(
        drawn(-1, 3), drawn(-2, 12), drawn(0, 3), drawn(-1, 25),
        {name: chance.choice(np.array(values), count) for name in COLUMNS},
        drawn(0, max(count, 1), 2 * count), drawn(2, 24, 2 * count),
        chance.choice(np.array(values), 2 * count),
    )  # fmt: skip
    for one in judge_steps(table_of(rows, grid)):
        assert 0 <= one.confidence <= 1


def test_lost_and_doubled_rows_do_not_hide_a_slow_rank() -> None:
    steps = PlayedSteps(Grid(pp=2, dp=4))
    steps.own_us[20:, 5] *= 1.2
    chance = np.random.default_rng(0)
    count = steps.own_us.size
    places = np.concatenate([chance.permutation(count)[: int(0.9 * count)], np.arange(40)])
    [found] = slowness_of(steps.table(lambda rows: taken(rows, places)))
    assert found.ranks == (5,)
    assert found.since is not None
    assert abs(found.since - FIRST - 20) <= 1


def test_a_row_with_a_damaged_generation_hides_no_other() -> None:
    steps = PlayedSteps(Grid(pp=2, dp=4))
    steps.own_us[20:, 5] *= 1.2

    def damaged(rows: Rows) -> Rows:
        generation = rows.generation.copy()
        generation[3] = 2**40
        return replace(rows, generation=generation)

    [found] = slowness_of(steps.table(damaged))
    assert found.ranks == (5,)


def test_of_a_repeated_step_the_newest_generation_counts() -> None:
    steps = PlayedSteps(Grid(pp=2, dp=4))
    rows = steps.rows()
    slow = {name: values * (10 if name == "own_us" else 1) for name, values in rows.times.items()}
    before = replace(rows, times=slow)
    first = np.arange(len(rows.rank))
    both = Rows(
        *(np.tile(getattr(rows, name), 2) for name in ("node", "rank")),
        np.repeat([0, 1], len(first)), np.tile(rows.step, 2),
        {name: np.concatenate([before.times[name], rows.times[name]]) for name in COLUMNS},
        np.concatenate([rows.owner, rows.owner + len(first)]), np.tile(rows.line, 2),
        np.tile(rows.wait_us, 2),
    )  # fmt: skip
    table = table_of(both, steps.grid)
    assert np.nanmax(table.times["own_us"]) < 2 * PASSES_US
    assert slowness_of(table) == []


def test_without_a_grid_stages_are_not_compared() -> None:
    steps = PlayedSteps(Grid(pp=4))
    steps.own_us[:, 2] *= 1.5
    assert slowness_of(table_of(steps.rows(), None)) == []
    steps.own_us[30:, 1] *= 1.5
    [found] = slowness_of(table_of(steps.rows(), None))
    assert found.ranks == (1,)


@pytest.mark.parametrize("grid", [None, Grid(dp=2)])
def test_no_rows_at_all_say_nothing(grid: Grid | None) -> None:
    times = dict.fromkeys(COLUMNS, NOTHING)
    rows = Rows(NOTHING, NOTHING, NOTHING, NOTHING, times, NOTHING, NOTHING, NOTHING)
    assert judge_steps(table_of(rows, grid)) == []


@pytest.mark.parametrize("lost", [0.05, 0.1, 0.2])
def test_a_slow_group_of_eight_is_named_although_rows_of_its_members_are_lost(lost: float) -> None:
    """Of all eight, every row of a step has arrived in 17 % of the steps if a fifth is lost."""
    steps = PlayedSteps(Grid(tp=8, dp=4), num_steps=43)
    slow = slice(16, 24)
    steps.own_us[10:, slow] *= 1.2
    chance = np.random.default_rng(1)

    def spoiled(rows: Rows) -> Rows:
        return taken(rows, np.flatnonzero(chance.random(len(rows.rank)) >= lost))

    [found] = slowness_of(steps.table(spoiled))
    assert (found.cause, found.ranks) == ("compute", tuple(range(16, 24)))
    assert found.since is not None and abs(found.since - (FIRST + 10)) <= 2
    assert found.excess == pytest.approx(0.2, abs=0.03)


def test_a_member_whose_shortest_time_is_lost_now_and_then_makes_no_group_slow() -> None:
    """Data that come late to one rank keep the others of its group waiting in their passes."""
    steps = PlayedSteps(Grid(tp=4, dp=4), num_steps=43)
    steps.own_us[:, 5:8] *= 1.4
    steps.data_us[:, 4] += 0.4 * PASSES_US
    chance = np.random.default_rng(1)

    def spoiled(rows: Rows) -> Rows:
        return taken(rows, np.flatnonzero((rows.rank != 4) | (chance.random(len(rows.rank)) < 0.8)))

    assert {(one.cause, one.ranks) for one in slowness_of(steps.table(spoiled))} == {("data", (4,))}


@pytest.mark.parametrize(("tp", "lost"), [(2, 1), (4, 2)])
def test_a_member_that_never_reports_makes_no_group_slow(tp: int, lost: int) -> None:
    """Its data come late, so the others of its group wait in their passes."""
    steps = PlayedSteps(Grid(tp=tp, dp=4), num_steps=43)
    steps.own_us[:, lost:tp] *= 1.4
    steps.data_us[:, :lost] += 0.4 * PASSES_US

    def spoiled(rows: Rows) -> Rows:
        return taken(rows, np.flatnonzero(rows.rank >= lost))

    assert slowness_of(steps.table(spoiled)) == []
