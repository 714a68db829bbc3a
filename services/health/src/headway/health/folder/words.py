"""What was read of a folder, as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headway.health.folder.evidence import Evidence


def reading_of(evidence: Evidence) -> Iterator[str]:
    """What was read of a folder, and what was not and why."""
    kinds = Counter(evidence.read.values())
    yield "read   " + (", ".join(f"{n} x {what}" for what, n in kinds.most_common()) or "nothing")
    for file, why in list(evidence.unread.items())[:5]:
        yield f"left   {file}: {why}"
    if len(evidence.unread) > 5:
        yield f"left   {len(evidence.unread) - 5} more files, see --json"
