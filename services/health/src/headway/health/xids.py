"""The catalogue of the GPU driver's Xid numbers: one rule for each, from one table."""

from __future__ import annotations

import msgspec
from headway.health.rulebook import Repeat, Rule, Severity


class _XidAdvice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    confidence: float
    severity: Severity
    remedy: str
    times: int = 1
    within_s: float = 0.0
    repeat: Repeat | None = None
    symptom: bool = False


class _Xid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    advice: str
    detail: str = ""
    unless: str = ""


class _XidFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    advice: dict[str, _XidAdvice]
    xid: dict[str, _Xid]


def xid_rules(text: str) -> list[Rule]:
    """A rule for each number of the catalogue, and one for the numbers that it lacks."""
    file = msgspec.toml.decode(text, type=_XidFile)
    rules = [
        _xid_rule(f"xid_{number}", number, one.title, file.advice[one.advice], one)
        for number, one in file.xid.items()
    ]
    unknown = _Xid(title="not in the catalogue", advice="nobody")
    advice = msgspec.structs.replace(
        file.advice["nobody"],
        remedy="look it up in NVIDIA's Xid catalogue; by itself it calls for nothing",
        severity="warning",
        times=1,
    )
    known = "|".join(file.xid)
    return [*rules, _xid_rule("xid", rf"(?!(?:{known})\b)\d+", unknown.title, advice, unknown)]


def _xid_rule(name: str, number: str, title: str, advice: _XidAdvice, xid: _Xid) -> Rule:
    skipped = rf"(?!.*{xid.unless})" if xid.unless else ""
    detail = rf"(?:.*?{xid.detail})?" if xid.detail else ""
    label = f"Xid {number}" if number.isdigit() else "an Xid"
    sample = number if number.isdigit() else "987"
    return Rule(
        name=name,
        source="kernel",
        kind="gpu_fault",
        subject="gpu",
        remedy=f"{label} ({title}): {advice.remedy}",
        confidence=advice.confidence,
        severity=advice.severity,
        contains=("nvrm: xid",),
        pattern=rf"NVRM: Xid \(%PCI%\): {number}\b{skipped}{detail}",
        times=advice.times,
        within_s=advice.within_s,
        repeat=advice.repeat,
        symptom=advice.symptom,
        bad=(f"NVRM: Xid (PCI:0000:3b:00): {sample}, pid=4711, name=python3, Ch 00000008",),
        good=("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",),
    )
