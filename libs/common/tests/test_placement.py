"""Which node carries which ranks: what crosses leaves and spine, and what never changes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest
from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid
from headway.common.plan.nearest import place
from headway.common.plan.placement import Placement
from headway.common.plan.spares import choose_spares
from headway.common.plan.topology import Link, Topology
from headway.common.plan.traffic import Lane, Ring, Traffic, bytes_by_link

DRAWN = 1000


def traffic(grid: Grid, dp: int = 1, pp: int = 1, tp: int = 1) -> Traffic:
    """Rings of ``tp`` and ``dp`` bytes a rank; ``pp`` bytes to each neighbour in the pipeline."""
    rings = (
        Ring("tensor parallel", "tp", (tp,) * grid.pp),
        Ring("data parallel", "dp", (dp,) * grid.pp),
    )
    ways = [(stage, stage + 1) for stage in range(grid.pp - 1)]
    lanes = [Lane("pipeline", *way, pp) for up in ways for way in (up, up[::-1])]
    return Traffic(grid, rings, tuple(lanes))


def leaves(*sizes: int) -> list[tuple[str, ...]]:
    """Leaves of so many nodes each below one spine."""
    return [("spine", f"leaf{leaf}") for leaf, size in enumerate(sizes) for _ in range(size)]


def over(link: Link, moved: Traffic, placement: Placement, topology: Topology) -> int:
    """Bytes of a step over one kind of link."""
    return sum(found[link] for found in bytes_by_link(moved, placement, topology).values())


def _spares(moved: Traffic, ranks_per_node: int, topology: Topology) -> tuple[int, ...]:
    num_nodes = moved.grid.world_size // ranks_per_node
    return choose_spares(topology, topology.num_nodes - num_nodes)


def draw(rng: random.Random, *, is_scattered: bool) -> tuple[Traffic, int, Topology]:
    """A cluster of 2 to 10 leaves, and a run on all of its nodes but some spares."""
    sizes = [rng.randint(2, 12) for _ in range(rng.randint(2, 10))]
    nodes = leaves(*sizes)
    if rng.random() < 0.3:
        nodes = [("core", f"pod{int(leaf[4:]) // 3}", leaf) for _, leaf in nodes]
    if is_scattered:
        rng.shuffle(nodes)
    num_nodes = len(nodes) - rng.choice((0, 0, 1, 2))
    tp = rng.choice((1, 2))
    pp = rng.choice([pp for pp in range(1, 33) if num_nodes * 2 // tp % pp == 0])
    grid = Grid(tp=tp, pp=pp, dp=num_nodes * 2 // tp // pp)
    moved = traffic(grid, dp=rng.choice((1, 10, 100)), pp=rng.choice((1, 10)))
    return moved, 2, Topology(tuple(nodes))


def test_no_placement_sends_more_over_the_spine_than_consecutive_ranks() -> None:
    """And of scattered nodes half of them send less than half as much."""
    ratios = []
    for seed in range(DRAWN):
        is_scattered = seed % 2 == 0
        moved, ranks_per_node, topology = draw(random.Random(seed), is_scattered=is_scattered)
        placed = place(moved, ranks_per_node, topology)
        carriers = set(placed.node_by_rank())
        assert carriers.isdisjoint(_spares(moved, ranks_per_node, topology)), seed
        consecutive = Placement(moved.grid, ranks_per_node, tuple(sorted(carriers)))
        assert sorted(placed.node_by_rank()) == consecutive.node_by_rank(), seed
        after = over(Link.SPINE, moved, placed, topology)
        before = over(Link.SPINE, moved, consecutive, topology)
        assert after <= before, seed
        if is_scattered and before:
            ratios.append(after / before)
    assert len(ratios) > DRAWN // 3
    assert statistics.median(ratios) <= 0.5


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (5, 0, 3, 6, 1, 4, 7, 2)])
def test_dp_rings_stay_below_one_leaf_where_they_fit(order: Sequence[int]) -> None:
    """Four stages of two nodes each, two of them at each leaf; then only pipelines cross."""
    chains = leaves(4, 4)
    topology = Topology(tuple(chains[at] for at in order))
    moved = traffic(Grid(tp=2, pp=4, dp=4), dp=50, pp=1)
    found = bytes_by_link(moved, place(moved, 4, topology), topology)
    assert found["data parallel"][Link.SPINE] == 0
    assert found["pipeline"][Link.SPINE] == 2 * 8  # both ways between the stages in the middle
    assert found["tensor parallel"] == {Link.NVLINK: 32, Link.LEAF: 0, Link.SPINE: 0}


def test_stages_are_side_by_side_where_pipelines_send_most() -> None:
    topology = Topology(tuple(leaves(2, 2, 2, 2)))
    moved = traffic(Grid(pp=2, dp=4), dp=1, pp=50)
    found = bytes_by_link(moved, place(moved, 1, topology), topology)
    assert found["pipeline"][Link.SPINE] == 0


def test_larger_runs_are_laid_out_in_tiles() -> None:
    """Neither whole rings nor whole pipelines fit a leaf, and both send as much."""
    chains = leaves(*[4] * 16)
    random.Random(0).shuffle(chains)
    topology, moved = Topology(tuple(chains)), traffic(Grid(pp=8, dp=8), dp=2, pp=1)
    found = bytes_by_link(moved, place(moved, 1, topology), topology)
    assert found["data parallel"][Link.SPINE] == 2 * 8 * 4  # every second hop of each ring
    assert found["pipeline"][Link.SPINE] == 2 * 8 * 3  # every second hop of each pipeline


def test_of_equal_placements_one_with_the_fewest_levels_of_switches_is_taken() -> None:
    """Leaves of one pod are filled together, although the pods' leaves alternate."""
    chains = [("core", f"pod{node % 2}", f"leaf{node}") for node in range(4)]
    topology, moved = Topology(tuple(chains)), traffic(Grid(pp=2, dp=2), dp=50, pp=1)
    placed = place(moved, 1, topology)
    assert placed.nodes == (0, 2, 1, 3)
    assert over(Link.SPINE, moved, placed, topology) == over(
        Link.SPINE, moved, Placement(moved.grid, 1), topology
    )


def test_ranks_stay_consecutive_where_nothing_is_gained() -> None:
    moved = traffic(Grid(tp=2, pp=2, dp=2))
    for topology in (Topology.one_switch(5), Topology(tuple(leaves(2, 2)))):
        assert place(moved, 2, topology).node_by_rank() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_nodes_with_several_stages_or_parts_of_rings_are_placed_too() -> None:
    scattered = Topology((*leaves(1, 1), *leaves(1, 1)))
    several = traffic(Grid(pp=8))
    assert over(Link.SPINE, several, place(several, 2, scattered), scattered) == 2
    parts, six = traffic(Grid(pp=4, dp=3)), Topology((*leaves(1, 1), *leaves(1, 1), *leaves(1, 1)))
    consecutive = Placement(parts.grid, 2)
    before = over(Link.SPINE, parts, consecutive, six)
    assert over(Link.SPINE, parts, place(parts, 2, six), six) < before


def test_a_placement_of_12288_ranks_is_the_same_every_time() -> None:
    nodes = [("core", f"pod{node // 256}", f"tor{node // 32}") for node in range(1536)]
    random.Random(0).shuffle(nodes)
    topology, moved = Topology(tuple(nodes)), traffic(Grid(tp=8, pp=8, dp=192), dp=13)
    first, second = (place(moved, 8, topology) for _ in range(2))
    assert first == second
    consecutive = Placement(moved.grid, 8)
    assert over(Link.SPINE, moved, first, topology) < 0.2 * over(
        Link.SPINE, moved, consecutive, topology
    )


def test_a_placement_says_who_is_where() -> None:
    placement = Placement(Grid(dp=6), 2, nodes=(4, 0, 2))
    assert placement.node_by_rank() == [4, 4, 0, 0, 2, 2]
    assert [placement.node_of(rank) for rank in range(6)] == placement.node_by_rank()
    assert placement.ranks_of(0) == (2, 3) and placement.local_rank(3) == 1
    with pytest.raises(ConfigError, match="node 1"):
        placement.ranks_of(1)


def test_nodes_that_are_missing_or_named_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 nodes of 3 for 3 blocks"):
        Placement(Grid(dp=3), 1, nodes=(0, 1, 1))
    with pytest.raises(ConfigError, match="node 3 is not in a topology of 2 nodes"):
        place(traffic(Grid(dp=4)), 1, Topology.one_switch(2))
