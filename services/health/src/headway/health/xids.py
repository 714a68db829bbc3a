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
    nonfatal: str = ""
    """The advice for lines of this number that say "Nonfatal"; empty if none do."""


class _XidFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    advice: dict[str, _XidAdvice]
    xid: dict[str, _Xid]


def xid_rules(text: str) -> list[Rule]:
    """A rule for each number of the catalogue, and one for the numbers that it lacks."""
    file = msgspec.toml.decode(text, type=_XidFile)
    rules: list[Rule] = []
    for number, one in file.xid.items():
        if one.nonfatal:
            rules.append(_nonfatal_rule(number, one, file.advice[one.nonfatal]))
        rules.append(_xid_rule(f"xid_{number}", number, one.title, file.advice[one.advice], one))
    unknown = _Xid(title="not in the catalogue", advice="nobody")
    advice = msgspec.structs.replace(
        file.advice["nobody"],
        remedy="look it up in NVIDIA's Xid catalogue; no action is needed for it alone",
        severity="warning",
        times=1,
    )
    known = "|".join(file.xid)
    return [*rules, _xid_rule("xid", rf"(?!(?:{known})\b)\d+", unknown.title, advice, unknown)]


def _xid_rule(name: str, number: str, title: str, advice: _XidAdvice, xid: _Xid) -> Rule:
    skipped = rf"(?!.{{0,300}}?{xid.unless})" if xid.unless else ""
    detail = rf"(?:.{{0,300}}?{xid.detail})?" if xid.detail else ""
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


def _nonfatal_rule(number: str, xid: _Xid, advice: _XidAdvice) -> Rule:
    """The rule for the lines of a number that say "Nonfatal"; it stands before the number's own."""
    rule = _xid_rule(f"xid_{number}_nonfatal", number, f"{xid.title}, not fatal", advice, xid)
    event = "pid='<unknown>', name=<unknown>, LINK_EVT Nonfatal XC0 i0 Link 07 (0x00000001)"
    return msgspec.structs.replace(
        rule,
        pattern=rf"NVRM: Xid \(%PCI%\): {number}\b.{{0,200}}?\bNonfatal\b",
        bad=(f"NVRM: Xid (PCI:0000:3b:00): {number}, {event}",),
    )
