"""Two rounds of simulated links and CPUs: one bad node is found, a healthy fleet is left alone."""

from __future__ import annotations

import random

import pytest
from headway.common.errors import ConfigError
from headway.health.judgement import Thresholds
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.plan import (
    Conclusion,
    Node,
    Pair,
    Round,
    conclude,
    first_round,
    second_round,
    slow_nodes,
    slow_pairs,
    still_slow,
)
from hypothesis import given
from hypothesis import strategies as st

LIMITS = PairwiseConfig().thresholds
BURSTS = PairwiseConfig().num_bursts
NOISE = 0.1


def names(count: int) -> list[Node]:
    return [f"node{n}" for n in range(count)]


def rate_of(pair: Pair, bad: set[Node], chance: random.Random) -> float:
    """The slower direction of a link, each the fastest one of some noisy bursts."""
    full = 0.5 if bad & set(pair) else 1.0
    return min(full * max(chance.gauss(1.0, NOISE) for _ in range(BURSTS)) for _ in range(2))


def found(count: int, bad: set[Node], seed: int) -> Conclusion:
    chance = random.Random(seed)
    first = first_round(names(count))
    rates = {pair: rate_of(pair, bad, chance) for pair in first.pairs}
    second = second_round(first, rates, LIMITS)
    again = {pair: rate_of(pair, bad, chance) for pair in second.pairs}
    return conclude(rates, again, second, LIMITS)


@pytest.mark.parametrize("count", [8, 9, 64])
@pytest.mark.parametrize("seed", range(20))
def test_a_node_with_half_its_link_is_named_and_no_other(count: int, seed: int) -> None:
    bad = random.Random(seed).choice(names(count))
    assert found(count, {bad}, seed).bad == (bad,)


@pytest.mark.parametrize("count", [8, 9, 64])
@pytest.mark.parametrize("seed", range(20))
def test_in_a_healthy_fleet_with_noise_nobody_is_named(count: int, seed: int) -> None:
    assert found(count, set(), seed).bad == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_computes_at_half_speed_is_named_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    bad = chance.choice(names(8))

    def measured(node: Node) -> float:
        full = 0.5 if node == bad else 1.0
        return full * max(chance.gauss(1.0, NOISE) for _ in range(BURSTS))

    values = {node: measured(node) for node in names(8)}
    again = {node: measured(node) for node in slow_nodes(values, LIMITS)}
    assert still_slow(again, values, LIMITS) == [bad]


def test_both_nodes_of_a_slow_pair_are_named_if_both_are_bad() -> None:
    assert set(found(16, {"node6", "node7"}, 1).bad) == {"node6", "node7"}


def test_bad_nodes_in_different_pairs_are_all_named() -> None:
    assert set(found(16, {"node1", "node6"}, 1).bad) == {"node1", "node6"}


def test_a_slow_path_between_two_good_nodes_names_neither() -> None:
    first = first_round(names(8))
    rates = dict.fromkeys(first.pairs, 100.0) | {("node2", "node3"): 40.0}
    second = second_round(first, rates, LIMITS)
    assert [pair[0] for pair in second.pairs] == ["node2", "node3"]
    again = dict.fromkeys(second.pairs, 99.0)
    assert conclude(rates, again, second, LIMITS) == Conclusion(slow_paths=(("node2", "node3"),))


def test_a_link_that_carries_nothing_is_slow_even_among_noise() -> None:
    assert slow_pairs({("a", "b"): 0.0, ("c", "d"): 1.0, ("e", "f"): 9.0}, LIMITS) == {("a", "b")}


def test_if_no_pair_is_fast_nobody_is_judged() -> None:
    first = first_round(names(4))
    rates = dict.fromkeys(first.pairs, 0.0)
    second = second_round(first, rates, LIMITS)
    assert second == Round((), tuple(names(4)))
    assert conclude(rates, {}, second, LIMITS) == Conclusion(not_judged=tuple(names(4)))


def test_of_an_odd_number_the_last_one_is_measured_in_the_second_round() -> None:
    first = first_round(names(5))
    assert first.left_out == ("node4",)
    second = second_round(first, dict.fromkeys(first.pairs, 1.0), LIMITS)
    assert second == Round((("node4", "node0"),))


@given(count=st.integers(4, 40), data=st.data())
def test_no_node_is_in_two_pairs_of_a_round_and_none_is_forgotten(
    count: int, data: st.DataObject
) -> None:
    first = first_round(names(count))
    assert sorted([*sum(first.pairs, ()), *first.left_out]) == sorted(names(count))
    rates = {pair: data.draw(st.sampled_from([0.0, 1.0, 2.0])) for pair in first.pairs}
    second = second_round(first, rates, LIMITS)
    used = [*sum(second.pairs, ()), *second.left_out]
    assert len(used) == len(set(used))
    slow = slow_pairs(rates, LIMITS)
    suspects = {node for pair in slow for node in pair} | set(first.left_out)
    assert {pair[0] for pair in second.pairs} | set(second.left_out) == suspects


@pytest.mark.parametrize("wrong", [{"burst_s": 0}, {"num_bursts": -1}, {"least_difference": 1.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PairwiseConfig(**wrong)


def test_the_thresholds_are_those_of_the_configuration() -> None:
    assert PairwiseConfig(num_deviations=5).thresholds == Thresholds(5, 0.3)
