"""One verdict per problem: opens an episode once, revises it, and closes it when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from headway.common.wire.messages.health import Evidence, EvidenceSource, Verdict, VerdictKind
from headway.health.policy import ADVICE, Advice

Key = tuple[str | int, ...]


class Episodes:
    """The open verdicts by the key of their problem. Every change is returned as a new revision."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._open: dict[Key, Verdict] = {}
        self._numbers: dict[str, int] = {}
        """Episodes so far, by the part of the id before the number."""
        self._keys_of_rank: dict[int, set[Key]] = {}
        self._keys_of_id: dict[str, Key] = {}

    def restore(self, verdicts: Iterable[Verdict]) -> None:
        """Adopt what an earlier monitor of the run wrote, oldest first."""
        for verdict in verdicts:
            stem, _, number = verdict.id.rpartition("#")
            self._numbers[stem] = max(self._numbers.get(stem, 0), int(number))
            if verdict.is_open:
                self._put(_key_of(stem), verdict)
            else:
                self._pop(_key_of(stem))

    def get(self, key: Key) -> Verdict | None:
        """The open verdict of a problem."""
        return self._open.get(key)

    def key_of(self, verdict_id: str) -> Key | None:
        """The problem of an open verdict, None if no such verdict is open."""
        return self._keys_of_id.get(verdict_id)

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
        node: int,
        rank: int = -1,
        pid: int = 0,
        generation: int = -1,
        service: str = "",
        silence_s: float = 0.0,
    ) -> list[Verdict]:
        """Open an episode, or revise it if its ``kind`` has changed.

        The same kind again has no effect.

        A revision counts as unanswered, whatever was done about the earlier kind. Without an
        ``advice`` it is that of the kind.
        """
        advice = advice or ADVICE[kind]
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
            is_open=True,
            run_id=self._run_id,
            node=node,
            rank=rank,
            pid=pid,
            generation=generation,
            confidence=advice.confidence,
            action=advice.action,
            service=service,
            remedy=advice.remedy,
            evidence=(*(known.evidence if known else ()), *evidence),
            silence_s=silence_s,
        )
        self._put(key, verdict)
        return [verdict]

    def advise(self, key: Key, advice: Advice, why: Evidence) -> list[Verdict]:
        """Change the advice of an open verdict; one that is the same already has no effect."""
        known = self._open.get(key)
        if known is None or known.remedy == advice.remedy:
            return []
        return self._revise(
            key,
            remedy=advice.remedy,
            confidence=advice.confidence,
            evidence=(*known.evidence, why),
        )

    def note_taken(self, key: Key, taken: str) -> list[Verdict]:
        """Record in an open verdict what was done about it."""
        return self._revise(key, taken=taken)

    def repeat(self, key: Key, why: Evidence) -> list[Verdict]:
        """Repeat an open verdict, unanswered as if it were new.

        ``why`` replaces earlier such reasons.
        """
        known = self._open[key]
        rows = (*(row for row in known.evidence if row.name != why.name), why)
        return self._revise(key, taken="", evidence=rows)

    def close(self, key: Key, why: Evidence) -> list[Verdict]:
        """Close an episode, if it is open, with the reason as its last evidence."""
        known = self._pop(key)
        return [] if known is None else [closing(known, why)]

    def _revise(self, key: Key, **changes: Any) -> list[Verdict]:
        known = self._open[key]
        self._open[key] = msgspec.structs.replace(  # type: ignore[type-var]
            known, revision=known.revision + 1, **changes
        )
        return [self._open[key]]

    def _put(self, key: Key, verdict: Verdict) -> None:
        self._open[key] = verdict
        self._keys_of_id[verdict.id] = key
        self._keys_of_rank.setdefault(verdict.rank, set()).add(key)

    def _pop(self, key: Key) -> Verdict | None:
        verdict = self._open.pop(key, None)
        if verdict is not None:
            self._keys_of_rank[verdict.rank].discard(key)
            self._keys_of_id.pop(verdict.id, None)
        return verdict


def fact(source: EvidenceSource, name: str, value: str) -> Evidence:
    """One observed fact."""
    return Evidence(source=source, name=name, value=value)


def closing(verdict: Verdict, why: Evidence) -> Verdict:
    """The last revision of an episode, with the reason as its last evidence."""
    rows = (*verdict.evidence, why)
    return msgspec.structs.replace(  # type: ignore[type-var]
        verdict, revision=verdict.revision + 1, is_open=False, evidence=rows
    )


def _stem_of(key: Key) -> str:
    return ":".join(map(str, key))


def _key_of(stem: str) -> Key:
    return tuple(int(part) if part.lstrip("-").isdigit() else part for part in stem.split(":"))
