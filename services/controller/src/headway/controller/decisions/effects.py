"""Actions that may fail: which are under way, which failed, and when each is due again."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.decide import Action, AwakeClock
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    BeginGeneration,
    CheckCheckpoint,
    FindDurable,
    Finish,
    ReleaseNode,
    Remember,
    RestartNode,
)

RETRY_S = 0.5
LONGEST_RETRY_S = 5.0
"""Pause after a failure: doubles from the first to the longest."""
ANSWER_S = 10.0
LONGEST_ANSWER_S = 60.0
"""How long an answer may take before the action is repeated, doubling likewise. A slow disk is not
a lost message: asking too often would only make it slower."""

Fallible = (
    BeginGeneration
    | FindDurable
    | CheckCheckpoint
    | AwaitCheckpoint
    | RestartNode
    | ReleaseNode
    | Remember
    | Finish
)
Key = tuple[str, int]


@dataclass
class Effect:
    """The newest attempt at one thing."""

    action: Action
    asked_at: float
    tries: int
    answered_at: float | None = None
    error: str | None = None
    """Why it failed; None while it is under way, or when it was done."""
    last_error: str = ""
    """Why the attempt before this one failed."""


class Effects:
    """One attempt at a time for each kind of action, and for each node where it is about a node."""

    def __init__(self, clock: AwakeClock) -> None:
        self._clock = clock
        self._effects: dict[Key, Effect] = {}
        self._open: dict[Key, float] = {}
        """Asked and not answered -> since when; also of those that were forgotten meanwhile."""

    def due(self, kind: type[Fallible], node: int = -1, *, again_s: float | None = None) -> bool:
        """Whether to ask now: never asked, failed some time ago, or not answered for long.

        Args:
            again_s: repeat it although it was done, after this pause, which doubles each time.
        """
        effect = self._effects.get((kind.__name__, node))
        if effect is None:
            return True
        doubled: float = 2.0 ** min(effect.tries - 1, 10)
        if effect.answered_at is None:
            return self._clock.now - effect.asked_at >= min(ANSWER_S * doubled, LONGEST_ANSWER_S)
        waited = self._clock.now - effect.answered_at
        if effect.error is not None:
            return waited >= min(RETRY_S * doubled, LONGEST_RETRY_S)
        return again_s is not None and waited >= min(again_s * doubled, LONGEST_ANSWER_S)

    def ask(self, action: Fallible) -> list[Action]:
        """Note that the action is under way; returns it."""
        key = _key(action)
        known = self._effects.get(key)
        tries, error = (known.tries, known.error or known.last_error) if known else (0, "")
        self._effects[key] = Effect(action, self._clock.now, tries + 1, last_error=error)
        self._open[key] = self._clock.now
        return [action]

    def settle(self, action: Action, error: str | None = None) -> bool:
        """Take in an answer and return whether it counts.

        False when the action is not the newest of its kind, or was answered before.
        """
        effect = self._effects.get(_key(action))
        self._open.pop(_key(action), None)
        if effect is None or effect.action != action or effect.answered_at is not None:
            return False
        effect.answered_at, effect.error, effect.last_error = self._clock.now, error, ""
        return True

    def settled(self, kind: type[Fallible], error: str | None) -> None:
        """Take in an answer that does not repeat its question."""
        self._open.pop((kind.__name__, -1), None)
        if effect := self._effects.get((kind.__name__, -1)):
            effect.answered_at, effect.error, effect.last_error = self._clock.now, error, ""

    def forget(self, kind: type[Fallible], node: int = -1) -> None:
        """It is not needed any more; the next time begins anew."""
        self._effects.pop((kind.__name__, node), None)

    def num_open(self, kind: type[Fallible]) -> int:
        """How many of this kind are under way; one that hangs counts for ``LONGEST_ANSWER_S``."""
        then = self._clock.now - LONGEST_ANSWER_S
        return sum(key[0] == kind.__name__ and at > then for key, at in self._open.items())

    def asked_at(self, kind: type[Fallible], node: int) -> float:
        """When the newest attempt began, -1 if it was never asked for since it was forgotten."""
        effect = self._effects.get((kind.__name__, node))
        return -1.0 if effect is None else effect.asked_at

    def is_asked(self, kind: type[Fallible], node: int = -1) -> bool:
        """Whether it was asked for since it was last forgotten."""
        return (kind.__name__, node) in self._effects

    def tried_at(self, kind: type[Fallible], node: int = -1) -> float | None:
        """When the newest attempt was answered, or given up as unanswered.

        None while it may still help.
        """
        effect = self._effects.get((kind.__name__, node))
        if effect is None:
            return None
        if effect.answered_at is None and self._clock.now - effect.asked_at >= ANSWER_S:
            return effect.asked_at
        return effect.answered_at

    def error(self, kind: type[Fallible], node: int = -1) -> str:
        """Why it failed the last time; empty when it has not failed, or was done since."""
        effect = self._effects.get((kind.__name__, node))
        return (effect.error or effect.last_error) if effect else ""


def _key(action: Action) -> Key:
    node = action.node if isinstance(action, RestartNode | ReleaseNode) else -1
    return type(action).__name__, node
