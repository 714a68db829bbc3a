"""The runs of a folder as a table: where each one stands, how old and how large, how to resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

from headway.common.errors import HeadwayError
from headway.common.output import mebibytes
from headway.console.folder.outputs import bytes_below, newest_checkpoint
from headway.console.folder.records import RunRecords

HEADER = ("run", "state", "step", "checkpoint", "started", "size")
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class Entry:
    """One run."""

    name: str
    state: str
    step: int
    """Completed steps."""
    steps: int | None
    """Steps it is to train; None where its configuration cannot be read."""
    checkpoint: int | None
    """Step of the newest checkpoint."""
    started_unix_s: float
    """When it was started or resumed the last time."""
    size_bytes: int
    """Size of its folder: checkpoints, logs, traces."""
    resume: str
    """The command that resumes it; empty for a run that is live or finished."""
    trouble: str = ""
    """What is wrong with its files, empty if nothing is."""

    def cells(self, now_unix_s: float) -> tuple[object, ...]:
        """The cells of its row, in the order of ``HEADER``."""
        return (
            self.name,
            self.state,
            f"{self.step}/{'?' if self.steps is None else self.steps}",
            None if self.checkpoint is None else f"step {self.checkpoint}",
            age(now_unix_s - self.started_unix_s),
            mebibytes(self.size_bytes),
        )


def entries(runs: Iterable[RunRecords]) -> list[Entry]:
    """One entry per run, in the given order."""
    return [_entry(run) for run in runs]


def _entry(run: RunRecords) -> Entry:
    """A run whose files are bad does not keep the others from being listed."""
    try:
        return _sound_entry(run)
    except (HeadwayError, OSError, ValueError, TypeError, KeyError) as error:
        unix_s = 0.0
        with contextlib.suppress(OSError):
            unix_s = run.path.stat().st_mtime
        return Entry(run.name, "unreadable", 0, None, None, unix_s, 0, "", str(error))


def _sound_entry(run: RunRecords) -> Entry:
    state = run.state
    try:
        steps: int | None = run.total_steps
    except HeadwayError:  # being started, or written by another version
        steps = None
    return Entry(
        name=run.name,
        state=state,
        step=run.completed_steps,
        steps=steps,
        checkpoint=newest_checkpoint(run),
        started_unix_s=run.folder.run_json.stat().st_mtime,
        size_bytes=bytes_below(run.path),
        resume=run.resume_command(state),
        trouble=run.journal_trouble,
    )


def rows(found: list[Entry]) -> list[tuple[object, ...]]:
    """The cells of all entries, at this moment."""
    now = time.time()
    return [entry.cells(now) for entry in found]


def age(seconds: float) -> str:
    """``3 d ago``, ``5 min ago``, ``just now``."""
    for unit_s, name in _AGES:
        if seconds >= unit_s:
            return f"{seconds // unit_s:.0f} {name} ago"
    return "just now"
