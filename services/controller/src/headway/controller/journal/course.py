"""What ranks have measured, on its way into the journal, and which of it counts.

A step belongs to the course of the run until a newer generation begins at it or before it: from
then on it is superseded. An evaluation after ``step`` completed steps is of the state that a
generation which begins at that step continues from, so it is superseded only beyond it.
"""

from __future__ import annotations

import json
import sqlite3

from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics

SUPERSEDE_STEPS = (  # ``+`` keeps the index of the key out of it
    "UPDATE metrics SET superseded = 1 WHERE superseded = 0 AND step >= ?1 AND +generation < ?2"
)
SUPERSEDE_EVALUATIONS = (
    "UPDATE evaluations SET superseded = 1 WHERE superseded = 0 AND step > ?1 AND +generation < ?2"
)
_HAS_BEGUN = "SELECT 1 FROM metrics WHERE generation = ?1 AND step <= ?2 LIMIT 1"
_NEXT_GENERATION = (
    "SELECT generation, step FROM metrics WHERE generation > ? ORDER BY generation, step LIMIT 1"
)
_STEP = "INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_EVALUATION = "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?)"
_SAMPLE = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)"


def store(database: sqlite3.Connection, one: StepMetrics | Evaluation | Sample) -> None:
    """Store it; the same again changes nothing. Raises sqlite3.Error."""
    match one:
        case StepMetrics():
            is_late = _is_superseded(database, one.generation, one.step + 1)
            # what follows a generation's first step was superseded with it
            if not is_late and not _has_begun(database, one.generation, one.step):
                database.execute(SUPERSEDE_STEPS, (one.step, one.generation))
                database.execute(SUPERSEDE_EVALUATIONS, (one.step, one.generation))
            database.execute(
                _STEP,
                (one.generation, one.step, one.loss, one.grad_norm, one.lr, one.tokens,
                 one.duration_s, one.unix_s, int(one.skipped), int(is_late)),
            )  # fmt: skip
        case Evaluation():
            is_late = _is_superseded(database, one.generation, one.step)
            row = (one.generation, one.step, one.loss, one.tokens, one.sequence, int(is_late))
            database.execute(_EVALUATION, row)
        case Sample():
            text = (one.step, json.dumps(one.tokens), one.num_prompt_tokens)
            database.execute(_SAMPLE, (one.generation, one.sequence, *text))


def _has_begun(database: sqlite3.Connection, generation: int, step: int) -> bool:
    """Whether the journal has this step of the generation, or an earlier one."""
    return database.execute(_HAS_BEGUN, (generation, step)).fetchone() is not None


def _is_superseded(database: sqlite3.Connection, generation: int, completed: int) -> bool:
    """Whether a newer generation began with fewer completed steps."""
    while (newer := database.execute(_NEXT_GENERATION, (generation,)).fetchone()) is not None:
        generation, start = newer
        if start < completed:
            return True
    return False
