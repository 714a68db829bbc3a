"""docs/troubleshooting.md quotes errors that the code still has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
QUOTED = re.compile(r"(?m)^- \*\*`([^`]+)`")


@pytest.fixture(scope="module")
def texts(sources: list[Any]) -> list[str]:
    """Every string of the sources, with ``...`` for what is filled in."""
    found = []
    for source in sources:
        if source.package != "testkit":
            found += [text for node in ast.walk(source.tree) for text in _texts(node)]
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        yield re.sub(r"(\.\.\.)+", "...", "".join(map(str, parts)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_every_quoted_error_is_in_the_code(texts: list[str]) -> None:
    quoted = QUOTED.findall(PAGE.read_text().replace("\n  ", " "))
    assert len(quoted) > 30
    gone = [error for error in quoted if not any(_says(text, error) for text in texts)]
    assert gone == []


def _says(text: str, error: str) -> bool:
    pattern = ".*".join(re.escape(piece) for piece in error.split("..."))
    return re.search(pattern, text, re.DOTALL) is not None


def test_a_changed_error_is_noticed() -> None:
    assert _says("run name '...' is taken by a finished run", "run name ... is taken")
    assert not _says("run name '...' is taken by a finished run", "run name ... is in use")
