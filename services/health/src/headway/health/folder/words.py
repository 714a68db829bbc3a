"""A diagnosis as text for a person at night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headway.health.diagnosis.diagnosis import Diagnosis
from headway.health.folder.evidence import Evidence


def lines_of(found: Sequence[Diagnosis]) -> Iterator[str]:
    """The first cause at length, and what else was found in a line each."""
    first, *rest = found
    since = ""
    if first.since is not None:
        since = f" (since {datetime.fromtimestamp(first.since, UTC):%Y-%m-%d %H:%M:%S} UTC)"
    yield first.summary + since
    if first.culprits:
        yield f"who    {', '.join(map(str, first.culprits[:8]))}"
    if first.where:
        yield f"where  {first.where}"
    for place, reason in enumerate(first.why):
        yield f"{'why' if not place else '':6} {reason}"
    if first.kind != "none":
        yield f"sure   {first.confidence:.2f}" + "".join(
            f"; or {what} ({chance:.2f})" for what, chance in first.alternatives
        )
        yield f"do     {first.do}"
    for one in rest[:5]:
        yield f"also   {one.summary} ({one.confidence:.2f})"
    if len(rest) > 5:
        yield f"also   {len(rest) - 5} more, see --json"


def reading_of(evidence: Evidence) -> Iterator[str]:
    """What was read of a folder, and what was not and why."""
    kinds = Counter(evidence.read.values())
    yield "read   " + (", ".join(f"{n} x {what}" for what, n in kinds.most_common()) or "nothing")
    for file, why in list(evidence.unread.items())[:5]:
        yield f"left   {file}: {why}"
    if len(evidence.unread) > 5:
        yield f"left   {len(evidence.unread) - 5} more files, see --json"
