"""Who computed a gradient wrong is told from four passes, and nobody else is named."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from headway.trainer.session.opinions import Digest, Judgement, Row, agree, computed_by, judge

NUM_PARAMETERS = 3
Damage = Callable[[int, int], float | None]
"""What replica ``maker`` in pass ``number`` computes of the second parameter; None: it is right."""


def rows(dp: int, damage: Damage = lambda *_: None, passes: int = 4) -> list[Row]:
    """What the replicas compute if ``damage`` is done to some of it."""

    def value(maker: int, number: int, parameter: int) -> Digest:
        replica = (maker + number) % dp
        assert computed_by(replica, number, dp) == maker
        wrong = damage(maker, number) if parameter == 1 else None
        return (float(replica), float(parameter) if wrong is None else wrong)

    return [
        [[value(maker, n, p) for p in range(NUM_PARAMETERS)] for n in range(passes)]
        for maker in range(dp)
    ]


def wrong_by(bad: int, number: int | None = None) -> Damage:
    """One replica is wrong, in one pass or in all."""
    return lambda maker, n: -1.0 if maker == bad and number in (None, n) else None


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 7])
def test_healthy_replicas_agree(dp: int) -> None:
    assert agree(rows(dp, passes=2))
    assert judge(rows(dp)) == Judgement({})


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("number", [0, 1])
def test_who_is_wrong_once_is_named(dp: int, number: int) -> None:
    bad = dp - 1
    once = wrong_by(bad, number)
    assert not agree(rows(dp, once, passes=2))
    assert judge(rows(dp, once)) == Judgement({bad: frozenset({1})})


@pytest.mark.parametrize("dp", [3, 4, 7])
def test_who_is_always_wrong_is_named_by_others(dp: int) -> None:
    assert judge(rows(dp, wrong_by(1))) == Judgement({1: frozenset({1})})


def test_of_two_that_always_differ_both_may_be_wrong() -> None:
    assert judge(rows(2, wrong_by(1))) == Judgement({}, unsure=(0, 1), parameter=1)


def test_what_never_comes_out_alike_accuses_nobody() -> None:
    chance = random.Random(7)
    assert judge(rows(4, lambda *_: chance.random())) == Judgement({}, is_random=True)


@pytest.mark.parametrize("seed", range(20))
def test_an_innocent_is_never_named(seed: int) -> None:
    chance = random.Random(seed)
    dp, bad = chance.randint(3, 9), 0

    def often(maker: int, _: int) -> float | None:
        return chance.random() if maker == bad and chance.random() < 0.6 else None

    made = rows(dp, often)
    assert set(judge(made).wrong) == (set() if agree(made) else {bad})
