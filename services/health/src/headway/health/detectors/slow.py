"""Verdicts on ranks that stay slow: opened, revised as causes become known, and closed.

What is slow is decided by ``headway.health.slowness.live``. Nothing is done about it but to report
it, and that it is over. A new generation is measured anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.diagnosis.diagnosis import Diagnosis, ranks_in_words
from headway.health.policy import Advice
from headway.health.slowness.findings import Slowness
from headway.health.slowness.judge import noted
from headway.health.slowness.live import LiveJudgement, Named, Who
from headway.health.slowness.notes import Note, notes_of
from headway.health.slowness.sentences import diagnosis
from headway.health.slowness.steps import StepTable

KEY = "slow"
NEWEST_STEPS = 8
"""Newest steps that are looked at; nothing new is known of a rank that has none of them."""


class SlowRanks:
    """One episode for each rank, tensor-parallel group or stage that is slow."""

    def __init__(self, episodes: Episodes, interval_s: float) -> None:
        """``interval_s`` is the time between two beats, by which onsets are uncertain."""
        self._episodes, self._interval_s = episodes, interval_s
        self._seen: set[Who] = set()
        """What this monitor itself has seen slow in this generation."""

    def judge(self, judged: LiveJudgement, now_s: float) -> list[Verdict]:
        """What the newest steps change in the verdicts.

        Args:
            now_s: by the clock that ``judged`` was dated by.
        """
        verdicts = self.begin_generation(judged.generation)
        notes = notes_of(self._episodes.verdicts())
        for named in judged.named:
            verdicts += self._name(named, judged, notes, now_s)
        slow = {named.who for named in judged.named} | judged.doubted
        self._seen |= slow
        for who in self._open() - slow:
            if self._is_over(who, judged.table):
                verdicts += self._episodes.close(_key(who), self._over(who))
        return verdicts

    def _is_over(self, who: Who, table: StepTable) -> bool:
        """Whether steps that are not slow show that something is over.

        They show nothing of ranks without newer steps. What is held against its own earlier steps
        alone, a monitor that was started since then cannot judge.
        """
        has_peers = table.grid.dp > 1 and len(who) == 1
        newest = table.times["own_us"][-NEWEST_STEPS:, who[0] : _last_rank(who, table.grid) + 1]
        return (has_peers or who in self._seen) and not np.isnan(newest).all()

    def begin_generation(self, generation: int) -> list[Verdict]:
        """Close what was slow in an earlier one."""
        closed: list[Verdict] = []
        for who in self._open():
            known = self._episodes.get(_key(who))
            if known is not None and known.generation < generation:
                self._seen.discard(who)
                why = f"generation {generation} has begun"
                closed += self._episodes.close(_key(who), fact("flight", "ended", why))
        return closed

    def _name(
        self, named: Named, judged: LiveJudgement, notes: list[Note], now_s: float
    ) -> list[Verdict]:
        one = noted(named.one, judged.table, notes)
        said = diagnosis(one, judged.table)
        known = self._episodes.get(_key(named.who))
        rank = one.ranks[0] if len(one.ranks) == 1 else -1
        about: dict[str, Any] = {
            "cause": one.cause, "rank": rank, "subject": "rank" if rank >= 0 else "domain",
            "name": "" if rank >= 0 else one.place,
        }  # fmt: skip
        rows = _evidence(said, one)
        if known is not None:
            if _is_known(known, one):
                return []
            since = tuple(row for row in known.evidence if row.name == "since_step")
            return self._episodes.revise(
                _key(named.who), rows, since, confidence=said.confidence, remedy=said.do,
                alternatives=said.alternatives, **about,
            )  # fmt: skip
        if said.since_step is not None:
            rows = (*rows, fact("flight", "since_step", str(said.since_step)))
        nodes = set(judged.table.nodes_of(one.ranks, one.until).tolist())
        began = named.began_s
        return self._episodes.report(
            _key(named.who),
            "slow_rank",
            rows,
            advice=Advice("observe", said.do, said.confidence, said.alternatives),
            node=nodes.pop() if len(nodes) == 1 else -1,
            generation=judged.generation,
            since=None if began is None else Since(now_s - began, self._interval_s),
            **about,
        )

    def _over(self, who: Who) -> Evidence:
        known = self._episodes.get(_key(who))
        named = [row.value for row in known.evidence if row.name == "who"] if known else []
        ranks = tuple(map(int, named[-1].split(", "))) if named else who
        are = "is" if len(ranks) == 1 else "are"
        return fact("flight", "finding", f"{ranks_in_words(ranks)} {are} as fast as usual again")

    def _open(self) -> set[Who]:
        return {
            tuple(int(part) for part in key[1:])
            for key in self._episodes.open_keys()
            if key[0] == KEY
        }


def _last_rank(who: Who, grid: Grid) -> int:
    return who[-1] if len(who) > 1 else who[0] + grid.tp - 1


def _key(who: Who) -> Key:
    return (KEY, *who)


def _evidence(said: Diagnosis, one: Slowness) -> tuple[Evidence, ...]:
    return (
        fact("flight", "finding", said.summary),
        fact("flight", "who", ", ".join(map(str, one.ranks))),
        *([fact("flight", "where", one.place)] if one.place else []),
        *(fact("flight", "measured", text) for text in one.why),
        *(fact("host", "because", text) for text in one.notes),
    )


def _is_known(verdict: Verdict, one: Slowness) -> bool:
    """Whether a verdict says it already: by whom, by what and why, however much it is by now.

    That a group is slow adds nothing to what is known of its member.
    """
    because = {row.value for row in verdict.evidence if row.name == "because"}
    is_narrower = len(one.ranks) == 1 and verdict.rank != one.ranks[0]
    return verdict.cause == one.cause and not is_narrower and because >= set(one.notes)
