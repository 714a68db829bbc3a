"""A clock that leaves out its owner's stalls."""

from __future__ import annotations

import pytest
from headway.common.decide import AwakeClock


def test_the_first_look_adds_nothing_and_those_that_follow_what_has_passed() -> None:
    clock = AwakeClock()
    assert [clock.advance(now, 1.0) for now in (100.0, 100.5, 101.0)] == [0.0, 0.5, 0.5]
    assert clock.now == 1.0


@pytest.mark.parametrize("stall_s, counted", [(None, 1.0), (0.0, 0.0)])
def test_a_stall_counts_as_a_moment(stall_s: float | None, counted: float) -> None:
    clock = AwakeClock(10.0)
    assert clock.advance(3610.0, 1.0, stall_s) == 3600.0
    assert clock.now == counted


def test_a_clock_that_went_back_adds_nothing_and_goes_on_from_there() -> None:
    clock = AwakeClock(10.0)
    assert [clock.advance(now, 1.0) for now in (4.0, 4.5)] == [0.0, 0.5]
    assert clock.now == 0.5
