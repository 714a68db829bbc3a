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
_FIRST_STEP = "(SELECT MIN(step) FROM metrics WHERE generation = newer.generation)"
_IS_LATE = (
    "EXISTS (SELECT 1 FROM (SELECT DISTINCT generation FROM metrics WHERE generation > ?1) "
    f"AS newer WHERE {_FIRST_STEP} {{}} ?2)"
)
"""Whether a newer generation has superseded step ?2 of generation ?1 before it was stored."""
_STEP = (
    "INSERT OR IGNORE INTO metrics VALUES "
    f"(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, {_IS_LATE.format('<=')})"
)
_EVALUATION = (
    f"INSERT OR REPLACE INTO evaluations VALUES (?1, ?2, ?3, ?4, ?5, {_IS_LATE.format('<')})"
)
_SAMPLE = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)"


def store(database: sqlite3.Connection, one: StepMetrics | Evaluation | Sample) -> None:
    """Store it; the same again changes nothing. Raises sqlite3.Error."""
    match one:
        case StepMetrics():
            database.execute(SUPERSEDE_STEPS, (one.step, one.generation))
            database.execute(SUPERSEDE_EVALUATIONS, (one.step, one.generation))
            database.execute(
                _STEP,
                (one.generation, one.step, one.loss, one.grad_norm, one.lr, one.tokens,
                 one.duration_s, one.unix_s, int(one.skipped)),
            )  # fmt: skip
        case Evaluation():
            row = (one.generation, one.step, one.loss, one.tokens, one.sequence)
            database.execute(_EVALUATION, row)
        case Sample():
            text = (one.step, json.dumps(one.tokens), one.num_prompt_tokens)
            database.execute(_SAMPLE, (one.generation, one.sequence, *text))
