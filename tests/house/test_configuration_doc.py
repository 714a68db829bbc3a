"""docs/configuration.md is what its generator makes of the code, and every key is explained."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from headway.trainer.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/configuration.py."""
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "docs/configuration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says(generator: ModuleType) -> None:
    assert PAGE.read_text() == generator.page(), "run `make docs`"


def test_every_key_has_a_docstring(generator: ModuleType) -> None:
    hints = typing.get_type_hints(RunConfig)
    bare = [
        f"{table.name}.{key}"
        for table in dataclasses.fields(RunConfig)
        for key, text in generator.docstrings(hints[table.name]).items()
        if not text
    ]
    assert bare == []


def test_a_docstring_belongs_to_the_key_above_it(generator: ModuleType) -> None:
    found = generator.docstrings(Example)
    assert found == {"first": "", "second": "Of two lines.", "third": "The last."}


@dataclasses.dataclass(frozen=True)
class Example:
    """Not the docstring of a key."""

    first: int = 1
    second: int = 2
    """Of two
    lines."""
    third: int = 3
    """The last."""

    def __post_init__(self) -> None:
        """Nor is this one."""


def test_every_environment_variable_of_the_sources_is_listed(
    generator: ModuleType, sources: list[Any]
) -> None:
    used = set()
    for source in sources:
        if source.package != "testkit" and source.path.name != "testing.py":
            used |= set(re.findall(r"\bHEADWAY_[A-Z_]+\b", source.path.read_text()))
    assert used == set(generator.ENVIRONMENT)
