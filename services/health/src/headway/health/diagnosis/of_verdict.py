"""A verdict on a run as a diagnosis."""

from __future__ import annotations

import msgspec
from headway.common.wire.messages.health import Verdict, VerdictKind
from headway.health.diagnosis.diagnosis import Diagnosis, Kind, Observation, Subject

_HANGS: frozenset[VerdictKind] = frozenset(
    {"silence", "stopped", "unexplained_hang", "data_stall", "fabric_cut", "fabric_split"}
)
_WHAT: dict[VerdictKind, str] = {
    "silence": "holds up the run", "stopped": "was stopped", "crash": "has ended",
    "unexplained_hang": "no rank makes progress, and no single cause is certain",
    "data_stall": "gets no data", "node_silent": "does not report", "slow_rank": "is slow",
    "link_flapping": "repeatedly loses its link",
    "fabric_cut": "cannot reach any other node",
    "fabric_split": "some nodes cannot reach each other",
}  # fmt: skip
"""The predicate of each kind; other kinds use their name."""
_SAID: frozenset[VerdictKind] = frozenset(
    {
        "slow_rank",
        "not_finite",
        "silent_corruption",
        "common_fault",
        "peer_lost",
        "collective_timeout",
    }
)
"""Kinds that come with a sentence of their own."""
_OF_EVERY_LINE = frozenset({"timestamp", "level", "service", "run_id", "node", "rank"})
_ELSEWHERE = frozenset({"line", "finding", "why", "where", "ranks_waiting", "since_step", "who"})
"""Facts that are in the summary or in the place."""


def diagnosis_of(verdict: Verdict) -> Diagnosis:
    """The facts of a verdict, in the words of a diagnosis."""
    facts = {one.name: _plain(one.value) for one in verdict.evidence}
    subject = subject_of(verdict)
    return Diagnosis(
        _kind(verdict),
        verdict.cause,
        _summary(verdict, subject, facts),
        culprits=_culprits(verdict, subject, facts),
        where=_where(facts),
        why=tuple(
            f"{one.name.replace('_', ' ')}: {_plain(one.value)}"
            for one in verdict.evidence
            if one.name not in _ELSEWHERE
        ),
        do=verdict.remedy,
        confidence=verdict.confidence,
        alternatives=verdict.alternatives,
        done=verdict.taken,
        since=verdict.since_unix_s or None,
        since_error_s=verdict.since_error_s,
        since_step=int(facts["since_step"]) if "since_step" in facts else None,
        evidence=tuple(
            Observation(one.source, f"{one.name}: {one.value}", one.unix_s or None)
            for one in verdict.evidence
        ),
    )


def _plain(value: str) -> str:
    """A line of Headway's own logs in words instead of JSON; anything else as it is."""
    if not value.startswith('{"'):
        return value
    try:
        fields = msgspec.json.decode(value, type=dict[str, object])
    except msgspec.DecodeError:  # the line was cut
        return value
    event = fields.pop("event", None)
    said = ", ".join(f"{name} {one}" for name, one in fields.items() if name not in _OF_EVERY_LINE)
    return f"{event} ({said})" if event and said else str(event or value)


def _culprits(verdict: Verdict, subject: Subject, facts: dict[str, str]) -> tuple[Subject, ...]:
    """What the verdict is about; each of several ranks."""
    if verdict.rank < 0 and (who := facts.get("who", "")):
        return tuple(Subject(int(rank), subject.node) for rank in who.split(", "))
    return (subject,) if str(subject) else ()


def subject_of(verdict: Verdict) -> Subject:
    """What a verdict is about."""
    return Subject(
        verdict.rank,
        f"node {verdict.node}" if verdict.node >= 0 else "",
        gpu=verdict.name if verdict.subject == "gpu" else "",
        link=verdict.name if verdict.subject == "nic" else "",
    )


def _summary(verdict: Verdict, subject: Subject, facts: dict[str, str]) -> str:
    if verdict.kind in _SAID and (sentence := facts.get("finding", "")):
        return sentence
    who, finding = str(subject), facts.get("line") or facts.get("finding", "")
    what = _WHAT.get(verdict.kind, "")
    if verdict.kind == "crash" and facts.get("state") == "alive":
        what = "has raised an error"
    if what:
        said = f"{who} {what}" if who else what
        return f"{said}: {facts['why']}" if facts.get("why") else said
    said = verdict.kind.replace("_", " ") + (f" on {who}" if who else "")
    return f"{said}: {finding[:160]}" if finding else said


def _where(facts: dict[str, str]) -> str:
    """In the code, or in which part; and how many ranks wait for it."""
    file = facts.get("at", "").rsplit(":", 2)[0]
    place = facts.get("where") or facts.get("hardware") or file
    waiting = facts.get("ranks_waiting", "0")
    if waiting == "0":
        return place
    wait = "1 rank waits" if waiting == "1" else f"{waiting} ranks wait"
    return f"{place}; {wait} for it" if place else f"{wait} for it"


def _kind(verdict: Verdict) -> Kind:
    if verdict.kind == "slow_rank":
        return "slow"
    return "hang" if verdict.kind in _HANGS else "fault"
