"""Which verdicts have left the monitor, and which are only a part of another one.

A part stays open inside the monitor, where it still explains why ranks wait, and its later
revisions are not reported. One that was reported before is closed for those who read it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from headway.common.wire.messages.health import Verdict
from headway.health.detectors.episodes import Episodes, Key, fact
from headway.health.detectors.follow_ups import FollowUps

MAX_OVER: Final = 256
"""Verdicts that were reported and have closed, of which more may still be learned."""
MAX_ROWS: Final = 16
"""Parts that are listed in the evidence of a verdict; of a thousand ranks no more is learned."""
KEPT_S: Final = 5.0
"""A verdict that stands for others closes this long after the last of them."""


class Outlet:
    """Verdicts by id; heads, which stand for others, by the key of their problem."""

    def __init__(self, episodes: Episodes, follow_ups: FollowUps) -> None:
        self._episodes, self._follow_ups = episodes, follow_ups
        self._reported: set[str] = set()
        self._over: dict[str, None] = {}
        self._head_of: dict[str, Key] = {}
        self._parts: defaultdict[Key, set[str]] = defaultdict(set)
        self._heads: dict[Key, float] = {}
        """Heads that close with their parts -> until when they stay without any."""

    def restore(self, verdicts: list[Verdict], heads: list[Key], until_s: float) -> None:
        """Adopt what an earlier monitor has reported; its heads wait for their parts."""
        self._reported = {one.id for one in verdicts}
        self._heads = dict.fromkeys(heads, until_s)

    def is_part(self, verdict: Verdict) -> bool:
        """Whether it is a part of another verdict."""
        return verdict.id in self._head_of

    def is_reported(self, verdict: Verdict) -> bool:
        """Whether it is known outside, and open there."""
        return verdict.id in self._reported

    def was_reported(self, verdict: Verdict) -> bool:
        """Whether it was known outside, and has closed lately."""
        return verdict.id in self._over

    def report(self, verdict: Verdict) -> list[Verdict]:
        """Report a revision, unless it is about a part."""
        if self.is_part(verdict):
            return []
        if verdict.is_open:
            self._reported.add(verdict.id)
        else:
            self._end(verdict.id)
        return [verdict]

    def open_head(self, key: Key, now_s: float) -> None:
        """Have this verdict closed once it has no parts any more."""
        self._heads[key] = now_s + KEPT_S

    def add(self, verdict: Verdict, head: Key, name: str, text: str, now_s: float) -> list[Verdict]:
        """Make a verdict a part of another one, which lists it in a row ``name``."""
        head = self._root(head)
        known = self._episodes.any_of(head)
        if known is None or verdict.id in (known.id, *self._parts.get(head, ())):
            return []
        key = self._episodes.key_of(verdict.id)
        verdict = (self._episodes.get(key) if key is not None else None) or verdict
        ended: list[Verdict] = []
        if self.is_reported(verdict):
            self._end(verdict.id)
            ended = [self._episodes.close_part(verdict, known)]
        former = self._leave(verdict.id)
        if former in self._heads and not self._parts.get(former):
            self._heads[former] = now_s  # all that it stood for has another one now
        self._head_of[verdict.id] = head
        self._parts[head].add(verdict.id)
        if head in self._heads:
            self._heads[head] = now_s + KEPT_S
        if key is not None and not verdict.taken:
            # what is done about the other one is done about this one
            taken = self._episodes.note_taken(key, f"part of {known.id}")
            self._follow_ups.begin(taken, now_s)
        return ended + self.mention(head, name, text, verdict.unix_s - verdict.since_unix_s)

    def mention(self, head: Key, name: str, text: str, ago_s: float = 0.0) -> list[Verdict]:
        """Add a row to a verdict, if it does not have it or enough of them."""
        head = self._root(head)
        known = self._episodes.any_of(head)
        if known is None:
            return []
        values = [row.value for row in known.evidence if row.name == name]
        if text in values or len(values) >= MAX_ROWS:
            return []
        return self._episodes.amend(head, fact("log", name, text, ago_s))

    def close(self, verdict: Verdict, now_s: float) -> list[Verdict]:
        """A verdict has closed: report it, unless it is a part."""
        head = self._leave(verdict.id)
        if head is None:
            return self.report(verdict)
        if head in self._heads:
            self._heads[head] = max(self._heads[head], now_s + KEPT_S)
        return []

    def tick(self, now_s: float) -> list[Verdict]:
        """Close the heads whose parts have all closed."""
        why = fact("beat", "over", "none of its parts is left")
        closed: list[Verdict] = []
        for key, until_s in list(self._heads.items()):
            if not self._parts.get(key) and now_s >= until_s:
                del self._heads[key]
                self._parts.pop(key, None)
                for verdict in self._episodes.close(key, why):
                    closed += self.report(verdict)
        return closed

    def _root(self, head: Key) -> Key:
        """What a head is a part of itself, if it is one."""
        known = self._episodes.any_of(head)
        above = self._head_of.get(known.id) if known is not None else None
        return head if above is None else self._root(above)

    def _end(self, name: str) -> None:
        self._reported.discard(name)
        self._over[name] = None
        while len(self._over) > MAX_OVER:
            del self._over[next(iter(self._over))]

    def _leave(self, name: str) -> Key | None:
        head = self._head_of.pop(name, None)
        if head is not None:
            self._parts[head].discard(name)
            if not self._parts[head]:
                del self._parts[head]
        return head
