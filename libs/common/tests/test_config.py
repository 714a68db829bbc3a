"""The configuration loader: layers, unions, None, nested defaults, lists of
tables, what it refuses."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from headway.common.config import diff, from_dict, load, to_dict, to_toml
from headway.common.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Leaf:
    size: int = 1
    weight: float = 2.0
    level: Literal[1, 2] = 1
    limit: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        if self.size == 666:
            raise ValueError("size is out of range")


@dataclass(frozen=True)
class Tree:
    leaf: Leaf = field(default_factory=lambda: Leaf(size=5, limit=7))
    spare: Leaf | None = None
    count: int | None = 3
    label: str | None = None
    folder: Path | None = Path("data")
    leaves: tuple[Leaf, ...] = ()
    derived: int = field(init=False, default=0)


@dataclass(frozen=True)
class Needs:
    where: str
    leaf: Leaf = field(default_factory=Leaf)


leaves = st.builds(
    Leaf,
    size=st.integers().filter(lambda size: size != 666),  # which Leaf refuses
    weight=st.floats(allow_nan=False),
    level=st.sampled_from([1, 2]),
    limit=st.none() | st.integers() | st.just("auto"),
)
trees = st.builds(
    Tree,
    leaf=leaves,
    spare=st.none() | leaves,
    count=st.none() | st.integers(),
    label=st.none() | st.text() | st.just("none"),
    folder=st.none() | st.just(Path("a b/ü")),
    leaves=st.lists(leaves, max_size=3).map(tuple),
)


@given(trees)
def test_every_configuration_survives_the_way_through_toml(tree: Tree) -> None:
    assert from_dict(Tree, tomllib.loads(to_toml(tree))) == tree
    assert from_dict(Tree, to_dict(tree)) == tree


@given(trees, trees)
def test_a_difference_is_empty_exactly_for_equal_configurations(old: Tree, new: Tree) -> None:
    assert (diff(old, new) == {}) == (old == new)


def test_later_layers_win(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("count = 4\n[leaf]\nsize = 6\nweight = 1\n")
    second.write_text("[leaf]\nsize = 7\n")
    tree = load(
        Tree, files=[first, second], overrides=["leaf.weight=2.5", "leaf.level=2", "folder=x/y"]
    )
    assert tree == Tree(Leaf(7, 2.5, 2, 7), count=4, folder=Path("x/y"))
    assert diff(Tree(), tree)["leaf.size"] == (5, 7)


def test_a_file_of_the_former_writer_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'count = "none"\nlabel = "a\\u0001\\"b"\nfolder = "data"\n'
        "leaves = [{size = 1, weight = 1e-08}, {level = 2}]\n"
        '\n[leaf]\nsize = 5\nweight = 2.0\nlevel = 1\nlimit = "none"\n'
    )
    tree = load(Tree, files=[file])
    assert (tree.count, tree.label, tree.leaf) == (None, 'a\x01"b', Leaf(5))
    assert tree.leaves == (Leaf(weight=1e-8), Leaf(level=2))


def test_a_table_that_is_given_in_part_keeps_the_rest_of_its_own_default() -> None:
    assert load(Tree, overrides=["leaf.weight=4"]).leaf == Leaf(size=5, weight=4.0, limit=7)
    assert load(Tree, overrides=["spare.weight=4"]).spare == Leaf(weight=4.0)


def test_none_can_be_said_where_it_is_not_the_default() -> None:
    tree = load(Tree, overrides=["count=none", "folder=none", "leaf.limit=none", "label=none"])
    assert (tree.count, tree.folder, tree.leaf.limit, tree.label) == (None, None, None, "none")


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    tree = load(Tree, overrides=["leaf.size=1e6", "count=2.0"])
    assert (tree.leaf.size, tree.count) == (10**6, 2)
    assert isinstance(tree.leaf.size, int) and isinstance(tree.count, int)


def test_every_member_of_a_union_is_tried() -> None:
    assert load(Tree, overrides=["leaf.limit=auto"]).leaf.limit == "auto"
    assert load(Tree, overrides=["leaf.limit=12"]).leaf.limit == 12


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("leaf.level=true", "leaf.level = True is not one of 1, 2"),
        ("leaf.limit=aut", "did you mean 'auto'"),
        ("weight=3", "did you mean leaf.weight"),
        ("derived=3", "unknown configuration key 'derived'"),
        ("leaves=[{size='a'}]", r"leaves\[0\].size = 'a'"),
        ("leaf.size=1.5", "leaf.size = 1.5 is of type float; expected int"),
        ("leaf.size=1e400", "leaf.size = inf is of type float; expected int"),
        ("leaf.size=1e30", r"leaf.size = 1e\+30 is of type float; expected int"),
        ("leaf.size=true", "leaf.size = True is of type bool; expected int"),
        ("leaf.sizes=1", "unknown configuration key 'leaf.sizes'; did you mean leaf.size"),
        ("leaf=3", "leaf = 3 is not a table"),
        ("leaf.size=666", "leaf: size is out of range"),
        ("spare.size=666", "spare: size is out of range"),
        ("leaves=3", "leaves = 3 is of type int; expected a list"),
        ("leaves=[{sise=1}]", r"unknown configuration key 'leaves\[0\].sise'"),
        ("folder=3", "folder = 3 is of type int; expected Path"),
        ("count", "table.key=value"),
        ("=3", "table.key=value"),
        ("leaf..size=3", "table.key=value"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_a_remedy(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(Tree, overrides=[override])


def test_a_key_without_default_has_to_be_set() -> None:
    with pytest.raises(ConfigError, match="'where' is missing"):
        load(Needs)
    assert load(Needs, overrides=["where=a=b"]).where == "a=b"


def test_an_override_of_several_lines_is_a_string_and_sets_no_other_key() -> None:
    assert load(Needs, overrides=['where="a"\nleaf = 3']).where == '"a"\nleaf = 3'


def test_a_whole_number_is_a_float_where_one_is_wanted() -> None:
    weight = load(Tree, overrides=["leaf.weight=4"]).leaf.weight
    assert (weight, type(weight)) == (4.0, float)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[leaf\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(Tree, files=[broken])
    with pytest.raises(ConfigError, match=r"no configuration file .*nowhere.toml"):
        load(Tree, files=[tmp_path / "nowhere.toml"])
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (binary, tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read {path}"):
            load(Tree, files=[path])
