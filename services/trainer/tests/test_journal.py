"""Reports are stored once and in order, whatever the way from the executor does to them."""

from __future__ import annotations

import random
from pathlib import Path

from headway.common.wire.messages.executor import StepMetrics
from headway.trainer.control.journal import Journal


def _metrics(step: int) -> StepMetrics:
    return StepMetrics(
        generation=0,
        step=step,
        loss=1.0,
        grad_norm=1.0,
        lr=1e-3,
        tokens=8,
        duration_s=0.1,
        unix_s=float(step),
    )


def test_reports_that_overtake_repeat_and_vanish_are_all_stored_in_the_end(tmp_path: Path) -> None:
    """The sender repeats the oldest ones that are not acknowledged, as an executor does at every beat."""
    journal, rng, steps = Journal(tmp_path / "run.db"), random.Random(0), 200
    reports = [
        (sequence, sequence - 10 if sequence > 10 else 0)
        for sequence in range(10, 10 * steps + 1, 10)
    ]
    for _ in range(10_000):
        waiting = [report for report in reports if report[0] > journal.reported(3)][:64]
        if not waiting:
            break
        for sequence, previous in rng.sample(waiting, len(waiting)):  # any order
            if rng.random() < 0.5:  # half of them lost
                journal.store_report(
                    3, sequence, _metrics(sequence // 10 - 1), None, None, previous=previous
                )
    stored = journal._db.execute("SELECT step FROM metrics ORDER BY step").fetchall()
    assert [row[0] for row in stored] == list(range(steps))
    journal.close()
