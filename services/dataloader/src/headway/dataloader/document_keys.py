"""Names of a split's documents, in ``train.keys`` next to ``train.bin``: one JSON string per line.

For people who look at data; training does not read them, and data without them are complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from headway.dataloader.trouble import printable


def keys_path(prefix: Path) -> Path:
    """``prefix`` + ``.keys``."""
    return prefix.with_name(prefix.name + ".keys")


def write_keys(prefix: Path, keys: Iterable[str]) -> None:
    """Write the names in the order of the documents; bytes that are not UTF-8 are escaped."""
    lines = (json.dumps(printable(key)) + "\n" for key in keys)
    with keys_path(prefix).open("w", encoding="ascii") as file:
        file.writelines(lines)


def read_keys(prefix: Path) -> list[str] | None:
    """The names in the order of the documents, None where there are none or they are damaged."""
    try:
        lines = keys_path(prefix).read_text(encoding="ascii").splitlines()
        return [str(json.loads(line)) for line in lines]
    except (OSError, ValueError):
        return None
