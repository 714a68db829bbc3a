"""What a client reports of a save."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.log import get_logger

log = get_logger("checkpoints")


@dataclass(frozen=True)
class Saved:
    """The result of a ``save``."""

    step: int
    generation: int
    is_stored: bool
    """Whether this rank's part is on disk or, with a daemon, in shared memory."""
    is_complete: bool
    """Whether every rank's part is on disk, so that ``restore`` can return it;
    False with a daemon."""
    problem: str = ""
    """Why nothing was stored, or what could not be removed; also logged."""


def saved(step: int, generation: int, is_stored: bool, is_complete: bool, problem: str) -> Saved:
    """The result of a save; a problem is logged too."""
    if problem:
        log.warning("checkpoint problem, continuing", step=step, stored=is_stored, reason=problem)
    return Saved(step, generation, is_stored, is_complete, problem)
