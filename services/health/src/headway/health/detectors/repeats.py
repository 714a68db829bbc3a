"""How often findings came lately: n times in t, and whether one subject alone repeats them."""

from __future__ import annotations

from collections import deque
from typing import Final

from headway.health.detectors.episodes import Key
from headway.health.rulebook import Rule

MOST: Final = 64
"""Times that are kept of a subject; no rule counts further."""


class Repeats:
    """The times of the findings of each subject, as long as a rule may ask for them."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[Key, deque[float]]] = {}
        """Rule -> subject -> times, oldest first."""

    def note(self, key: Key, rule: Rule, count: int, now_s: float) -> None:
        """Add a finding that stands for ``count``; forget what no rule counts any more."""
        kept_s = max(rule.within_s, rule.repeat.within_s if rule.repeat else 0.0)
        subjects = self._seen.setdefault(rule.name, {})
        for known in [known for known, times in subjects.items() if now_s - times[-1] > kept_s]:
            del subjects[known]
        subjects.setdefault(key, deque(maxlen=MOST)).extend([now_s] * min(count, MOST))

    def count(self, key: Key, within_s: float, now_s: float) -> int:
        """How many of a subject came within a time, this moment's included."""
        subjects = self._seen.get(str(key[1]), {})
        return sum(now_s - at_s <= within_s for at_s in subjects.get(key, ()))

    def is_alone(self, key: Key, rule: Rule, now_s: float) -> bool:
        """Whether this subject has repeated a finding as often as its rule asks, and no other has.

        One that appears on many GPUs or ports at once is more likely the program's or the
        network's.
        """
        repeat = rule.repeat
        if repeat is None or self.count(key, repeat.within_s, now_s) < repeat.times:
            return False
        others = self._seen[rule.name].keys() - {key}
        return all(self.count(other, repeat.within_s, now_s) == 0 for other in others)
