"""D15: the file system of the runs hangs; every write to it waits, as on a stuck network mount."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from headway.testkit.journal import query

from benchmarks.drills.judge import Report
from benchmarks.drills.place import status_of
from benchmarks.drills.rig import Rig

TOOLS = ("mkfs.ext4", "fsfreeze")
MORE_STEPS = 20


def d15(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """``fsfreeze`` of the runs' file system for 12 to 18 s while the run trains."""
    rig.mount_image()
    run = rig.launch("d15")
    before = rig.healthy(run, 20)
    with _frozen(rig.runs) if faulty else contextlib.nullcontext():
        time.sleep(rng.uniform(12.0, 18.0))
        meanwhile = status_of(run)
    recovered = rig.steps_on(run, 45.0, lambda _: True, more=MORE_STEPS)
    after = rig.healthy(run)
    left = rig.finish(run)
    rows = query(run, "SELECT DISTINCT step FROM metrics ORDER BY step")
    return {
        "recovered_s": recovered,
        "steps_meanwhile": meanwhile.step - before.step if meanwhile is not None else -1,
        "generation_before": before.generation,
        "generation_after": after.generation,
        "pids_before": {row.rank: row.pid for row in before.ranks},
        "pids_after": {row.rank: row.pid for row in after.ranks},
        "nodes": after.nodes,
        "metrics": [step for (step,) in rows],
        "left": left,
    }


def why_not() -> str:
    """Why no file system can be frozen here; empty if one can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    found = subprocess.run(["losetup", "-f"], capture_output=True, check=False)
    return "" if found.returncode == 0 else "no loop device can be used here"


@contextlib.contextmanager
def _frozen(folder: Path) -> Iterator[None]:
    subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], check=True)
