"""Settings that a run of an older version has without its file saying so.

A setting that is newer than the run may have a default that the run does not have.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

BEFORE: Final = {"parallel": {"buckets": 1}}
"""By table and key, how runs were before there was this setting."""


def implied(file: Path) -> list[str]:
    """Overrides for what ``file``, a run's own, does not say; none if it cannot be read."""
    try:
        found = tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return []
    return [
        f"{table}.{key}={value}"
        for table, keys in BEFORE.items()
        for key, value in keys.items()
        if key not in found.get(table, {})
    ]
