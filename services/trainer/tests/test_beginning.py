"""Where a driver places ranks that ran elsewhere before."""

from __future__ import annotations

import pytest
from headway.trainer.control.beginning import is_of_plan

PLANNED = {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [
        ({0: 0, 1: 0, 2: 1, 3: 1}, True),
        ({0: 0, 1: 0, 2: 2, 3: 2}, True),  # a spare took over
        ({0: 0, 1: 0, 2: 0, 3: 0}, False),  # as with another launch.ranks_per_node
        ({0: 0, 1: 1, 2: 0, 3: 1}, False),
        ({0: 0, 1: 0}, False),
        ({}, False),  # of a fork
    ],
)
def test_a_placement_is_kept_while_the_same_ranks_share_a_node(
    before: dict[int, int], is_kept: bool
) -> None:
    assert is_of_plan(before, PLANNED) == is_kept
