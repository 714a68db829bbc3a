"""Every source file of every part, read once: what the rules of the house are held against."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One import statement's module, with ``from`` names joined on where they may be modules."""

    module: str
    names: tuple[str, ...]
    line: int
    for_types_only: bool
    """Below ``if TYPE_CHECKING``: never executed."""


@dataclass(frozen=True)
class Source:
    """One Python file of a distribution."""

    path: Path
    distribution: Path
    module: str
    """Dotted name, as ``headway.common.wire.codec``; a package by its own name."""
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        """The part of Headway it belongs to, as ``common``."""
        return self.module.split(".")[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def distributions() -> dict[Path, dict[str, object]]:
    """Folder of each distribution -> its pyproject."""
    files = [*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
    files.append(ROOT / "console" / "pyproject.toml")
    return {file.parent: tomllib.loads(file.read_text()) for file in sorted(files)}


@pytest.fixture(scope="session")
def sources(distributions: dict[Path, dict[str, object]]) -> list[Source]:
    """Every file below a ``src``."""
    return [
        _read(path, folder)
        for folder in distributions
        for path in sorted((folder / "src").rglob("*.py"))
    ]


def _read(path: Path, distribution: Path) -> Source:
    parts = list(path.relative_to(distribution / "src").with_suffix("").parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(path.read_text(), filename=str(path))
    return Source(path, distribution, module, tree, tuple(_imports(tree)))


def _imports(tree: ast.Module) -> list[Import]:
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [
                Import(alias.name, (), node.lineno, node in typing_only) for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            names = tuple(alias.name for alias in node.names)
            found.append(Import(node.module or "", names, node.lineno, node in typing_only))
    return found
