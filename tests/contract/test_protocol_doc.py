"""``docs/protocol.md`` is the authority on who sends what; here it is compared with the code."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.run_dir import NodePaths
from headway.common.wire import messages
from headway.common.wire.codec import PROTOCOL_VERSION
from headway.common.wire.message import tag_of
from headway.testkit.wire import all_messages

DOC = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
MODULES = sorted(module.name for module in pkgutil.iter_modules(messages.__path__))


def section(number: int) -> str:
    """The text of one numbered section."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no section {number}"
    return found[0]


def test_the_title_says_the_version_that_the_code_speaks() -> None:
    assert DOC.read_text().splitlines()[0] == f"# Protocol, version {PROTOCOL_VERSION}"


def test_the_modules_of_messages_are_those_that_the_page_names() -> None:
    named = re.findall(
        r"`([a-z_]+)`", section(8).partition("one module per receiver:")[2].partition(".")[0]
    )
    assert sorted(named) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_tag_begins_with_its_receivers_module(module: str) -> None:
    own = [m for m in all_messages() if m.__module__.rpartition(".")[2] == module]
    assert own, "a module without messages"
    assert all(tag_of(message).startswith(f"{module}.") for message in own)


def test_the_table_of_processes_is_what_a_run_starts(node: Any) -> None:
    rows = {
        row.split("|")[1].strip(): row for row in section(1).splitlines() if row.startswith("| ")
    }
    living = {*node.beside, *_children(node), "init", "executor", "worker"}
    assert set(rows) - {"process"} == living


def _children(node: Any) -> set[str]:
    names = {"dataloader", "ckpt_store", "agent", "zygote"}
    assert all(node.pid(name) for name in names)
    return names


def test_the_sockets_that_the_page_names_are_those_that_lie_in_the_nodes_folder(node: Any) -> None:
    named = set(re.findall(r"`([a-z_]+\.sock)`", section(1)))
    assert named == {path.name for path in node.paths.sock_dir.glob("*.sock")}


def test_the_segments_that_the_page_names_have_the_names_that_the_code_gives() -> None:
    paths = NodePaths("0badcafe", 0)
    for kind, name in (
        ("arena", "<rank>"),
        ("flight", "<rank>"),
        ("ring", "*"),
        ("words", "<worker>"),
    ):
        assert f"`{kind}-{name}.bin`" in section(2)
        assert paths.segment(kind, 0).name == f"{kind}-0.bin"


def test_the_files_that_parts_leave_are_those_that_the_page_names(node: Any) -> None:
    page = section(2)
    for path in (
        node.run.config,
        node.run.database,
        node.run.path / "driver.json",
        node.paths.sock_dir / "monitor.json",
    ):
        assert path.exists() and f"{path.name}`" in page, path
    assert (node.paths.sock_dir / "executor.json").exists() and "`executor.json`" in page


@pytest.mark.parametrize("name", ["executor", "driver"])
def test_the_controllers_readme_names_the_messages_that_its_processes_take(
    node: Any, name: str
) -> None:
    readme = (DOC.parents[1] / "services" / "controller" / "README.md").read_text()
    rows = {
        row.split("|")[1].split(",")[0].strip(): row.split("|")
        for row in readme.splitlines()
        if "| of " in row
    }
    named = set(re.findall(r"`([A-Z]\w+)`", rows[name][2]))
    if name == "driver":  # "the five above"
        named |= set(re.findall(r"`([A-Z]\w+)`", rows["executor"][3].partition(";")[0]))
    types = {tag_of(message): message.__name__ for message in all_messages()}
    taken = {types[tag] for tag in node.taken(name) if tag.startswith((f"{name}.", "health."))}
    assert taken, "the service takes nothing"
    own = {names for names in named if names in types.values()}
    assert own == named, "a name that is no message"
    assert taken <= named
