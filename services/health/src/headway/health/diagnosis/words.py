"""A diagnosis as text for the person on call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headway.health.diagnosis.diagnosis import Diagnosis
from headway.health.responses import OBSERVE

MAX_REASONS = 3
"""In the short form."""


def lines_of(found: Sequence[Diagnosis], now_s: float | None = None) -> Iterator[str]:
    """The first cause at length, and what else was found in a line each.

    ``now_s`` is the present time, for what lasts; None of a job that is over.
    """
    first, *rest = found
    yield first.summary + _since(first, now_s)
    if first.culprits:
        yield f"who    {', '.join(map(str, first.culprits[:8]))}"
    if first.where:
        yield f"where  {first.where}"
    for place, reason in enumerate(first.why):
        yield f"{'why' if not place else '':6} {reason}"
    if first.kind != "none":
        yield f"sure   {_sure(first)}"
        yield f"do     {first.do}"
    for one in rest[:5]:
        yield f"also   {one.summary} ({one.confidence:.2f})"
    if len(rest) > 5:
        yield f"also   {len(rest) - 5} more, see --json"


def short_lines(found: Diagnosis, now_s: float) -> Iterator[str]:
    """What is wrong now, in five lines at most: who, where, why, how sure, and what to do."""
    what, colon, detail = found.summary.partition(": ")
    yield what + _since(found, now_s) + colon + detail
    if found.where:
        yield f"where  {found.where}"
    if found.why:
        yield f"why    {'; '.join(found.why[:MAX_REASONS])}"
    yield f"sure   {_sure(found)}"
    yield f"do     {found.do}"


def _sure(found: Diagnosis) -> str:
    others = "".join(f"; or {what} ({chance:.2f})" for what, chance in found.alternatives)
    done = f"; done: {'nothing' if found.done == OBSERVE else found.done}" if found.done else ""
    return f"{found.confidence:.2f}{others}{done}"


def _since(found: Diagnosis, now_s: float | None) -> str:
    if found.since is None:
        return ""
    began = datetime.fromtimestamp(found.since, UTC)
    error = f" +- {found.since_error_s:.0f} s" if found.since_error_s >= 1 else ""
    if now_s is None:
        return f" (since {began:%Y-%m-%d %H:%M:%S} UTC{error})"
    return f" since {began:%H:%M:%S} UTC{error} ({_span(max(0.0, now_s - found.since))})"


def _span(seconds: float) -> str:
    """Such as ``41 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
