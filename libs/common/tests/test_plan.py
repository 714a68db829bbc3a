"""Grid, placement and sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headway.common.errors import ConfigError
from headway.common.plan.grid import AXES, Grid
from headway.common.plan.model_shape import ModelShape, mfu
from headway.common.plan.placement import Placement
from hypothesis import given
from hypothesis import strategies as st

grids = st.builds(Grid, tp=st.integers(1, 5), pp=st.integers(1, 5), dp=st.integers(1, 5))


@given(grids)
def test_ranks_and_coordinates_are_a_bijection(grid: Grid) -> None:
    seen = [
        grid.rank(tp=c.tp, dp=c.dp, pp=c.pp) for c in map(grid.coordinates, range(grid.world_size))
    ]
    assert seen == list(range(grid.world_size))


@given(grids)
def test_the_groups_of_each_axis_cut_the_world_into_equal_parts(grid: Grid) -> None:
    for axis in AXES:
        groups = {grid.group(axis, rank) for rank in range(grid.world_size)}
        assert sorted(rank for members in groups for rank in members) == list(
            range(grid.world_size)
        )
        assert {len(members) for members in groups} == {grid.degree(axis)}
        for rank in range(grid.world_size):
            members = [grid.coordinates(member) for member in grid.group(axis, rank)]
            assert [getattr(c, axis) for c in members] == list(range(grid.degree(axis)))
            assert {replace(c, **{axis: 0}) for c in members} == {
                replace(grid.coordinates(rank), **{axis: 0})
            }


def test_tensor_parallel_ranks_are_neighbours_and_stages_are_the_furthest_apart() -> None:
    """The order of the axes is that of the network: what talks most is nearest."""
    grid = Grid(tp=2, dp=3, pp=4)
    assert grid.group("tp", 7) == (6, 7)
    assert grid.group("dp", 7) == (7, 9, 11)
    assert grid.group("pp", 7) == (1, 7, 13, 19)


def test_the_place_of_a_rank_names_the_axes_that_are_in_use() -> None:
    assert Grid(tp=2, pp=2, dp=2).place(5) == "pp 1 dp 0 tp 1"
    assert Grid(dp=2).place(1) == "dp 1" and Grid().place(0) == "alone"


def test_tensor_parallel_peers_share_a_node() -> None:
    placement = Placement(Grid(tp=2, pp=2, dp=2), ranks_per_node=2)
    assert all(
        placement.node_of(a) == placement.node_of(b)
        for a, b in (placement.grid.group("tp", rank) for rank in range(8))
    )
    assert [placement.ranks_of(n) for n in range(placement.num_nodes)] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]


def test_nodes_that_ranks_do_not_fill_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 ranks"):
        Placement(Grid(tp=2, pp=2, dp=2), ranks_per_node=3)


def test_the_default_model_has_about_ten_million_parameters() -> None:
    shape = ModelShape(layers=4, hidden=384, ffn=1536, vocab_size=8192, seq_len=512)
    assert shape.matmul_parameters == 4 * 12 * 384 * 384 + 384 * 8192
    assert 13e6 < shape.parameters < 14e6
    assert mfu(
        tokens_per_s=1000, flops_per_token=shape.flops_per_token, peak_flops=1e12
    ) == pytest.approx(shape.flops_per_token / 1e9)
