"""Lazy packages: nothing is imported before its name is asked for, and names stay the same."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

INIT = """
from headway.common.lazy import lazy

__getattr__, __dir__ = lazy(__name__, prepare="prepare", shapes="Circle Square")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "prepare.py").write_text("def prepare(): return 1")
    (folder / "shapes.py").write_text("class Circle: ...\nclass Square: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("", ".prepare", ".shapes"):
        monkeypatch.delitem(sys.modules, f"lazy_example{name}", raising=False)
    return importlib.import_module("lazy_example")


def test_a_module_is_imported_when_its_first_name_is_used(package: ModuleType) -> None:
    assert dir(package) == ["Circle", "Square", "prepare"]
    assert "lazy_example.shapes" not in sys.modules
    assert package.Circle is package.Circle
    assert "lazy_example.shapes" in sys.modules
    assert "lazy_example.prepare" not in sys.modules


def test_a_function_called_like_its_module_stays_the_function(package: ModuleType) -> None:
    assert [package.prepare(), package.prepare()] == [1, 1]


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="'lazy_example' has no attribute 'Triangle'"):
        _ = package.Triangle
