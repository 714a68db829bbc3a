"""Why a rank computes slowly: what agents have found on its node, and whom its group waits for."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.plan.collectives import GroupKind
from headway.common.wire.messages.health import Cause
from headway.common.wire.messages.summaries import StepSummary
from headway.health.detectors.episodes import Episodes
from headway.health.slowness.notes import note_of

_TP_LINE = 2 * GroupKind.TP
"""The lowest of all."""
LEAST_RATIO = 1.03
"""Of its own time to that of each other member, from which on a member is the slow one."""


@dataclass(frozen=True, slots=True)
class SlowCause:
    """What explains that ranks are slow."""

    cause: Cause = "compute"
    why: str = ""
    """The finding that shows it; empty without one."""
    remedy: str = ""


class SlowCauses:
    """Knows the open findings, and what each rank takes in passes without waiting in them.

    Such waits are recorded in some steps only; the newest of these counts.
    """

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._own_us: dict[int, int] = {}
        """Passes without the waits for other tensor-parallel ranks."""

    def note(self, summary: StepSummary) -> None:
        """Take in what an agent sums up of the newest steps."""
        for step in summary.steps:  # a large run has ten thousand of them each second
            first = step.groups[0] if step.groups else None  # they are in the order of lines
            if first is not None and first.line == _TP_LINE and first.num:
                self._own_us[step.rank] = step.own_us - first.wait_us

    def of(self, node: int) -> SlowCause:
        """By the open findings about a node; the surest one, if there are several."""
        found = [
            (verdict, note)
            for verdict in self._episodes.verdicts()
            if verdict.node == node and (note := note_of(verdict)) is not None
        ]
        if not found:
            return SlowCause()
        verdict, note = max(found, key=lambda one: one[0].confidence)
        return SlowCause(note.cause, note.text, verdict.remedy)

    def slowest(self, ranks: tuple[int, ...]) -> int | None:
        """The member of a tensor-parallel group that the others wait for; None if unknown."""
        if len(ranks) < 2 or not all(rank in self._own_us for rank in ranks):
            return None
        second, first = sorted(ranks, key=lambda rank: self._own_us[rank])[-2:]
        is_clear = self._own_us[first] >= LEAST_RATIO * self._own_us[second]
        return first if is_clear else None
