"""Grid, placement, sizes and configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from headway.common.config import diff, from_dict, load, to_dict, to_toml
from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid
from headway.common.plan.model_shape import ModelShape, mfu
from headway.common.plan.placement import Placement
from hypothesis import given
from hypothesis import strategies as st

grids = st.builds(Grid, tp=st.integers(1, 5), pp=st.integers(1, 5), dp=st.integers(1, 5))


@given(grids)
def test_ranks_and_coordinates_are_a_bijection(grid: Grid) -> None:
    seen = [grid.rank(tp=c.tp, dp=c.dp, pp=c.pp) for c in map(grid.coordinates, range(grid.world_size))]
    assert seen == list(range(grid.world_size))


@given(grids)
def test_the_groups_of_each_axis_cut_the_world_into_equal_parts(grid: Grid) -> None:
    for group, size in ((grid.tp_group, grid.tp), (grid.dp_group, grid.dp), (grid.pp_group, grid.pp)):
        groups = {group(rank) for rank in range(grid.world_size)}
        assert sorted(rank for members in groups for rank in members) == list(range(grid.world_size))
        assert {len(members) for members in groups} == {size}
        assert all(rank in group(rank) for rank in range(grid.world_size))


def test_tensor_parallel_peers_share_a_node() -> None:
    placement = Placement(Grid(tp=2, pp=2, dp=2), ranks_per_node=2)
    assert all(
        placement.node_of(a) == placement.node_of(b) for a, b in (placement.grid.tp_group(rank) for rank in range(8))
    )
    assert [placement.ranks_of(n) for n in range(placement.num_nodes)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_nodes_that_ranks_do_not_fill_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 ranks"):
        Placement(Grid(tp=2, pp=2, dp=2), ranks_per_node=3)


def test_the_default_model_has_about_ten_million_parameters() -> None:
    shape = ModelShape(layers=4, hidden=384, ffn=1536, vocab_size=8192, seq_len=512)
    assert shape.matmul_parameters == 4 * 12 * 384 * 384 + 384 * 8192
    assert 13e6 < shape.parameters < 14e6
    assert mfu(tokens_per_s=1000, flops_per_token=shape.flops_per_token, peak_flops=1e12) == pytest.approx(
        shape.flops_per_token / 1e9
    )


# ---- configuration ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Inner:
    steps: int = 3
    rate: float = 0.5
    mode: Literal["fast", "slow"] = "fast"
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    path: Path = Path("data")
    sizes: tuple[int, ...] = (1, 2)
    loud: bool = False

    def __post_init__(self) -> None:
        if self.inner.steps > 1000:
            raise ValueError("inner.steps is above 1000")


outers = st.builds(
    Outer,
    inner=st.builds(
        Inner,
        steps=st.integers(-9, 1000),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        mode=st.sampled_from(["fast", "slow"]),
        name=st.none() | st.text(),
    ),
    path=st.just(Path("a b/ü")),
    sizes=st.lists(st.integers()).map(tuple),
    loud=st.booleans(),
)


@given(outers)
def test_a_configuration_survives_the_way_through_toml(config: Outer) -> None:
    import tomllib

    assert from_dict(Outer, tomllib.loads(to_toml(config))) == config
    assert from_dict(Outer, to_dict(config)) == config


def test_later_layers_win(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("loud = true\n[inner]\nsteps = 5\nrate = 1\n")
    second.write_text("[inner]\nsteps = 6\n")
    config = load(Outer, files=[first, second], overrides=["inner.rate=2.5", "inner.mode=slow", "path=x/y"])
    assert config == Outer(Inner(6, 2.5, "slow"), Path("x/y"), (1, 2), True)
    assert diff(Outer(), config)["inner.steps"] == (3, 6)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("inner.step=1", "did you mean inner.steps"),
        ("innner.steps=1", "did you mean inner"),
        ("inner.steps=fast", "inner.steps = 'fast'"),
        ("inner.steps=true", "expected int"),
        ("inner.mode=fats", "did you mean 'fast'"),
        ("inner=3", "is not a table"),
        ("sizes=3", "expected a list"),
        ("inner.steps=1001", "above 1000"),
        ("nonsense", "table.key=value"),
    ],
)
def test_bad_values_are_named_with_a_remedy(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(Outer, overrides=[override])


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*nowhere.toml"):
        load(Outer, files=[tmp_path / "nowhere.toml"])
    broken = tmp_path / "broken.toml"
    broken.write_text("[inner\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(Outer, files=[broken])
