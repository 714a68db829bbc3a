"""The table of moved names in CHANGELOG.md: every new name can be imported."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def new_names() -> list[str]:
    """Dotted ``headway.`` names in the right column of the table."""
    table = CHANGELOG.read_text().partition("| was | is |")[2].partition("\n\n")[0]
    cells = [line.split("|")[2] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(headway\.[\w.]+)", cell)]


def resolve(name: str) -> Any:
    """The module, or what is in it."""
    parts = name.rstrip(".").split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_every_new_name_of_the_table_imports() -> None:
    names = new_names()
    assert len(names) > 20, "the table was found"
    for name in names:
        resolve(name)


@pytest.mark.parametrize("name", ["headway.console.no_such", "headway.console.Run.no_such"])
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(name)
