"""docs/operations.md lists every time limit of the system with the value that the code has."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.ckpt_store.config import StoreConfig
from headway.dataloader.config import DataConfig
from headway.health.config import HealthConfig
from headway.trainer.config import ParallelConfig, RecoveryConfig
from headway.trainer.config.recovery import IN_ORDER

ROOT = Path(__file__).resolve().parents[2]
TABLES: dict[str, Any] = {
    "recovery": RecoveryConfig,
    "parallel": ParallelConfig,
    "health": HealthConfig,
    "ckpt": StoreConfig,
    "data": DataConfig,
}
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+?) \|(.*)\|$")


def _keys() -> dict[str, float]:
    return {
        f"{table}.{entry.name}": float(entry.default)
        for table, config in TABLES.items()
        for entry in fields(config)
        if entry.name.endswith("_s")
    }


def _constants() -> dict[str, tuple[float, ...]]:
    """``file.py NAME`` -> seconds, of every module constant that ends in ``_S``."""
    found: dict[str, tuple[float, ...]] = {}
    for source in (*ROOT.glob("libs/*/src"), *ROOT.glob("services/*/src"), ROOT / "console/src"):
        for path in source.rglob("*.py"):
            if "testkit" in path.parts or path.name == "testing.py":
                continue
            where = "/".join(path.relative_to(source / "headway").parts)
            for statement in ast.parse(path.read_text()).body:
                if isinstance(statement, ast.AnnAssign):
                    targets = [statement.target]
                else:
                    targets = getattr(statement, "targets", [])
                for target in targets:
                    if isinstance(target, ast.Name) and target.id.endswith("_S"):
                        value = ast.literal_eval(statement.value)
                        values = value if isinstance(value, tuple) else (value,)
                        found[f"{where} {target.id}"] = tuple(map(float, values))
    return found


def _rows() -> dict[str, tuple[float, ...]]:
    found = {}
    text = (ROOT / "docs" / "operations.md").read_text()
    for line in text.partition("## Time limits")[2].splitlines():
        if (match := ROW.match(line)) and not match[2].startswith("`"):
            numbers = re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", match[2])
            found[match[1]] = tuple(map(float, numbers))
            cells = _cells(match[3])
            assert len(cells) in (2, 4) and all(cells), f"no cell may be empty: {line}"
    return found


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split("|")]


def test_every_time_limit_of_the_configuration_is_listed_with_its_default() -> None:
    listed = {key: values for key, values in _rows().items() if " " not in key}
    assert listed == {key: (value,) for key, value in _keys().items()}


def test_each_limit_of_a_recovery_says_who_waits_and_who_judges() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = [match for line in text.splitlines() if (match := ROW.match(line))]
    judged = {match[1] for match in rows if len(_cells(match[3])) == 4}
    waits = {key for key in _keys() if key.startswith(("recovery.", "parallel."))}
    assert waits | {"data.wait_timeout_s"} <= judged


def test_every_relation_that_the_configuration_checks_is_listed() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.partition("| shorter | longer | why |")[2].partition("\n\n")[0]
    listed = {
        (shorter, longer)
        for line in table.splitlines()
        if len(cells := _cells(line)) == 5
        for shorter in re.findall(r"`([\w.]+)`", cells[1])
        for longer in re.findall(r"`([\w.]+)`", cells[2])
    }
    assert {(low, high) for low, high, _ in IN_ORDER} <= listed


def test_every_constant_in_seconds_is_listed_with_its_value() -> None:
    listed = {key: values for key, values in _rows().items() if " " in key}
    assert listed == _constants()
