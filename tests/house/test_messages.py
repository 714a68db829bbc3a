"""Every field of a message is read by a program, and one of a few words has them as its type."""

from __future__ import annotations

import ast
import re
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


LISTED = re.compile(r"^(\w+ -> )?``[a-z_]+``|``[a-z_]+``( \([^)]*\))?(,| or|, or) ``[a-z_]+``")
"""A docstring that begins with a value or has two in a row; other fields may be named in it."""


def fields_with_listed_values(source: str) -> Iterator[str]:
    for kind in ast.parse(source).body:
        if not isinstance(kind, ast.ClassDef):
            continue
        for field, after in zip(kind.body, kind.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr)):
                continue
            hint, text = ast.unparse(field.annotation), ast.unparse(after)
            words = " ".join(str(ast.literal_eval(text)).split())
            if re.search(r"\bstr\b", hint) and LISTED.search(words):
                yield f"{kind.name}.{ast.unparse(field.target)}"


def test_no_str_field_lists_its_values_in_prose() -> None:
    found = [
        name
        for path in MESSAGES.glob("*.py")
        for name in fields_with_listed_values(path.read_text())
    ]
    assert not found, "make these Literal[...], which is checked where messages come in"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("``on`` or ``off``.", True),
        ("Node -> ``on``, ``off``.", True),
        ("The state: ``on`` (by hand),\n    ``off``.", True),
        ("With ``set`` and ``unset``: the name.", False),
        ("See ``headway.launch.join.bundle``.", False),
    ],
)
def test_what_counts_as_a_list_of_values(text: str, is_found: bool) -> None:
    source = f'class Beat:\n    state: HINT\n    """{text}"""\n'
    found = list(fields_with_listed_values(source.replace("HINT", "str")))
    assert found == ["Beat.state"] * is_found
    assert not list(fields_with_listed_values(source.replace("HINT", "State")))
