"""A field of a message is read by a program; what nothing reads is not sent."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from headway.common.wire.message import Message, tag_of
from headway.testkit.wire import all_messages

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = ROOT / "libs/common/src/headway/common/wire/messages"
TESTKIT = ROOT / "libs/testkit"

each_message = pytest.mark.parametrize("message", all_messages(), ids=tag_of)


def names_read(source: str) -> Iterator[str]:
    """Names of the attributes that a module reads of anything but ``self``: those of its own
    objects are called like the fields that they fill."""
    tree = ast.parse(source)
    takes_names = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            takes_names |= node.func.id == "getattr"
    if takes_names:  # a table of names, such as that of the exporter
        yield from (
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )


def read_by_programs(folders: Iterable[Path]) -> set[str]:
    return {
        name
        for folder in folders
        for path in folder.rglob("*.py")
        if not path.is_relative_to(MESSAGES)
        for name in names_read(path.read_text())
    }


@pytest.fixture(scope="module")
def read() -> set[str]:
    folders = [folder for folder in ROOT.glob("*/*/src") if not folder.is_relative_to(TESTKIT)]
    found = read_by_programs([*folders, ROOT / "console" / "src"])
    assert len(found) > 2000  # the folders were found
    return found


@each_message
def test_every_field_is_read_by_a_program(message: type[Message], read: set[str]) -> None:
    unread = [name for name in message.__struct_fields__ if name not in read]
    assert not unread, "nothing reads these; remove them and what fills them"


def test_what_counts_as_reading_a_field() -> None:
    assert set(names_read("self.kept = beat.step")) == {"step"}
    assert set(names_read("match beat:\n    case Beat(rank=0):\n        pass")) == {"rank"}
    assert set(names_read("Beat(filled=self.filled)\nbeat.written = 'named'")) == set()
    assert set(names_read("TABLE = {'load': 1}\n[getattr(beat, key) for key in TABLE]")) == {"load"}
