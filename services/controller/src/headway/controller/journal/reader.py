"""The run's journal as its readers see it: typed rows, and which of the steps count."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.controller.journal.rows import ClockReading

END = 2**62
"""Above every row number."""


@dataclass(frozen=True, slots=True)
class Step:
    """One completed optimizer step, as one generation did it."""

    row: int
    """Counts the rows of the journal in the order in which they were stored."""
    generation: int
    step: int
    loss: float | None
    """Nats per token; None if it was not finite."""
    grad_norm: float | None
    lr: float
    tokens: int
    duration_s: float
    unix_s: float
    is_skipped: bool = False
    """The update was skipped because loss or gradient norm was not finite, or a spike."""
    is_superseded: bool = False
    """A newer generation has gone back to this step or an earlier one."""

    @property
    def tokens_per_s(self) -> float:
        """By the step's own duration; 0 if that is unknown."""
        return self.tokens / self.duration_s if self.duration_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """What happened, or was decided."""

    id: int
    epoch: int
    """The epoch of the driver that wrote it."""
    monotonic_s: float
    """By the run's clock."""
    unix_s: float
    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A validation loss."""

    row: int
    generation: int
    step: int
    """Completed steps before it."""
    loss: float | None
    """Nats per token; None if it was not finite."""
    tokens: int
    sequence: int
    """The sequence of the command that asked for it; 0 for a planned one."""
    is_superseded: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """A text that the model wrote."""

    row: int
    generation: int
    sequence: int
    """The sequence of the command that asked for it; 0 for the one at the end of the run."""
    step: int
    tokens: tuple[int, ...]
    """Empty if a flipped bit has damaged them."""
    num_prompt_tokens: int


class RunJournal:
    """Typed reads over ``rows(read, values)``, which reads a file or asks a gateway."""

    def __init__(self, rows: Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]) -> None:
        self._rows = rows

    def _number(self, read: str, *values: Any) -> int | None:
        rows = self._rows(read, values)
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    # ---- the run ------------------------------------------------------------------------------
    def facts(self) -> dict[str, str]:
        """Single remembered values, such as ``outcome``."""
        return dict(self._rows("facts", ()))

    def has_begun(self) -> bool:
        """Whether a driver has led the run."""
        return bool(self._rows("has_begun", ()))

    def events(self, after: int = 0, until: int = END, *, name: str = "") -> list[JournalEvent]:
        """Events with an id above ``after`` in order; those with damaged fields are left out."""
        if name:
            rows = self._rows("events_named", (after, name))
        else:
            rows = self._rows("events", (after, until))
        return [_event(row) for row in rows if row[0] <= until]

    def event_rows(self) -> list[tuple[Any, ...]]:
        """Every event as a plain row of ``EVENT_COLUMNS``, with its fields as JSON."""
        return self._rows("events", (0, END))

    def newest_event(self, name: str = "", *, until: int = END) -> int:
        """Id of the newest event, of this name; 0 without any."""
        if name:
            return self._number("newest_event_named", name, until) or 0
        return self._number("newest_event") or 0

    def generations(self) -> list[tuple[int, float, dict[int, int]]]:
        """Number, Unix time of its beginning and rank -> node of each generation, in order."""
        found = []
        for generation, unix_s, text in self._rows("generations", ()):
            with contextlib.suppress(ValueError, TypeError):  # a flipped bit costs that one
                nodes = {int(rank): int(node) for rank, node in json.loads(text).items()}
                found.append((generation, unix_s, nodes))
        return found

    def clocks(self) -> list[ClockReading]:
        """What the clocks of nodes were found to be, in order."""
        return [ClockReading(*row) for row in self._rows("clocks", ())]

    # ---- commands -----------------------------------------------------------------------------
    def sequence_of(self, command_id: str) -> int | None:
        """The number of a command that the journal holds."""
        return self._number("command_sequence", command_id)

    def extended_to(self) -> int:
        """Steps that the run was extended to; 0 if it never was."""
        return self._number("extended_to") or 0

    # ---- steps --------------------------------------------------------------------------------
    def course(self, newest: int) -> list[Step]:
        """The last steps that count, oldest first, each once."""
        return [_step(row) for row in reversed(self._rows("course", (newest,)))]

    def course_spans(self, spans: list[tuple[int, int]]) -> list[Step]:
        """The steps that count from first to last of each span, in this order."""
        return [_step(row) for row in self._rows("course_spans", (json.dumps(spans),))]

    def attempts(self) -> list[tuple[Any, ...]]:
        """Return every step of every generation, in the order in which they were done.

        They are plain rows of ``STEP_COLUMNS``, because there may be millions.
        """
        return self._rows("attempts", ())

    def steps_stored(self, after: int, limit: int = END) -> list[Step]:
        """Steps in rows above ``after``, in the order in which they were stored."""
        return [_step(row) for row in self._rows("steps_stored", (after, limit))]

    def newest_step_stored(self) -> int:
        """The last row of a step; 0 without any."""
        return self._number("newest_step_stored") or 0

    def step_stored(self, row: int) -> tuple[int, int] | None:
        """Generation and step in this row."""
        return next(((int(g), int(s)) for g, s in self._rows("step_stored", (row,))), None)

    def completed_steps(self) -> int | None:
        """Steps that count; None before the first."""
        newest = self.course(1)
        return newest[0].step + 1 if newest else None

    def first_step(self, generation: int) -> int | None:
        """The first step that a generation has completed."""
        return self._number("first_step", generation)

    def has_step_before(self, generation: int, step: int) -> bool:
        """Whether this generation or an older one has completed a step below ``step``."""
        return bool(self._rows("has_step_before", (generation, step)))

    def skipped_steps(self) -> list[int]:
        """Steps that count and whose update was skipped, not finite or spikes, in order."""
        return [int(step) for (step,) in self._rows("skipped_steps", ())]

    def repeated(self, generation: int, step: int) -> int:
        """Completed steps that ``generation``, which began at ``step``, does again."""
        newest = self._number("last_step_before", generation)
        return 0 if newest is None else max(0, newest + 1 - step)

    def tokens_and_seconds(self) -> tuple[int, float]:
        """Sums over all attempts, by their own durations."""
        rows = self._rows("totals", ())
        tokens, spent_s = rows[0] if rows else (0, 0.0)
        return tokens or 0, spent_s or 0.0

    # ---- evaluations and samples --------------------------------------------------------------
    def evaluations(self) -> list[Evaluated]:
        """The validation losses that count, one for each number of completed steps."""
        return [Evaluated(*row) for row in self._rows("evaluations", ())]

    def evaluations_stored(self, after: int, limit: int = END) -> list[Evaluated]:
        """Those in rows above ``after``, in the order in which they were stored."""
        rows = self._rows("evaluations_stored", (after, limit))
        return [Evaluated(*row) for row in rows]

    def evaluations_of(self, sequence: int) -> list[Evaluated]:
        """What the command with this sequence has brought, one for each attempt."""
        rows = self._rows("evaluations_of", (sequence,))
        return [Evaluated(*row) for row in rows]

    def newest_evaluation_stored(self) -> int:
        """The last row of a validation loss; 0 without any."""
        return self._number("newest_evaluation_stored") or 0

    def evaluated_at(self, generation: int, step: int) -> float | None:
        """Unix time of the end of the step before, or of the generation's beginning."""
        for read, values in (
            ("step_ended", (generation, step - 1)),
            ("generation_began", (generation,)),
        ):
            for (unix_s,) in self._rows(read, values):
                return float(unix_s)
        return None

    def samples(self, after: int = 0) -> list[Sampled]:
        """Texts in rows above ``after``, in the order in which they were stored."""
        return [_sample(row) for row in self._rows("samples", (after,))]

    def samples_of(self, sequence: int) -> list[Sampled]:
        """What the command with this sequence has brought, one for each attempt."""
        return [_sample(row) for row in self._rows("samples_of", (sequence,))]

    def newest_sample_stored(self) -> int:
        """The last row of a text; 0 without any."""
        return self._number("newest_sample_stored") or 0


def _step(row: tuple[Any, ...]) -> Step:
    return Step(*row)  # SQLite's truth values are 0 and 1


def _event(row: tuple[Any, ...]) -> JournalEvent:
    number, epoch, monotonic_s, unix_s, name, text = row
    return JournalEvent(number, epoch, monotonic_s, unix_s, name, json.loads(text))


def _sample(row: tuple[Any, ...]) -> Sampled:
    number, generation, sequence, step, text, num_prompt = row
    try:
        tokens = tuple(int(one) for one in json.loads(text))
    except (ValueError, TypeError):
        tokens = ()
    return Sampled(number, generation, sequence, step, tokens, num_prompt)
