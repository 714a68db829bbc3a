"""What the parts show and declare, and how their files are named and sized."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

MAX_LINES = 400


def test_no_file_sits_between_the_parts(distributions: dict[Path, Any]) -> None:
    """One ``src/headway/__init__.py`` hides every other distribution."""
    for folder in distributions:
        assert [path.name for path in (folder / "src").iterdir() if path.name != "__pycache__"] == [
            "headway"
        ]
        parts = [p for p in (folder / "src" / "headway").iterdir() if p.name != "__pycache__"]
        assert [part.name for part in parts] == [folder.name], f"{folder}: {parts}"
        assert (parts[0] / "py.typed").exists()


def test_all_equals_reality_in_every_package(sources: list[Any]) -> None:
    checked = 0
    for source in sources:
        if source.path.name != "__init__.py":
            continue
        package = importlib.import_module(source.module)
        names = getattr(package, "__all__", None)
        if names is None:
            assert not _public_names(source.tree), f"{source.path} shows names without __all__"
            continue
        checked += 1
        assert names == sorted(names) and len(set(names)) == len(names), source.path
        for name in names:
            assert getattr(package, name) is not None, f"{source.path}: {name}"
        assert set(names) == _public_names(source.tree) | _typed_names(source), source.path
    assert checked >= 5


def _public_names(tree: ast.Module) -> set[str]:
    """What the module defines or imports itself, beside what every lazy ``__init__`` needs."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway."):
            found |= {alias.asname or alias.name for alias in node.names}
    return {name for name in found if not name.startswith("_")} - {"lazy"}


def _typed_names(source: Any) -> set[str]:
    """Names that a lazy package promises to type checkers."""
    return {name for item in source.imports if item.for_types_only for name in item.names}


def test_a_lazy_package_serves_what_it_promises_to_type_checkers(sources: list[Any]) -> None:
    checked = 0
    for source in sources:
        if source.path.name != "__init__.py" or not _is_lazy(source):
            continue
        checked += 1
        package = importlib.import_module(source.module)
        assert dir(package) == package.__all__ == sorted(_typed_names(source)), source.path
        for item in source.imports:
            for name in item.names if item.for_types_only else ():
                # A module that is called like its function hides it, once somebody imported the
                # module.
                home = importlib.import_module(item.module)
                known = (getattr(home, name), home)
                assert getattr(package, name) in known, (
                    f"{source.path}: {name} is not of {item.module}"
                )
    assert checked >= 9


def _is_lazy(source: Any) -> bool:
    return any(item.module == "headway.common.lazy" for item in source.imports)


def test_packages_load_their_names_late(sources: list[Any]) -> None:
    """``import headway.dataloader`` costs nothing:
    no ``__init__`` of a service imports its own modules."""
    eager = [
        f"{source.path}:{item.line}"
        for source in sources
        if source.path.name == "__init__.py" and source.module.count(".") == 1
        for item in source.imports
        if item.module.startswith("headway.") and not item.for_types_only
        and item.module != "headway.common.lazy"
    ]  # fmt: skip
    assert eager == []


def test_no_file_is_longer_than_400_lines(root: Path, sources: list[Any]) -> None:
    tests = [
        *root.glob("*/tests/**/*.py"),
        *root.glob("*/*/tests/**/*.py"),
        *root.glob("tests/**/*.py"),
    ]
    paths = [*tests, *root.glob("benchmarks/**/*.py"), *(source.path for source in sources)]
    lengths = {str(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_no_module_is_called_utils(sources: list[Any]) -> None:
    parts = [part for source in sources for part in source.module.split(".")]
    assert not {"utils", "util", "helpers", "misc"} & set(parts)


MODULE_OF = {"pyzmq": "zmq", "cupy_cuda13x": "cupy", "pyyaml": "yaml"}
"""Where the import name is not the distribution's with ``-`` as ``_``."""
BY_NAME = {"console": {"jupyterlab", "ipykernel"}}  # what the notebooks run in
"""Declared and reached without an import statement."""


def test_declared_dependencies_are_what_is_imported(
    sources: list[Any], distributions: dict[Path, Any]
) -> None:
    """Both ways: nothing is missing when a part is installed alone, nothing is asked for in vain.

    What a part of Headway below declares counts too: those are released together.
    """
    wrong, own = (
        [],
        {f"headway.{folder.name}": _required(data) for folder, data in distributions.items()},
    )
    for folder, data in distributions.items():
        declared = _required(data)
        imported = {
            (_top(item.module), str(source.path))
            for source in sources
            if source.distribution == folder and "testing" not in source.module.split(".")
            for item in source.imports
            if not item.for_types_only
        }
        known = {
            *sys.stdlib_module_names,
            f"headway.{folder.name}",
            *_with_those_below(declared, own),
        }
        vain = declared - {name for name, _ in imported} - BY_NAME.get(folder.name, set())
        wrong += [f"{folder.name} declares {name} and imports it nowhere" for name in sorted(vain)]
        wrong += [
            f"{path} imports {name}, not declared"
            for name, path in sorted(imported)
            if name not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_only_extras_bring_torch_and_jupyter(distributions: dict[Path, Any]) -> None:
    """Installed by itself, a part is light: what watches a run needs neither."""
    tables = {data["project"]["name"]: data["project"] for data in distributions.values()}
    heavy = {"torch", "jupyterlab", "ipykernel", "anywidget", "tensorboard"}
    released = [name for name in tables if name != "headway-testkit"]
    assert {name for name in released if _reached(name, tables) & heavy} == set()
    assert "torch" in _reached("headway-console[local]", tables)


def _reached(requirement: str, tables: dict[str, Any]) -> set[str]:
    """Names of everything that a requirement of ours asks for, through the extras it names."""
    found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    assert found is not None
    name, extras = found[1], (found[2] or "").split(",")
    if name not in tables:
        return {name}
    listed = list(tables[name]["dependencies"])
    for extra in filter(None, extras):
        listed += tables[name]["optional-dependencies"][extra]
    return {name}.union(*(_reached(inner, tables) for inner in listed))


def _with_those_below(names: set[str], own: dict[str, set[str]]) -> set[str]:
    return names | {
        below for name in names if name in own for below in _with_those_below(own[name], own)
    }


def _required(data: dict[str, Any]) -> set[str]:
    project = data["project"]
    listed = [
        *project["dependencies"],
        *(r for extra in project.get("optional-dependencies", {}).values() for r in extra),
    ]
    names = {re.split(r"[\[<>=!~ ;]", requirement)[0].replace("-", "_") for requirement in listed}
    return {MODULE_OF.get(name, name.replace("headway_", "headway.")) for name in names}


def _top(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "headway" else parts[0]
