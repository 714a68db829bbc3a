"""Messages and pages name only settings that exist: advice to change another one helps nobody."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from headway.trainer.config import RunConfig

ROOT = Path(__file__).parents[2]
TABLES = {
    name: {field.name for field in dataclasses.fields(table)}
    for name, table in typing.get_type_hints(RunConfig).items()
    if dataclasses.is_dataclass(table)
}
SETTING = re.compile(rf"(?<![\w./`-])({'|'.join(TABLES)})\.([a-z][a-z_]+)(?![\w.(/])")
EXCEPT = {"train.bin", "train.idx", "train.digests", "train.keys", "model.layrs"}
EXCEPT |= {"model.toml", "model.safetensors", "health.md"}
"""Files of a corpus and of a model, and an example of a wrong name."""


def texts() -> Iterator[tuple[str, str]]:
    """Where, and what: every string of the sources, docstrings too, and every page."""
    for path in ROOT.glob("*/**/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if path.name != "lab_log.md":  # of its day
            yield str(path.relative_to(ROOT)), path.read_text()


def test_a_setting_that_is_named_exists() -> None:
    found = [(where, table, key) for where, text in texts() for table, key in SETTING.findall(text)]
    assert len(found) > 50, "settings are named in other words now"
    unknown = [
        f"{where}: {table}.{key}"
        for where, table, key in found
        if key not in TABLES[table] and f"{table}.{key}" not in EXCEPT
    ]
    assert unknown == []
