"""Every read of the journal that others may ask for, by name.

The only SQL that leaves a process does so as one of these names.
"""

from __future__ import annotations

STEP_COLUMNS = (
    *("generation", "step", "loss", "grad_norm", "lr", "tokens", "duration_s", "unix_s"),
    *("skipped", "superseded"),
)
_STEP = ", ".join(STEP_COLUMNS)
EVENT_COLUMNS = ("id", "epoch", "monotonic_s", "unix_s", "name", "fields")
_EVENT = ", ".join(EVENT_COLUMNS)
_EVALUATION = "rowid, generation, step, loss, tokens, sequence, superseded"
_SAMPLE = "rowid, generation, sequence, step, tokens, num_prompt_tokens"
_IS_OBJECT = "CASE WHEN json_valid({0}) THEN json_type({0}) = 'object' END"
_WHOLE = _IS_OBJECT.format("fields")
"""Whether a row of events holds an object: a flipped bit in its JSON costs that one event."""
_PREVIOUS = "(SELECT MAX(generation) FROM metrics WHERE generation < ?)"

READS = {
    "facts": "SELECT key, value FROM facts",
    # ---- events
    "has_begun": "SELECT 1 FROM events LIMIT 1",
    "events": f"SELECT {_EVENT} FROM events WHERE id > ? AND id <= ? AND {_WHOLE} ORDER BY id",
    "events_named": (
        f"SELECT {_EVENT} FROM events WHERE id > ? AND name = ? AND {_WHOLE} ORDER BY id"
    ),
    "newest_event": "SELECT MAX(id) FROM events",
    "newest_event_named": "SELECT MAX(id) FROM events WHERE name = ? AND id <= ?",
    # ---- generations and clocks
    "generations": (
        "SELECT generation, unix_s, rank_nodes FROM generations "
        f"WHERE {_IS_OBJECT.format('rank_nodes')} ORDER BY generation"
    ),
    "generation_began": "SELECT unix_s FROM generations WHERE generation = ?",
    "clocks": (
        "SELECT node, boot_id, offset_ns, uncertainty_ns, monotonic_s, unix_s FROM clocks "
        "ORDER BY id"
    ),
    # ---- commands
    "commands": (
        "SELECT sequence, operation, name, value, count, tokens FROM commands ORDER BY sequence"
    ),
    "command_sequence": "SELECT sequence FROM commands WHERE id = ?",
    "extended_to": "SELECT MAX(count) FROM commands WHERE operation = 'extend'",
    # ---- steps
    "attempts": f"SELECT {_STEP} FROM metrics ORDER BY generation, step",
    "steps_stored": f"SELECT rowid, {_STEP} FROM metrics WHERE rowid > ? ORDER BY rowid LIMIT ?",
    "newest_step_stored": "SELECT MAX(rowid) FROM metrics",
    "step_stored": "SELECT generation, step FROM metrics WHERE rowid = ?",
    "course": f"SELECT row, {_STEP} FROM course ORDER BY step DESC LIMIT ?",
    "course_spans": (
        f"SELECT row, {_STEP} FROM json_each(?) AS span CROSS JOIN course ON step BETWEEN "
        "json_extract(span.value, '$[0]') AND json_extract(span.value, '$[1]') "
        "ORDER BY span.key, step"
    ),
    "has_step_before": "SELECT 1 FROM metrics WHERE generation <= ? AND step < ? LIMIT 1",
    "step_ended": "SELECT unix_s FROM metrics WHERE generation = ? AND step = ?",
    "first_step": "SELECT MIN(step) FROM metrics WHERE generation = ?",
    "skipped_steps": (
        "SELECT step FROM metrics WHERE skipped = 1 AND superseded = 0 ORDER BY step"
    ),
    "last_step_before": f"SELECT MAX(step) FROM metrics WHERE generation = {_PREVIOUS}",
    "totals": "SELECT SUM(tokens), SUM(duration_s) FROM metrics",
    # ---- evaluations and samples
    "evaluations": (  # planned and asked for at the same step: one loss
        f"SELECT {_EVALUATION} FROM evaluations WHERE superseded = 0 "
        "GROUP BY generation, step ORDER BY generation, step"
    ),
    "evaluations_stored": (
        f"SELECT {_EVALUATION} FROM evaluations WHERE rowid > ? ORDER BY rowid LIMIT ?"
    ),
    "newest_evaluation_stored": "SELECT MAX(rowid) FROM evaluations",
    "evaluations_of": f"SELECT {_EVALUATION} FROM evaluations WHERE sequence = ? ORDER BY rowid",
    "samples": f"SELECT {_SAMPLE} FROM samples WHERE rowid > ? ORDER BY rowid",
    "samples_of": f"SELECT {_SAMPLE} FROM samples WHERE sequence = ? ORDER BY rowid",
    "newest_sample_stored": "SELECT MAX(rowid) FROM samples",
    # ---- inputs of decisions; their events are bytes, which no gateway passes on
    "inputs": "SELECT epoch, clock_s, event, decided FROM inputs ORDER BY id",
}
READ_BY_DRIVERS = (
    "SELECT * FROM facts",
    "SELECT * FROM commands",
    "SELECT * FROM generations ORDER BY generation DESC LIMIT 1",
    "SELECT name FROM events",
    "SELECT * FROM clocks",
)
"""What a driver reads before it leads: damage there has it set the journal aside."""
