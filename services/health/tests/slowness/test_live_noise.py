"""A slow rank that noise hides for some steps."""

from __future__ import annotations

import pytest
from headway.common.plan.grid import Grid
from headway.health.slowness import live
from headway.health.slowness.findings import Slowness
from headway.health.slowness.judge import slowness_of
from headway.health.slowness.steps import StepTable

from services.health.tests.slowness.live_run import LiveRun
from services.health.tests.slowness.played_steps import FIRST, PlayedSteps

PP2_DP4 = Grid(pp=2, dp=4)
SINCE = 60


@pytest.mark.parametrize(("missed", "count"), [(7, 1), (9, 2)])
def test_what_a_few_noisy_steps_hide_is_not_over(
    monkeypatch: pytest.MonkeyPatch, missed: int, count: int
) -> None:
    steps = PlayedSteps(PP2_DP4, SINCE + 60)
    steps.own_us[SINCE:, 5] *= 1.5
    hidden = range(FIRST + SINCE + 24, FIRST + SINCE + 24 + missed)

    def rule(table: StepTable) -> list[Slowness]:
        return [] if table.steps[-1] in hidden else slowness_of(table)

    monkeypatch.setattr(live, "slowness_of", rule)
    run = LiveRun(PP2_DP4, every=1).run(steps)
    assert [one.is_open for _, one in run.reported] == [True, False, True][: 2 * count - 1]


def test_what_the_rule_misses_in_every_other_step_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = PlayedSteps(PP2_DP4, SINCE + 60)
    steps.own_us[SINCE:, 5] *= 1.2

    def rule(table: StepTable) -> list[Slowness]:
        return [] if table.steps[-1] % 2 else slowness_of(table)

    monkeypatch.setattr(live, "slowness_of", rule)
    [(_, verdict)] = LiveRun(PP2_DP4, every=1).run(steps).reported
    assert (verdict.is_open, verdict.rank) == (True, 5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_steps_tell_a_small_slowdown_from_noise(seed: int) -> None:
    """Of two replicas each of whose passes varies by 9 %."""
    steps = PlayedSteps(Grid(dp=2), 3 * SINCE, seed, jitter=0.09)
    steps.own_us[2 * SINCE :, 1] *= 1.2
    [(step, verdict)] = LiveRun(Grid(dp=2), every=1).run(steps).reported
    assert verdict.rank == 1
    assert 2 * SINCE + 8 <= step < 2 * SINCE + 40


@pytest.mark.parametrize("seed", [12, 13])
def test_a_stage_is_not_slow_as_another_one_is_fast_again(seed: int) -> None:
    """Its share of the time rises then; noise hides that its own passes do not."""
    steps = PlayedSteps(Grid(pp=2), 220, seed, jitter=0.12)
    steps.own_us[100:130, 0] *= 1.35
    said = [(one.rank, one.is_open) for _, one in LiveRun(Grid(pp=2), every=1).run(steps).reported]
    assert said == [(0, True), (0, False)]
