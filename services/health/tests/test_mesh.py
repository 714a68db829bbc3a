"""Which endpoint or link of a made-up mesh is blamed."""

from __future__ import annotations

import itertools
import random

import pytest
from headway.health.judgement import Spread, Thresholds, is_worse
from headway.health.measure.mesh import Blame, Cell, blame

LIMITS = Thresholds(num_deviations=3.0, least_difference=0.4)
GPUS = [f"gpu{n}" for n in range(8)]
NICS = [f"nic{n}" for n in range(4)]


def all_pairs(names: list[str], chance: random.Random) -> dict[Cell, float]:
    return {pair: chance.gauss(100.0, 5.0) for pair in itertools.permutations(names, 2)}


def slowed(rates: dict[Cell, float], *names: str) -> dict[Cell, float]:
    return {cell: rate / 2 if set(cell) & set(names) else rate for cell, rate in rates.items()}


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_endpoint_is_named_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    bad = chance.choice(GPUS)
    assert blame(slowed(all_pairs(GPUS, chance), bad), LIMITS) == Blame(endpoints=(bad,))


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_blamed_in_a_healthy_mesh(seed: int) -> None:
    assert blame(all_pairs(GPUS, random.Random(seed)), LIMITS).is_none


def test_one_slow_way_between_fast_endpoints_is_a_bad_link() -> None:
    rates = all_pairs(GPUS, random.Random(1))
    rates["gpu2", "gpu5"] /= 2
    assert blame(rates, LIMITS) == Blame(links=(("gpu2", "gpu5"),))


def test_an_endpoint_and_a_link_apart_from_it_are_both_named() -> None:
    rates = slowed(all_pairs(GPUS, random.Random(2)), "gpu0")
    rates["gpu6", "gpu7"] /= 3
    assert blame(rates, LIMITS) == Blame(endpoints=("gpu0",), links=(("gpu6", "gpu7"),))


def test_a_nic_is_told_from_a_memory_node_by_the_cells_that_are_slow() -> None:
    cells = {(nic, node): 50.0 for nic in NICS for node in ("memory0", "memory1")}
    assert blame(slowed(cells, "nic3"), LIMITS) == Blame(endpoints=("nic3",))


def test_a_part_that_is_only_measured_with_itself_is_named() -> None:
    cells = {(f"memory{n}", f"memory{n}"): 10.0 for n in range(4)}
    cells["memory2", "memory2"] = 4.0
    assert blame(cells, LIMITS) == Blame(endpoints=("memory2",))


def test_two_ends_without_any_other_measurement_are_left_undecided() -> None:
    cells = {(f"a{n}", f"b{n}"): 10.0 for n in range(4)}
    cells["a1", "b1"] = 1.0
    found = blame(cells, LIMITS)
    assert found == Blame(undecided=(("a1", "b1"),))
    assert str(found) == "a1 or b1 is slow"


def test_a_way_that_carries_nothing_is_slow_however_the_others_differ() -> None:
    cells = {("a", "b"): 0.0, ("a", "c"): 50.0, ("b", "c"): 190.0, ("c", "a"): 110.0}
    assert not is_worse(0.0, Spread.of([50.0, 190.0, 110.0]), LIMITS), "three deviations are more"
    assert blame(cells, LIMITS).links == (("a", "b"),)


@pytest.mark.parametrize("count", range(4))
def test_a_few_cells_are_not_compared_with_each_other(count: int) -> None:
    assert blame({("a", f"b{n}"): 10.0**n for n in range(count)}, LIMITS).is_none


def test_a_value_is_worse_only_beyond_both_thresholds_and_only_on_its_bad_side() -> None:
    quiet, noisy = Spread(100.0, 0.1), Spread(100.0, 30.0)
    assert not is_worse(95.0, quiet, LIMITS), "many deviations, but 5 %"
    assert is_worse(55.0, quiet, LIMITS)
    assert not is_worse(55.0, noisy, LIMITS), "45 %, but one and a half deviations"
    assert not is_worse(1000.0, quiet, LIMITS)
    assert is_worse(1000.0, quiet, LIMITS, higher_is_better=False)


def test_one_wild_machine_moves_neither_median_nor_deviation_much() -> None:
    assert Spread.of([98.0, 99.0, 100.0, 101.0, 1e9]) == Spread(100.0, pytest.approx(1.4826))
