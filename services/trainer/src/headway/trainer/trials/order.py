"""A trial and its outcome: lines of JSON between the runner and the process that forks ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    """A configuration to train from its first weights for ``train.steps`` steps."""

    config: dict[str, Any]
    """A ``RunConfig`` with ``auto`` resolved, as ``common.config.to_dict`` returns it."""
    reads_ahead: bool = True
    """Batches come from a data daemon, as in a run; otherwise each rank reads its own in turn."""
    stand_in: bool = False
    """Forward and backward passes sleep for their measured times (``trials.stand_in``)."""


@dataclass(frozen=True)
class Outcome:
    """What the ranks of a trial measured."""

    step_s: list[float] = field(default_factory=list)
    """Seconds of each step on rank 0, from the end of the step before."""
    eval_loss: float | None = None
    """Validation loss after the last step, in nats; None for a stand-in."""
    peak_bytes: int | None = None
    """Peak memory of the rank that uses most; None for a stand-in."""
    error: str = ""
    """Why the trial failed; then nothing else is set."""
