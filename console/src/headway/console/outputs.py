"""What a run leaves for its user: checkpoints, a text sample, the size of its folder."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import newest
from headway.common.errors import HeadwayError
from headway.console.records import RunRecords
from headway.dataloader import Dataset


def checkpoints(run: RunRecords) -> list[dict[str, Any]]:
    """Complete checkpoints, the oldest first: step, generation, total_bytes, path."""
    rows: list[dict[str, Any]] = []
    found = newest(run.folder.checkpoints)
    while found is not None:
        rows.append(
            {
                "step": found.step,
                "generation": found.generation,
                "total_bytes": found.total_bytes,
                "path": str(found.path),
            }
        )
        found = newest(run.folder.checkpoints, max_step=found.step - 1) if found.step else None
    return rows[::-1]


def newest_checkpoint(run: RunRecords) -> int | None:
    """Step of the newest complete checkpoint, None without one or where it cannot be read."""
    with contextlib.suppress(HeadwayError, OSError):
        found = newest(run.folder.checkpoints)
        return None if found is None else found.step
    return None


def corpus(run: RunRecords) -> Dataset | None:
    """The text that the run trains on, None where it is not on this machine."""
    with contextlib.suppress(HeadwayError):
        return Dataset(run.config.data.path)
    return None


def sample_text(run: RunRecords, data: Dataset | None) -> str:
    """The text that the model wrote at the end, empty if it wrote none."""
    raw = run.fact("sample")
    if not raw or data is None or data.meta is None:
        return ""
    tokens = [token for token in json.loads(raw)["tokens"] if token != data.meta.eod_id]
    return data.tokenizer.decode(tokens).strip("\n")


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total
