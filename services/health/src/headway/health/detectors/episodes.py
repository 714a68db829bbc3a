"""One verdict per problem: opens an episode once, revises it, and closes it when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
from headway.common.wire.messages.health import (
    Cause,
    Evidence,
    EvidenceSource,
    Verdict,
    VerdictKind,
    VerdictSubject,
)
from headway.health.causes import cause_of
from headway.health.policy import ADVICE, Advice

Key = tuple[str | int, ...]
MAX_CLOSED: Final = 256
"""Closed verdicts that may still be amended, the newest: what explains one may be read late."""


class Since(NamedTuple):
    """When a trouble began."""

    ago_s: float
    error_s: float
    """It was at most this much earlier or later."""


class Episodes:
    """The open verdicts by the key of their problem. Every change is returned as a new revision."""

    def __init__(self, run_id: str, clock_s: Callable[[], float] = time.time) -> None:
        """``clock_s`` is the wall clock, by which verdicts and their evidence are dated."""
        self._run_id, self._clock_s = run_id, clock_s
        self._open: dict[Key, Verdict] = {}
        self._numbers: dict[str, int] = {}
        """Episodes so far, by the part of the id before the number."""
        self._keys_of_rank: dict[int, set[Key]] = {}
        self._keys_of_id: dict[str, Key] = {}
        self._asked: dict[str, int] = {}
        """The revision from which on the driver's answer to an open verdict counts."""
        self._closed: dict[Key, Verdict] = {}
        """Those that were closed last."""

    def restore(self, verdicts: Iterable[Verdict]) -> None:
        """Adopt what an earlier monitor of the run wrote, oldest first."""
        newest: dict[str, int] = {}
        for verdict in verdicts:
            if verdict.revision < newest.get(verdict.id, 0):
                continue  # one that a full disk did not take at first
            newest[verdict.id] = verdict.revision
            stem, _, number = verdict.id.rpartition("#")
            self._numbers[stem] = max(self._numbers.get(stem, 0), int(number))
            if verdict.is_open:
                self._put(_key_of(stem), verdict)
            else:
                self._pop(_key_of(stem))

    def get(self, key: Key) -> Verdict | None:
        """The open verdict of a problem."""
        return self._open.get(key)

    def any_of(self, key: Key) -> Verdict | None:
        """The verdict of a problem that is open, or was closed lately."""
        return self._open.get(key) or self._closed.get(key)

    def key_of(self, verdict_id: str) -> Key | None:
        """The problem of an open verdict, None if no such verdict is open."""
        return self._keys_of_id.get(verdict_id)

    def key_of_any(self, verdict_id: str) -> Key | None:
        """The problem of a verdict that is open or was closed lately, None if it is neither."""
        key = _key_of(verdict_id.rpartition("#")[0])
        known = self.any_of(key)
        return key if known is not None and known.id == verdict_id else None

    def open_of_generation(
        self, generation: int, kinds: frozenset[str]
    ) -> list[tuple[Key, Verdict]]:
        """The open verdicts of these kinds in a generation, which may explain further symptoms."""
        return [
            (key, one)
            for key, one in self._open.items()
            if one.generation == generation and one.kind in kinds
        ]

    def of_rank(self, rank: int) -> list[tuple[Key, Verdict]]:
        """The open verdicts about one rank.

        They are indexed, since this is called once per worker and beat.
        """
        keys = self._keys_of_rank.get(rank)
        return [(key, self._open[key]) for key in keys] if keys else []

    def open_keys(self) -> list[Key]:
        """The problems that are open."""
        return list(self._open)

    def verdicts(self) -> list[Verdict]:
        """All open verdicts."""
        return list(self._open.values())

    def report(
        self,
        key: Key,
        kind: VerdictKind,
        evidence: tuple[Evidence, ...],
        *,
        advice: Advice | None = None,
        cause: Cause | None = None,
        subject: VerdictSubject | None = None,
        name: str = "",
        node: int,
        rank: int = -1,
        pid: int = 0,
        generation: int = -1,
        since: Since | None = None,
        silence_s: float = 0.0,
    ) -> list[Verdict]:
        """Open an episode, or revise it if its ``kind`` has changed.

        The same kind again has no effect.

        A revision counts as unanswered, whatever was done about the earlier kind; the trouble still
        began when it did. Without ``advice`` or ``cause`` it is that of the kind; without a
        ``subject`` it is the rank, else the node, else what all ranks share.
        """
        advice = advice or ADVICE[kind]
        now_s = self._clock_s()
        began_s, error_s = (now_s - since.ago_s, since.error_s) if since else (0.0, 0.0)
        known = self._open.get(key)
        if known is not None and known.kind == kind:
            return []
        stem = _stem_of(key)
        if known is None:
            self._numbers[stem] = self._numbers.get(stem, 0) + 1
        verdict = Verdict(
            id=f"{stem}#{self._numbers[stem]}",
            revision=known.revision + 1 if known else 0,
            kind=kind,
            cause=cause or cause_of(kind),
            is_open=True,
            run_id=self._run_id,
            subject=subject or ("rank" if rank >= 0 else "node" if node >= 0 else "domain"),
            name=name,
            node=node,
            rank=rank,
            pid=pid,
            generation=generation,
            confidence=advice.confidence,
            alternatives=advice.alternatives,
            action=advice.action,
            remedy=advice.remedy,
            evidence=(*(known.evidence if known else ()), *_dated(evidence, now_s)),
            since_unix_s=known.since_unix_s if known else began_s,
            since_error_s=known.since_error_s if known else error_s,
            unix_s=now_s,
            silence_s=silence_s,
        )
        self._put(key, verdict)
        self._asked[verdict.id] = verdict.revision
        return [verdict]

    def is_answer(self, verdict: Verdict, revision: int) -> bool:
        """Whether an answer to this revision still counts: evidence alone asks nothing new."""
        return self._asked.get(verdict.id, verdict.revision) <= revision <= verdict.revision

    def advise(self, key: Key, advice: Advice, *why: Evidence) -> list[Verdict]:
        """Change the advice of an open verdict; one that is the same already has no effect."""
        known = self._open.get(key)
        if known is None or known.remedy == advice.remedy:
            return []
        return self._revise(
            key,
            remedy=advice.remedy,
            confidence=advice.confidence,
            evidence=self._with(known.evidence, *why),
        )

    def amend(self, key: Key, *why: Evidence, **changes: Any) -> list[Verdict]:
        """Add to a verdict what was learned since; nothing if it is not known.

        One that was closed lately stays closed. Other advice asks for another answer.
        """
        known = self._open.get(key) or self._closed.get(key)
        if known is None:
            return []
        if key in self._open and changes.get("action", known.action) != known.action:
            changes["taken"], self._asked[known.id] = "", known.revision + 1
        changes["evidence"] = self._with(known.evidence, *why)
        return self._revise(key, **changes)

    def revise(
        self, key: Key, new: tuple[Evidence, ...], kept: tuple[Evidence, ...], **changes: Any
    ) -> list[Verdict]:
        """Change an open verdict, whose evidence becomes ``new`` facts and those ``kept`` of it."""
        evidence = (*_dated(new, self._clock_s()), *kept)
        return self._revise(key, evidence=evidence, **changes)

    def note_taken(self, key: Key, taken: str) -> list[Verdict]:
        """Record in an open verdict what was done about it."""
        return self._revise(key, taken=taken)

    def repeat(self, key: Key, why: Evidence) -> list[Verdict]:
        """Repeat an open verdict, unanswered as if it were new.

        ``why`` replaces earlier such reasons.
        """
        known = self._open[key]
        self._asked[known.id] = known.revision + 1
        rows = tuple(row for row in known.evidence if row.name != why.name)
        return self._revise(key, taken="", evidence=self._with(rows, why))

    def close(self, key: Key, why: Evidence) -> list[Verdict]:
        """Close an episode, if it is open, with the reason as its last evidence."""
        known = self._pop(key)
        if known is None:
            return []
        self._closed[key] = closing(known, why, self._clock_s())
        while len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]
        return [self._closed[key]]

    def close_part(self, verdict: Verdict, head: Verdict) -> Verdict:
        """What is reported of an open verdict that turns out to be a part of another one."""
        why = fact("beat", "part_of", f"{head.id} ({head.kind})")
        return closing(verdict, why, self._clock_s())

    def _revise(self, key: Key, **changes: Any) -> list[Verdict]:
        is_open = key in self._open
        known = self._open[key] if is_open else self._closed[key]
        revised = msgspec.structs.replace(  # type: ignore[type-var]
            known, revision=known.revision + 1, unix_s=self._clock_s(), **changes
        )
        if is_open:
            self._keys_of_rank[known.rank].discard(key)  # its rank may be known better now
            self._put(key, revised)
        else:
            self._closed[key] = revised
        return [revised]

    def _with(self, rows: tuple[Evidence, ...], *why: Evidence) -> tuple[Evidence, ...]:
        return (*rows, *_dated(why, self._clock_s()))

    def _put(self, key: Key, verdict: Verdict) -> None:
        self._open[key] = verdict
        self._closed.pop(key, None)
        self._keys_of_id[verdict.id] = key
        self._keys_of_rank.setdefault(verdict.rank, set()).add(key)

    def _pop(self, key: Key) -> Verdict | None:
        verdict = self._open.pop(key, None)
        if verdict is not None:
            self._keys_of_rank[verdict.rank].discard(key)
            self._keys_of_id.pop(verdict.id, None)
            self._asked.pop(verdict.id, None)
        return verdict


def fact(source: EvidenceSource, name: str, value: str, ago_s: float = 0.0) -> Evidence:
    """One observed fact; it is dated when it is reported, ``ago_s`` before that."""
    return Evidence(source=source, name=name, value=value, unix_s=-ago_s)


def closing(verdict: Verdict, why: Evidence, now_s: float) -> Verdict:
    """The last revision of an episode, with the reason as its last evidence."""
    rows = (*verdict.evidence, *_dated((why,), now_s))
    return msgspec.structs.replace(  # type: ignore[type-var]
        verdict, revision=verdict.revision + 1, is_open=False, evidence=rows, unix_s=now_s
    )


def _dated(rows: Iterable[Evidence], now_s: float) -> tuple[Evidence, ...]:
    return tuple(
        msgspec.structs.replace(row, unix_s=now_s + row.unix_s)  # type: ignore[type-var]
        for row in rows
    )


def _stem_of(key: Key) -> str:
    return ":".join(map(str, key))


def _key_of(stem: str) -> Key:
    return tuple(int(part) if part.lstrip("-").isdigit() else part for part in stem.split(":"))
