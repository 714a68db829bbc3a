"""What it costs to look at a run: status, watch and a picture, at three lengths of a run.

``python -m benchmarks.reading --out benchmarks/results/reading.json``

The journal is written through its own schema, with 10,000 events; nothing is trained. ``status`` is
what ``headway status`` reads, ``watch`` and ``picture`` what one more round costs after one more
step. ``picture_64_ranks`` also reads the flight records of 64 ranks with 32 micro-batches. On a
busy machine only ``cpu_ms`` means something.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.common.node.flight import FlightWriter
from headway.common.node.run_dir import NodePaths
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.executor import StepMetrics
from headway.console.live.progress import ProgressReader, read_progress
from headway.console.run import Run
from headway.console.testing import SMALL, FakeRun
from headway.console.widgets import RunConsole, RunWatcher
from headway.console.widgets.picture import Picture
from headway.console.widgets.picture_reader import PictureReader
from headway.controller.journal.journal import Journal

from benchmarks.report import parser, write

LIMIT_MS, LIMIT_KB = 5.0, 40.0
EVENTS, RANKS, MICRO_BATCHES = 10_000, 64, 32
KINDS = (Kind.RECV_FORWARD, Kind.FORWARD, Kind.SEND_FORWARD, Kind.RECV_BACKWARD, Kind.BACKWARD,
         Kind.SEND_BACKWARD)  # fmt: skip
RECOVERY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("worker_lost", {"worker": "w1", "rank": 1, "reason": "killed"}),
    ("fence", {"reason": "rank 1 is lost: killed", "is_symptom": False}),
    *((f"left_{rank}", {"rank": rank}) for rank in range(6)),
    ("generation", {}),
    ("stepping", {}),
)


class Watched:
    """A run of ``steps`` steps that is not trained, and the console's readers of it."""

    def __init__(self, folder: Path, steps: int) -> None:
        os.environ["HEADWAY_SHM_ROOT"] = str(folder / "shm")
        config = replace(SMALL, train=replace(SMALL.train, steps=2 * steps))
        self.fake = FakeRun(folder / "runs", config=config)
        self.fake.close()  # a driver in this process would only blur the figures
        self.run: Run = self.fake.run
        self.journal = Journal(self.fake.folder.database)
        self.generation, self.step = fill(self.journal, steps)
        paths = NodePaths(self.fake.folder.run_id, 0)
        self.rings = [
            FlightWriter.create(paths.segment("flight", 1000 + rank), 1000 + rank, 8192)
            for rank in range(RANKS)
        ]

    def advance(self) -> None:
        """One more step in the journal."""
        self.step += 1
        self.journal.store(
            [
                StepMetrics(
                    generation=self.generation, step=self.step, loss=2.0, grad_norm=1.0, lr=1e-3,
                    tokens=1000, duration_s=0.5, unix_s=time.time(), skipped=False,
                )
            ]
        )  # fmt: skip

    def work(self) -> None:
        """One more step in the flight records of all ranks."""
        for micro_batch in range(MICRO_BATCHES):
            for kind in KINDS:
                for ring in self.rings:
                    with ring.record(int(kind), step=self.step, micro_batch=micro_batch):
                        pass


def fill(journal: Journal, steps: int) -> tuple[int, int]:
    """A journal of ``steps`` steps with a recovery in every ten events; returns its end."""
    generations = min(EVENTS // len(RECOVERY), max(1, steps // 4))
    each, now = steps // generations, time.time()
    with journal._transaction() as db:
        for generation in range(generations):
            first, at = generation * each, float(generation)
            known = {"generation": generation, "source": "arena", "step": first}
            db.executemany(
                "INSERT INTO events VALUES (NULL, 1, ?, ?, ?, ?)",
                [
                    (at, now + at, name, json.dumps({**fields, **known}))
                    for name, fields in RECOVERY
                ],
            )
            db.executemany(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                ((generation, step, 2.0, 1.0, 1e-3, 1000, 0.5, now + step, step % 50_000 == 77)
                 for step in range(first, first + each)),
            )  # fmt: skip
    return generations - 1, generations * each - 1


def measure(work: Callable[[], object], before: Callable[[], object], times: int) -> dict[str, Any]:
    """Median milliseconds of wall time and of the calling thread's processor time."""
    wall, processor = [], []
    for _ in range(times):
        before()
        began, used = time.perf_counter(), time.thread_time()
        work()
        processor.append((time.thread_time() - used) * 1e3)
        wall.append((time.perf_counter() - began) * 1e3)
    return {
        "wall_ms": round(statistics.median(wall), 2),
        "cpu_ms": round(statistics.median(processor), 2),
        "worst_wall_ms": round(max(wall), 2), "times": times,
    }  # fmt: skip


def rows(watched: Watched, times: int) -> dict[str, Any]:
    """Every figure at one length."""
    run = watched.run
    found: dict[str, Any] = {"status": measure(lambda: read_progress(run), watched.advance, times)}
    watch = ProgressReader(run)
    watch.read()
    found["watch"] = measure(watch.read, watched.advance, times)
    watched.work()
    reader = PictureReader(run, 20.0)
    began = time.perf_counter()
    picture = reader.read()
    found["first_picture_ms"] = round((time.perf_counter() - began) * 1e3, 1)
    console = RunConsole(RunWatcher(run))  # not started: it is handed the pictures
    console.show(picture)
    found["picture"] = measure(reader.read, watched.advance, times)

    def both() -> None:
        watched.advance()
        watched.work()

    found["picture_64_ranks"] = measure(reader.read, both, times)
    pictures: list[Picture] = []

    def taken() -> None:
        both()
        pictures.append(reader.read())

    console.show(reader.read())
    found["show_64_ranks"] = measure(lambda: console.show(pictures[-1]), taken, times)
    found["picture_kB"] = round(size_of(console.get_state(SENT)) / 1e3, 1)
    found["reload_kB"] = round(size_of({"full": console.get_state()["full"]}) / 1e3, 1)
    reader.close()
    console.watcher.close()
    return found


SENT = ["facts", "update", "ranks"]
"""What changes with every picture."""


def size_of(value: Any) -> int:
    """Bytes on the wire: text as JSON, arrays as they are."""
    if isinstance(value, dict):
        return sum(len(key) + 4 + size_of(entry) for key, entry in value.items())
    return len(value) if isinstance(value, bytes) else len(json.dumps(value))


def main() -> int:
    """Measure every length."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    options.add_argument("--times", type=int, default=20)
    given = options.parse_args()
    lengths: dict[str, Any] = {}
    for steps in given.steps:
        with tempfile.TemporaryDirectory() as folder:
            watched = Watched(Path(folder), steps)
            lengths[str(steps)] = found = rows(watched, given.times)
        print(f"{steps:>9,} steps  {json.dumps(found)}", flush=True)
    result = {
        "limit_ms": LIMIT_MS, "limit_kB": LIMIT_KB, "events": EVENTS, "ranks": RANKS,
        "micro_batches": MICRO_BATCHES,
    }  # fmt: skip
    write(given.out, **result, steps=lengths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
