"""Who imports whom, and where torch may be."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

SERVICES = {"dataloader", "ckpt_store", "health", "trainer", "controller"}
LEVELS = {
    "common": 0,
    "launch": 1,
    **dict.fromkeys(SERVICES, 2),
    "trainer": 3,
    "controller": 4,
    "console": 5,
    "testkit": 6,
}
SHOWN = {"client", "config"}
"""Modules of a service that others may import, beside the names of the package itself."""
WITHOUT_TORCH = (
    "common",
    "launch",
    "dataloader",
    "ckpt_store",
    "health",
    "controller",
    "console",
)
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}


def _ours(sources: list[Any]) -> list[tuple[Any, str, str, str]]:
    """(source, imported package, imported module, where) of each import of one part by another."""
    found = []
    for source in sources:
        for item in source.imports:
            package = item.module.split(".")[1] if item.module.startswith("headway.") else ""
            if package and package != source.package:
                where = f"{source.path}:{item.line}: {item.module}"
                found.append((source, package, item.module, where))
    return found


def test_arrows_point_down_only(sources: list[Any]) -> None:
    upward = [
        where
        for source, package, _, where in _ours(sources)
        if LEVELS[package] >= LEVELS[source.package]
    ]
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


def test_the_parts_do_import_each_other_so_the_rules_have_something_to_hold(
    sources: list[Any],
) -> None:
    pairs = {(source.package, package) for source, package, _, _ in _ours(sources)}
    assert {
        ("trainer", "dataloader"),
        ("trainer", "common"),
        ("launch", "common"),
        ("console", "controller"),
        ("controller", "trainer"),
    } <= pairs


def test_of_another_service_only_client_and_config_are_imported(sources: list[Any]) -> None:
    """Left out are test rigs and doubles, which reach into what they stand for."""
    inner = [
        where
        for source, package, module, where in _ours(sources)
        if package in SERVICES
        and module.split(".")[2:3] not in [[], *([name] for name in SHOWN)]
        and source.package != "testkit"
        and ".testing" not in source.module
    ]
    assert inner == []


def test_names_taken_from_a_service_package_are_in_its_all(sources: list[Any]) -> None:
    hidden = []
    for source in sources:
        for item in source.imports:
            parts = item.module.split(".")
            if (
                parts[0] != "headway"
                or len(parts) != 2
                or parts[1] not in SERVICES
                or parts[1] == source.package
            ):
                continue
            package = importlib.import_module(item.module)
            hidden += [
                f"{source.path}:{item.line}: {n}"
                for n in item.names
                if n not in package.__all__ + sorted(SHOWN)
            ]
    assert hidden == []


def test_loggers_come_from_the_common_log_which_leaves_rich_alone(sources: list[Any]) -> None:
    """To import rich takes 0.13 s of each process, and only tables on a terminal need it."""
    direct = [
        f"{source.path}:{item.line}"
        for source in sources
        for item in source.imports
        if item.module.split(".")[0] == "structlog" and source.module != "headway.common.log"
    ]
    assert direct == []
    code = "import sys, headway.common.log; print('rich' in sys.modules); import rich.console"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _torch_is_forbidden(module: str) -> bool:
    below = module.removeprefix("headway.")
    part = any(below == name or below.startswith(f"{name}.") for name in WITHOUT_TORCH)
    return part and not module.endswith(".torch_client")


def test_no_torch_where_it_is_not_needed(sources: list[Any]) -> None:
    found = [
        f"{source.path}:{item.line}"
        for source in sources
        for item in source.imports
        if item.module.split(".")[0] == "torch"
        and _torch_is_forbidden(source.module)
        and not item.for_types_only
    ]
    assert found == []


def test_importing_everything_that_is_free_of_torch_loads_no_torch(sources: list[Any]) -> None:
    names = [
        s.module
        for s in sources
        if _torch_is_forbidden(s.module) and not s.module.endswith("__main__")
    ]
    script = (
        "import importlib, json, sys\n"
        "for name in json.load(sys.stdin):\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(names), capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")
    assert len(names) > 80


READS_FOREIGN_DUMPS = "health/dumps/plain_pickle.py"
"""Torch writes its dumps as pickles; its reader admits no class."""


def test_nothing_pickles(sources: list[Any]) -> None:
    found = [
        f"{source.path}:{item.line}"
        for source in sources
        for item in source.imports
        if (item.module.split(".")[0] in FORBIDDEN or FORBIDDEN & set(item.names))
        and not str(source.path).endswith(READS_FOREIGN_DUMPS)
    ]
    assert found == []


@pytest.mark.parametrize("part", sorted(LEVELS))
def test_every_part_is_ranked_and_present(sources: list[Any], part: str) -> None:
    assert any(source.package == part for source in sources)
    assert {source.package for source in sources} == set(LEVELS)
