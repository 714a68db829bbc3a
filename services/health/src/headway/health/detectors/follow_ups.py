"""Follows open verdicts: records the driver's answers, and when to repeat a verdict.

A verdict that was acted on and is still open was not resolved, so it is repeated, first after
``again_s`` and then at growing intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.health.detectors.episodes import Episodes, Key, fact

MAX_DOUBLINGS: Final = 5


@dataclass(slots=True)
class _FollowUp:
    kind: str
    since_s: float
    """When the verdict was last issued, repeated or answered."""
    num_repeats: int = 0


class FollowUps:
    """State of the verdicts in ``episodes``; unknown ones count from time 0."""

    def __init__(self, episodes: Episodes, again_s: float) -> None:
        self._episodes, self._again_s = episodes, again_s
        self._known: dict[str, _FollowUp] = {}

    def begin(self, verdicts: list[Verdict], clock_s: float) -> list[Verdict]:
        """Start the time of new or revised verdicts, and drop closed ones.

        Returns the verdicts unchanged.
        """
        for verdict in verdicts:
            if verdict.is_open:
                self._of(verdict).since_s = clock_s
            else:
                self._known.pop(verdict.id, None)
        return verdicts

    def answered(self, answer: VerdictTaken, clock_s: float) -> list[Verdict]:
        """Return the revision with an answer, or nothing.

        It is nothing if the answer decides nothing or concerns an older question.
        """
        key = self._episodes.key_of(answer.id)
        verdict = self._episodes.get(key) if key is not None else None
        if key is None or verdict is None or not answer.taken or verdict.taken:
            return []
        if not self._episodes.is_answer(verdict, answer.revision):
            return []
        return self.begin(self._episodes.note_taken(key, answer.taken), clock_s)

    def is_due(self, verdict: Verdict, clock_s: float) -> bool:
        """Whether an open verdict was acted on so long ago that it should have been resolved."""
        known = self._of(verdict)
        wait_s = self._again_s * 2 ** min(known.num_repeats, MAX_DOUBLINGS)
        return bool(verdict.taken) and clock_s - known.since_s >= wait_s

    def is_in_vain(self, verdict: Verdict, clock_s: float) -> bool:
        """Whether an open verdict is still open after the action on it.

        It is then no longer the likely cause of other symptoms.
        """
        return self._of(verdict).num_repeats > 0 or self.is_due(verdict, clock_s)

    def repeat(self, key: Key, clock_s: float) -> list[Verdict]:
        """Repeat an open verdict."""
        verdict = self._episodes.get(key)
        assert verdict is not None, f"no open verdict about {key}"
        known = self._of(verdict)
        known.num_repeats += 1
        done = f"{known.num_repeats} times, still there after {verdict.taken!r}"
        why = fact("beat", "repeated", done)
        return self.begin(self._episodes.repeat(key, why), clock_s)

    def _of(self, verdict: Verdict) -> _FollowUp:
        known = self._known.get(verdict.id)
        if known is None or known.kind != verdict.kind:
            known = self._known[verdict.id] = _FollowUp(verdict.kind, 0.0)
        return known
