"""Of a group with long transfers one member is named if its pipeline alone has late messages."""

from __future__ import annotations

import numpy as np
import pytest
from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Grid
from headway.health.slowness.judge import slowness_of

from services.health.tests.slowness.played_steps import DP_LINE, PASSES_US, RECEIVED, PlayedSteps

GRADIENTS = 2 * GroupKind.BACKWARD + 1
SINCE = 20
GROUP = (4, 5, 6, 7)
"""The data-parallel group of the last stage."""


def slow_group(**late: float) -> PlayedSteps:
    """Its transfers are long, and messages of replicas late by shares of the passes."""
    steps = PlayedSteps(Grid(pp=2, dp=4))
    for line in (RECEIVED, GRADIENTS):
        steps.waits_us[line] = np.full(steps.own_us.shape, 0.05 * PASSES_US)
    steps.waits_us[DP_LINE][SINCE:, list(GROUP)] += 0.3 * PASSES_US
    for name, share in late.items():
        steps.waits_us[RECEIVED][SINCE:, 4 + int(name[-1])] += share * PASSES_US
    return steps


def named(steps: PlayedSteps) -> tuple[int, ...]:
    [found] = slowness_of(steps.table())
    assert found.cause == "network"
    assert found.is_one_of == (len(found.ranks) > 1)
    return found.ranks


@pytest.mark.parametrize(
    ("late", "ranks"),
    [
        ({"replica_2": 0.1}, (6,)),
        ({"replica_2": 0.03}, (6,)),
        ({"replica_2": 0.015}, GROUP),  # not more than chance
        ({"replica_2": 0.1, "replica_0": 0.03}, (6,)),
        ({"replica_2": 0.1, "replica_0": 0.08}, GROUP),  # which of the two?
        ({}, GROUP),
    ],
)
def test_the_only_replica_with_late_messages_is_named(
    late: dict[str, float], ranks: tuple[int, ...]
) -> None:
    assert named(slow_group(**late)) == ranks


def test_late_gradients_of_a_replica_count_as_well() -> None:
    steps = slow_group()
    steps.waits_us[GRADIENTS][SINCE:, 1] += 0.1 * PASSES_US  # replica 1, of the first stage
    assert named(steps) == (5,)


def test_messages_that_were_late_before_the_transfers_were_long_count_for_nothing() -> None:
    steps = slow_group()
    steps.waits_us[RECEIVED][:SINCE, 6] += 0.1 * PASSES_US
    assert named(steps) == GROUP


def test_messages_of_another_tensor_parallel_rank_count_for_nothing() -> None:
    steps = PlayedSteps(Grid(tp=2, pp=2, dp=3))
    steps.waits_us[RECEIVED] = np.full(steps.own_us.shape, 0.05 * PASSES_US)
    group = list(steps.grid.group("dp", 7))
    steps.waits_us[DP_LINE][SINCE:, group] += 0.3 * PASSES_US
    steps.waits_us[RECEIVED][SINCE:, 8] += 0.1 * PASSES_US  # of the other tensor-parallel rank
    assert named(steps) == tuple(group)
    steps.waits_us[RECEIVED][SINCE:, 9] += 0.1 * PASSES_US
    assert named(steps) == (9,)
