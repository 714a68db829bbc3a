"""What a run leaves for its user: checkpoints, and the size of its folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import complete, newest
from headway.common.errors import HeadwayError
from headway.console.folder.records import RunRecords


def checkpoints(run: RunRecords) -> list[dict[str, Any]]:
    """Complete checkpoints, the oldest first: step, generation, total_bytes, path."""
    return [
        {
            "step": found.step,
            "generation": found.generation,
            "total_bytes": found.total_bytes,
            "path": str(found.path),
        }
        for found in reversed(complete(run.folder.checkpoints))
    ]


def newest_checkpoint(run: RunRecords) -> int | None:
    """Step of the newest complete checkpoint, None without one or where it cannot be read."""
    if (known := run.known_checkpoint) is not None:
        return known if known >= 0 else None
    with contextlib.suppress(HeadwayError, OSError):
        found = newest(run.folder.checkpoints)
        return None if found is None else found.step
    return None


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total
