"""The rules of the house: who imports whom, where torch may be, what packages show, how long files are."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVICES = {"dataloader", "ckpt_store", "health", "trainer"}
LEVELS = {"common": 0, "launch": 1, **dict.fromkeys(SERVICES, 2), "trainer": 3, "testkit": 4, "console": 5}
SHOWN = {"client", "config"}
"""Modules of a service that others may import, beside the names of the package itself."""
WITHOUT_TORCH = ("common", "launch", "dataloader", "ckpt_store", "health", "trainer.control", "console")
MAX_LINES = 400
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}


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
    return [_read(path, folder) for folder in distributions for path in sorted((folder / "src").rglob("*.py"))]


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
            found += [Import(alias.name, (), node.lineno, node in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            names = tuple(alias.name for alias in node.names)
            found.append(Import(node.module or "", names, node.lineno, node in typing_only))
    return found


def _ours(sources: list[Any]) -> list[tuple[Any, str, str, str]]:
    """(source, imported package, imported module, where) of each import of one part by another.

    Left out are the rigs of ``testkit`` and the doubles in modules called ``testing``, which reach into what they
    stand for.
    """
    found = []
    for source in sources:
        for item in source.imports:
            if item.module.startswith("headway."):
                package = item.module.split(".")[1]
                is_double = source.package == "testkit" or ".testing" in source.module
                if package != source.package and not is_double:
                    found.append((source, package, item.module, f"{source.path}:{item.line}: {item.module}"))
    return found


def test_arrows_point_down_only(sources: list[Any]) -> None:
    upward = [where for source, package, _, where in _ours(sources) if LEVELS[package] >= LEVELS[source.package]]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle(sources: list[Any]) -> None:
    """Imports inside functions and those for type checkers count: they only hide a circle."""
    known = {source.module for source in sources}
    edges = {source.module: _imported_modules(source, known) for source in sources}
    reached = {module: _reachable(module, edges) for module in edges}
    circles = {
        tuple(sorted(other for other in found if module in reached[other]))
        for module, found in reached.items()
        if module in found
    }
    assert sorted(circles) == []


def _imported_modules(source: Any, known: set[str]) -> set[str]:
    """``from a import b`` leads to ``a.b`` where that is a module, otherwise to ``a``."""
    found = set()
    for item in source.imports:
        for name in item.names or ("",):
            inner = f"{item.module}.{name}"
            found.add(inner if inner in known else item.module)
    return found & known


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(edges[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting |= edges[module] - found
    return found


def test_the_parts_do_import_each_other_so_the_rules_have_something_to_hold(sources: list[Any]) -> None:
    pairs = {(source.package, package) for source, package, _, _ in _ours(sources)}
    assert {
        ("trainer", "dataloader"),
        ("trainer", "common"),
        ("launch", "common"),
        ("console", "trainer"),
    } <= pairs


def test_of_another_service_only_client_and_config_are_imported(sources: list[Any]) -> None:
    inner = [
        where
        for source, package, module, where in _ours(sources)
        if package in SERVICES and len(module.split(".")) > 2
        and module.split(".")[2] not in SHOWN
    ]  # fmt: skip
    assert inner == []


def test_names_taken_from_a_service_package_are_in_its_all(sources: list[Any]) -> None:
    hidden = []
    for source in sources:
        for item in source.imports:
            parts = item.module.split(".")
            if parts[0] != "headway" or len(parts) != 2 or parts[1] not in SERVICES or parts[1] == source.package:
                continue
            package = importlib.import_module(item.module)
            hidden += [
                f"{source.path}:{item.line}: {n}" for n in item.names if n not in package.__all__ + sorted(SHOWN)
            ]
    assert hidden == []


def _torch_is_forbidden(module: str) -> bool:
    below = module.removeprefix("headway.")
    part = any(below == name or below.startswith(f"{name}.") for name in WITHOUT_TORCH)
    return part and not module.endswith(".torch_client")


def test_no_torch_where_it_is_not_needed(sources: list[Any]) -> None:
    found = [
        f"{source.path}:{item.line}"
        for source in sources
        for item in source.imports
        if item.module.split(".")[0] == "torch" and _torch_is_forbidden(source.module) and not item.for_types_only
    ]
    assert found == []


def test_importing_everything_that_is_free_of_torch_loads_no_torch(sources: list[Any]) -> None:
    names = [s.module for s in sources if _torch_is_forbidden(s.module) and not s.module.endswith("__main__")]
    script = (
        "import importlib, json, sys\n"
        "for name in json.load(sys.stdin):\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], input=json.dumps(names), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
    assert len(names) > 80


def test_no_file_sits_between_the_parts(distributions: dict[Path, Any]) -> None:
    """One ``src/headway/__init__.py`` hides every other distribution."""
    for folder in distributions:
        assert [path.name for path in (folder / "src").iterdir() if path.name != "__pycache__"] == ["headway"]
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
                # A module that is called like its function hides it, once somebody imported the module.
                home = importlib.import_module(item.module)
                known = (getattr(home, name), home)
                assert getattr(package, name) in known, f"{source.path}: {name} is not of {item.module}"
    assert checked >= 11


def _is_lazy(source: Any) -> bool:
    return any(item.module == "headway.common.lazy" for item in source.imports)


def test_packages_load_their_names_late(sources: list[Any]) -> None:
    """``import headway.dataloader`` costs nothing: no ``__init__`` of a service imports its own modules."""
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
    tests = [*root.glob("*/tests/**/*.py"), *root.glob("*/*/tests/**/*.py"), *root.glob("tests/**/*.py")]
    paths = [*tests, *root.glob("benchmarks/*.py"), *(source.path for source in sources)]
    lengths = {str(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_pickles(sources: list[Any]) -> None:
    found = [
        f"{source.path}:{item.line}"
        for source in sources
        for item in source.imports
        if item.module.split(".")[0] in FORBIDDEN or FORBIDDEN & set(item.names)
    ]
    assert found == []


def test_no_module_is_called_utils(sources: list[Any]) -> None:
    parts = [part for source in sources for part in source.module.split(".")]
    assert not {"utils", "util", "helpers", "misc"} & set(parts)


@pytest.mark.parametrize("part", sorted(LEVELS))
def test_every_part_is_ranked_and_present(sources: list[Any], part: str) -> None:
    assert any(source.package == part for source in sources)
    assert {source.package for source in sources} == set(LEVELS)


MODULE_OF = {"pyzmq": "zmq", "cupy_cuda13x": "cupy"}
"""Where the import name is not the distribution's with ``-`` as ``_``."""
BY_NAME = {
    "trainer": {"tensorboard"},  # torch.utils.tensorboard imports it
    "console": {"jupyterlab", "ipykernel", "ipywidgets", "anywidget"},  # by the notebooks and their widgets
}
"""Declared and reached without an import statement."""


def test_declared_dependencies_are_what_is_imported(sources: list[Any], distributions: dict[Path, Any]) -> None:
    """Both ways: nothing is missing when a part is installed alone, nothing is asked for in vain.

    What a part of Headway below declares counts too: those are released together.
    """
    wrong, own = [], {f"headway.{folder.name}": _required(data) for folder, data in distributions.items()}
    for folder, data in distributions.items():
        declared = _required(data)
        imported = {
            (_top(item.module), str(source.path))
            for source in sources
            if source.distribution == folder and "testing" not in source.module.split(".")
            for item in source.imports
            if not item.for_types_only
        }
        known = {*sys.stdlib_module_names, f"headway.{folder.name}", *_with_those_below(declared, own)}
        vain = declared - {name for name, _ in imported} - BY_NAME.get(folder.name, set())
        wrong += [f"{folder.name} declares {name} and imports it nowhere" for name in sorted(vain)]
        wrong += [f"{path} imports {name}, not declared" for name, path in sorted(imported) if name not in known]
    assert not wrong, "\n".join(wrong)


def _with_those_below(names: set[str], own: dict[str, set[str]]) -> set[str]:
    return names | {below for name in names if name in own for below in _with_those_below(own[name], own)}


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
