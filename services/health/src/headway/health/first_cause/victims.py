"""Finds ranks that only suffer from what happened to another, and the verdict that explains it.

When one rank ends or hangs, the others print that a peer has closed its connection, that a
collective has timed out, or end themselves. That shows who has not failed. Such a finding waits for
its culprit, and becomes a row of the culprit's verdict; if no culprit shows, all of them together
are one verdict, which names nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway.common.wire.messages.health import Verdict, VerdictKind
from headway.health.causes import SURE
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.error_words import is_of_others
from headway.health.first_cause.outlet import Outlet
from headway.health.policy import Advice

KEY: Final = "victims"
WAIT_S: Final = 5.0
"""How long a finding waits for its culprit: a rank that hangs is named after two seconds and two
beats, and what is common to many nodes after two seconds."""
SLACK_S: Final = 2.0
"""A culprit may seem to have begun this much later than what follows from it: it is seen at the
next beat, and logs are dated by when they are read."""
BEFORE_S: Final = 60.0
"""Findings about machines explain what comes this long after them."""
KEPT_S: Final = 30.0
"""What follows from a verdict may come this long after it was closed: timers of teardown."""
MAX_CULPRITS: Final = 256

OF_VICTIMS: Final[frozenset[VerdictKind]] = frozenset({"peer_lost", "collective_timeout"})
"""Findings that show who has not failed."""
_NAMING: Final[frozenset[VerdictKind]] = frozenset(
    {"crash", "stopped", "silence", "node_silent", "fabric_cut"}
)
_OF_MACHINES: Final[frozenset[VerdictKind]] = frozenset(
    {
        "gpu_fault", "network_fault", "link_flapping", "out_of_memory", "memory_error",
        "pcie_error", "disk_fault", "kernel_stall", "user_error",
    }
)  # fmt: skip
_NAMING_NOBODY: Final[frozenset[VerdictKind]] = frozenset(
    {"unexplained_hang", "fabric_split", "data_stall", "common_fault"}
)
_ORDER: Final = (_NAMING, _OF_MACHINES, _NAMING_NOBODY)
"""What explains victims, the best first."""
_UNCERTAIN: Final = Advice(
    "observe",
    "find what ended first: these ranks only lost another one, and none of them is at fault",
    0.3,
)
_NO_CULPRIT: Final = "ranks have lost another one, and nothing shows which one failed first"
_ALSO_OTHERS: Final = (("another rank or the network failed first", 0.7),)


@dataclass(slots=True)
class _Culprit:
    key: Key
    id: str
    kind: VerdictKind
    generation: int
    began_s: float
    ended_s: float | None = None

    @property
    def order(self) -> tuple[int, float]:
        return next(at for at, kinds in enumerate(_ORDER) if self.kind in kinds), self.began_s


@dataclass(slots=True)
class _Waiting:
    verdict: Verdict
    at_s: float
    due_s: float


class Victims:
    """Findings and ended ranks that wait for their culprit, and the culprits that are known."""

    def __init__(self, episodes: Episodes, outlet: Outlet) -> None:
        self._episodes, self._outlet = episodes, outlet
        self._waiting: dict[str, _Waiting] = {}
        self._culprits: dict[str, _Culprit] = {}
        self._fresh: list[str] = []
        """Those that nobody has looked at yet."""
        self._has_news = False
        """Whether a culprit has become known since all of them were looked at."""
        self._complained: dict[int, float] = {}
        """Rank -> when it last logged that another one has gone."""

    def complain(self, verdict: Verdict, now_s: float) -> None:
        """Note that a rank has lost another one; before what ended in the same beat is judged."""
        if verdict.kind in OF_VICTIMS and verdict.rank >= 0:
            self._complained[verdict.rank] = now_s

    def has(self, verdict: Verdict, now_s: float) -> bool:
        """Whether a verdict is only about a victim."""
        if verdict.kind in OF_VICTIMS:
            return verdict.node >= 0 or verdict.rank >= 0
        if verdict.kind != "crash" or verdict.cause != "unknown" or verdict.id in self._culprits:
            return False
        words = next((row.value for row in verdict.evidence if row.name == "last_words"), "")
        logged_s = self._complained.get(verdict.rank, -KEPT_S - 1)
        if is_of_others(words):
            return True
        return now_s - logged_s <= KEPT_S and self._may_follow(verdict)

    def _may_follow(self, verdict: Verdict) -> bool:
        """Whether a rank without last words may have ended by what is known.

        What ended an earlier generation is over: the rank had left that one and begun the next.
        """
        known = [one.generation for one in self._culprits.values() if one.id != verdict.id]
        return not known or any(one < 0 or one >= verdict.generation for one in known)

    def add(self, verdict: Verdict, now_s: float) -> list[Verdict]:
        """Have it wait for its culprit; an ended rank is reported meanwhile, as it is replaced."""
        if (known := self._waiting.get(verdict.id)) is not None:
            known.verdict = verdict
            return self._outlet.report(verdict) if verdict.kind == "crash" else []
        at_s = _began_s(verdict, now_s)
        self._waiting[verdict.id] = _Waiting(verdict, at_s, now_s + WAIT_S)
        self._fresh.append(verdict.id)
        if verdict.kind != "crash" or self._culprit_at(at_s, verdict) is not None:
            return []
        key = self._episodes.key_of(verdict.id)
        changed = self._episodes.amend(key, alternatives=_ALSO_OTHERS) if key else []
        return [row for one in changed or [verdict] for row in self._outlet.report(one)]

    def note(self, verdict: Verdict, now_s: float) -> None:
        """Note a verdict that was reported, as what victims may follow from."""
        self._waiting.pop(verdict.id, None)  # a crash that has got a cause of its own
        key = self._episodes.key_of_any(verdict.id)  # it may be over within the same beat
        is_machine = verdict.kind in _OF_MACHINES and verdict.confidence >= SURE
        if key is None or not (is_machine or verdict.kind in _NAMING | _NAMING_NOBODY):
            return
        known = self._culprits.get(verdict.id)
        began_s = known.began_s if known else _began_s(verdict, now_s)
        self._culprits[verdict.id] = _Culprit(
            key, verdict.id, verdict.kind, verdict.generation, began_s
        )
        self._has_news = self._has_news or known is None
        while len(self._culprits) > MAX_CULPRITS:
            del self._culprits[next(iter(self._culprits))]

    def forget(self, verdict: Verdict, now_s: float) -> None:
        """A verdict has closed."""
        self._waiting.pop(verdict.id, None)
        if (known := self._culprits.get(verdict.id)) is not None:
            known.ended_s = now_s

    def settle(self, now_s: float) -> list[Verdict]:
        """Look for the culprits of what has come just now."""
        fresh, self._fresh = self._fresh, []
        return [row for name in fresh for row in self._settle(name, now_s)]

    def tick(self, now_s: float) -> list[Verdict]:
        """Look again for the culprits of all; what has waited for long enough names nobody."""
        self._culprits = {
            name: one
            for name, one in self._culprits.items()
            if one.ended_s is None or now_s - one.ended_s <= KEPT_S
        }
        verdicts = self.settle(now_s)
        if self._has_news:
            self._has_news = False
            for name in list(self._waiting):
                verdicts += self._settle(name, now_s)
        for one in self._waiting.values():
            if one.verdict.kind != "crash" and now_s >= one.due_s:
                verdicts += self._leave_open(one, now_s)
        return verdicts

    def _settle(self, name: str, now_s: float) -> list[Verdict]:
        one = self._waiting.get(name)
        culprit = self._culprit_at(one.at_s, one.verdict) if one is not None else None
        if one is None or culprit is None:
            return []
        del self._waiting[name]
        return self._outlet.add(one.verdict, culprit.key, "victim", _row(one.verdict), now_s)

    def symptom(self, node: int, text: str, at_s: float) -> list[Verdict] | None:
        """Add what follows from an error of the same machine; None without a culprit."""
        culprit = self._culprit_at(at_s, None)
        if culprit is None:
            return None
        return self._outlet.mention(culprit.key, "victim", f"node {node}: {text}")

    def _leave_open(self, waiting: _Waiting, now_s: float) -> list[Verdict]:
        """Part of the one verdict on victims without a culprit; it still waits for one."""
        verdict = waiting.verdict
        key: Key = (KEY, verdict.generation)
        if self._outlet.is_part(verdict):
            return []
        opened: list[Verdict] = []
        if self._episodes.get(key) is None:
            opened = self._episodes.report(
                key,
                verdict.kind,
                (fact("log", "finding", _NO_CULPRIT),),
                advice=_UNCERTAIN,
                node=-1,
                generation=verdict.generation,
                since=Since(now_s - waiting.at_s, verdict.since_error_s),
            )
            self._outlet.open_head(key, now_s)
        reported = [row for one in opened for row in self._outlet.report(one)]
        return reported + self._outlet.add(verdict, key, "victim", _row(verdict), now_s)

    def _culprit_at(self, at_s: float, victim: Verdict | None) -> _Culprit | None:
        """The best explanation of what happened at a time."""
        found = [
            one
            for one in self._culprits.values()
            if one.began_s <= at_s + SLACK_S
            and (one.ended_s is None or at_s <= one.ended_s + KEPT_S)
            and (one.kind not in _OF_MACHINES or at_s - one.began_s <= BEFORE_S)
            and (victim is None or one.id != victim.id)
        ]
        return min(found, key=lambda one: one.order, default=None)


def _began_s(verdict: Verdict, now_s: float) -> float:
    """On the monitor's own clock."""
    if not verdict.since_unix_s:
        return now_s
    return now_s - (verdict.unix_s - verdict.since_unix_s)


def _row(verdict: Verdict) -> str:
    facts = {row.name: row.value for row in verdict.evidence}
    said = facts.get("line") or facts.get("last_words") or facts.get("finding", "")
    who = f"rank {verdict.rank}" if verdict.rank >= 0 else "a rank"
    where = f" on node {verdict.node}" if verdict.node >= 0 else ""
    ended = " has ended" if verdict.kind == "crash" else ""
    return f"{who}{where}{ended}: {said.strip()[:160]}"
