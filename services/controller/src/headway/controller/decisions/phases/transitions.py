"""Which phase of a run may follow which, and why it then does."""

from __future__ import annotations

_LIVE = ("gathering", "reading", "choosing", "beginning", "joining", "running", "leaving")
TRANSITIONS: dict[tuple[str, str], str] = {
    ("gathering", "reading"): "every rank has a living worker",
    ("gathering", "running"): "a new driver adopts ranks that are training",
    ("gathering", "leaving"): "workers still hold groups of an older generation",
    ("reading", "choosing"): "every node has said which snapshots it holds",
    ("reading", "gathering"): "a rank has lost its worker",
    ("choosing", "beginning"): "there is a state to start from, or none is needed",
    ("choosing", "gathering"): "a rank has lost its worker",
    ("beginning", "joining"): "the generation's number is on the disk",
    ("beginning", "gathering"): "a rank has lost its worker",
    ("joining", "running"): "every rank has completed its first step",
    ("joining", "leaving"): "a rank is lost or has left the generation",
    ("running", "leaving"): "a rank is lost or has left the generation",
    ("leaving", "gathering"): "every worker has left the generation",
    **{(phase, "over"): "the run is finished, stopped or failed" for phase in _LIVE},
}
"""(from, to) -> what leads there. ``enter`` refuses every other pair."""


class ImpossibleTransitionError(RuntimeError):
    """A fault of the decisions: no event leads from one of the phases to the other."""


def check(before: str, after: str) -> None:
    """Raises ImpossibleTransitionError."""
    if (before, after) not in TRANSITIONS:
        raise ImpossibleTransitionError(f"no run goes from {before} to {after}")
