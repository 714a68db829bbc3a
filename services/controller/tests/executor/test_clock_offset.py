"""A node's clock against the run's, by answers to beats: the estimate always covers the truth."""

from __future__ import annotations

import random

import pytest
from headway.controller.executor.clock_offset import DRIFT, KEPT, ClockOffset, Estimate

MS, S = 10**6, 10**9
AHEAD = 3600 * S


def answered(
    clock: ClockOffset, now: int, there: int, back: int, ahead: int = AHEAD, drift: float = 0.0
) -> int:
    """A beat sent at ``now`` takes ``there`` and its answer ``back``; returns when it came."""
    run_ns = now + there + ahead + round((now + there) * drift)
    clock.add(now, run_ns, now + there + back)
    return now + there + back


def covers(found: Estimate | None, truth: int) -> bool:
    assert found is not None
    return abs(found.offset_ns - truth) <= found.uncertainty_ns


def test_nothing_is_known_before_the_first_answer_and_after_a_change_of_drivers() -> None:
    clock = ClockOffset()
    assert clock.estimate(0) is None
    answered(clock, 5 * S, MS, MS)
    assert clock.estimate(6 * S) is not None
    clock.begin_again()
    assert clock.estimate(6 * S) is None


def test_equal_delays_give_the_offset_itself() -> None:
    clock = ClockOffset()
    now = answered(clock, 5 * S, MS, MS, ahead=-AHEAD)
    assert clock.estimate(now) == Estimate(-AHEAD, MS)


@pytest.mark.parametrize(("there", "back"), [(9 * MS, 0), (0, 9 * MS), (MS, 30 * MS)])
def test_unequal_delays_are_within_the_uncertainty(there: int, back: int) -> None:
    clock = ClockOffset()
    now = answered(clock, 5 * S, there, back)
    found = clock.estimate(now)
    assert found is not None and found.uncertainty_ns == (there + back) // 2
    assert covers(found, AHEAD)


def test_the_quickest_answer_counts_until_it_is_old() -> None:
    clock = ClockOffset()
    answered(clock, 0, MS // 10, MS // 10)
    now = 0
    for beat in range(1, KEPT):
        now = answered(clock, beat * S // 2, 8 * MS, 0)
        found = clock.estimate(now)
        assert found is not None and found.offset_ns == AHEAD
    now = answered(clock, KEPT * S // 2, 8 * MS, 0)
    found = clock.estimate(now)
    assert found is not None and found.offset_ns != AHEAD, "it is one of too many"
    assert covers(found, AHEAD)


@pytest.mark.parametrize("drift", [DRIFT * 0.99, -DRIFT * 0.99])
def test_a_clock_that_drifts_is_followed_within_the_uncertainty(drift: float) -> None:
    clock, chance = ClockOffset(), random.Random(4)
    for beat in range(2000):
        there, back = (int(chance.expovariate(1 / MS)) for _ in range(2))
        now = answered(clock, beat * S // 2, there, back, drift=drift)
        assert covers(clock.estimate(now), AHEAD + round(now * drift))


def test_an_answer_to_a_beat_of_another_clock_is_not_taken() -> None:
    clock = ClockOffset()
    clock.add(sent_ns=9 * S, run_ns=AHEAD, received_ns=5 * S)
    assert clock.estimate(9 * S) is None
