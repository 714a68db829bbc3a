"""Which ranks take longer than the peers of their stage, on times whose answer is known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.actions import step_actions
from headway.console.analysis.rank_times import (
    PASSES,
    RankTimes,
    labels,
    times_of_actions,
    times_of_summaries,
)
from headway.console.testing import events_of

GRID = Grid(tp=2, pp=3, dp=4)


def drawn(grid: Grid, slow: dict[int, float], noise: float = 0.02) -> RankTimes:
    """Noisy times, in which the second stage has twice as much to do."""
    seconds = 1 + noise * np.random.default_rng(1).standard_normal((20, grid.world_size))
    seconds[:, grid.tp * grid.dp : 2 * grid.tp * grid.dp] *= 2
    for rank, factor in slow.items():
        seconds[:, rank] *= factor
    return RankTimes(PASSES, grid, tuple(range(20)), seconds)


@pytest.mark.parametrize("slow", [{}, {9: 1.3}, {0: 1.2, 23: 2.0}])
def test_ranks_are_held_against_their_own_stage(slow: dict[int, float]) -> None:
    found = drawn(GRID, slow)
    assert found.outliers == tuple(sorted(slow, key=lambda rank: -slow[rank]))
    for rank, factor in slow.items():
        assert np.median(found.ratios[:, rank]) == pytest.approx(factor, abs=0.1)


def test_one_long_step_makes_no_outlier_and_what_is_over_does_not_either() -> None:
    found = drawn(GRID, {})
    found.seconds[3, 5] = 50.0
    found.seconds[:10, 6] = 50.0
    assert found.outliers == ()
    found = drawn(GRID, {})
    found.seconds[6:, 6] = 50.0
    assert found.outliers == (6,)


def test_a_few_steps_make_no_outlier() -> None:
    found = drawn(GRID, {9: 3.0})
    assert RankTimes(PASSES, GRID, found.steps[:7], found.seconds[:7]).outliers == ()
    assert RankTimes(PASSES, GRID, found.steps[:8], found.seconds[:8]).outliers == (9,)


def test_of_two_replicas_the_slower_one_stands_out() -> None:
    assert drawn(Grid(pp=2, dp=2), {2: 1.5}, noise=0.0).outliers == (2,)


def test_a_rank_without_peers_is_no_outlier_and_unknown_times_do_no_harm() -> None:
    assert drawn(Grid(pp=4), {1: 3.0}).outliers == ()
    found = drawn(GRID, {9: 1.5})
    found.seconds[::3, 4:8] = np.nan
    found.seconds[:, 10] = np.nan
    assert found.outliers == (9,) and np.isnan(found.medians[10])


def test_times_come_from_flight_records() -> None:
    forward, wait = Kind.FORWARD.value, -Kind.RECV_FORWARD.value
    events = pl.concat(
        events_of(
            rank,
            (Kind.STEP.value, 7, 0.0, 40.0),
            (forward, 7, 1.0, 3.0 + rank),
            (forward, 7, 10.0, 11.0),
            (wait, 7, 20.0, 30.0),
        )
        for rank in (0, 1)
    )
    actions = step_actions(events, Grid(pp=2))
    found = times_of_actions(actions, Grid(pp=2))
    assert found.steps == (7,) and found.seconds.tolist() == [
        [pytest.approx(3e-3), pytest.approx(4e-3)]
    ]
    assert labels(actions) == ["recv forward: wait", "forward"]
    assert times_of_actions(actions, Grid(pp=2), "recv forward: wait").medians[0] == pytest.approx(
        10e-3
    )
    assert times_of_actions(actions, Grid(pp=2), "snapshot").outliers == ()


def test_of_a_step_done_again_the_newest_attempt_counts() -> None:
    rows = pl.DataFrame(
        {
            "rank": [0, 1, 0],
            "generation": [0, 0, 1],
            "step": [4, 4, 4],
            "own_us": [9, 9, 5],
            "num_passes": [2, 2, 2],
        }
    )
    found = times_of_summaries(rows, Grid(dp=2))
    assert found.label == PASSES
    np.testing.assert_allclose(found.seconds, [[5e-6, np.nan]])


def test_a_replica_with_more_passes_is_compared_by_pass() -> None:
    columns = {"rank": [0, 1, 2], "generation": [0] * 3, "step": [4] * 3, "own_us": [9, 6, 6]}
    known, unknown = (
        times_of_summaries(pl.DataFrame({**columns, "num_passes": passes}), Grid(dp=3))
        for passes in ([6, 4, 4], [0, 0, 0])
    )
    np.testing.assert_allclose(known.seconds, [[6e-6, 6e-6, 6e-6]])
    np.testing.assert_allclose(unknown.seconds, [[9e-6, 6e-6, 6e-6]])
