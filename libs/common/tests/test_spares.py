"""Which nodes are spares, and which neighbours in data parallelism cross leaf switches."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from headway.common.plan.crossings import dp_pairs
from headway.common.plan.grid import Grid
from headway.common.plan.nearest import place
from headway.common.plan.spares import choose_spares
from headway.common.plan.topology import Chain, Topology
from headway.common.plan.traffic import Ring, Traffic

TWO_LEAVES = Topology((*[("spine", "a")] * 3, *[("spine", "b")] * 3))


@pytest.mark.parametrize(
    ("count", "spares"), [(0, ()), (1, (5,)), (2, (2, 5)), (3, (2, 4, 5)), (6, (0, 1, 2, 3, 4, 5))]
)
def test_spares_are_spread_over_two_leaves(count: int, spares: tuple[int, ...]) -> None:
    assert choose_spares(TWO_LEAVES, count) == spares


def test_the_last_nodes_are_spares_where_the_switches_are_not_known() -> None:
    assert choose_spares(Topology.one_switch(6), 2) == (4, 5)


@pytest.mark.parametrize(
    ("count", "spares"), [(1, (6,)), (2, (2, 6)), (3, (2, 5, 6)), (4, (2, 4, 5, 6))]
)
def test_a_large_leaf_comes_first_and_the_only_node_of_a_leaf_last(
    count: int, spares: tuple[int, ...]
) -> None:
    topology = Topology((("a",), *[("b",)] * 2, *[("c",)] * 4))
    assert choose_spares(topology, count) == spares


def test_no_leaf_gets_a_second_spare_before_all_have_one() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 8))]
        chains: list[Chain] = [("s", f"{n}") for n, size in enumerate(sizes) for _ in range(size)]
        rng.shuffle(chains)
        topology = Topology(tuple(chains))
        spares = choose_spares(topology, rng.randint(0, len(chains)))
        assert list(spares) == sorted(set(spares))
        number = Counter(chains[node] for node in spares)
        left = Counter(chains) - number
        if max(number.values(), default=0) > 1 and max(left.values(), default=0) > 1:
            assert all(number[chain] or left[chain] == 1 for chain in set(chains)), seed


def test_spares_are_spread_over_the_upper_switches_too() -> None:
    """Two of four leaves get one, below different ones."""
    leaves = [("core", f"pod{leaf // 2}", f"leaf{leaf}") for leaf in range(4)]
    topology = Topology(tuple(chain for chain in leaves for _ in range(3)))
    pods = {topology.switches[node][1] for node in choose_spares(topology, 2)}
    assert pods == {"pod0", "pod1"}


def test_replicas_stay_below_their_leaf_next_to_a_spare() -> None:
    """Two stages of two replicas on two leaves of three machines: each leaf has a stage."""
    traffic = Traffic(Grid(pp=2, dp=2), (Ring("data parallel", "dp", (100, 100)),))
    placed = place(traffic, 1, TWO_LEAVES)
    assert placed.node_by_rank() == [0, 1, 3, 4]


# ---- what crosses -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("grid", "nodes", "expected"),
    [
        (Grid(dp=2), [0, 3], (1, 1)),  # a ring of two is one pair
        (Grid(dp=4), [0, 1, 3, 4], (2, 4)),
        (Grid(pp=2, dp=2), [0, 1, 3, 4], (0, 2)),
        (Grid(pp=2, dp=2), [0, 3, 1, 4], (2, 2)),
        (Grid(tp=2, dp=2), [0, 0, 3, 3], (2, 2)),
        (Grid(pp=2), [0, 3], (0, 0)),
    ],
)
def test_neighbours_that_cross_leaf_switches_are_counted(
    grid: Grid, nodes: list[int], expected: tuple[int, int]
) -> None:
    assert dp_pairs(grid, dict(enumerate(nodes)), TWO_LEAVES) == expected
