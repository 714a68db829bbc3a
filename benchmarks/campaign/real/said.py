"""What a run's verdicts say since an injection, when each was first seen, and whom it accuses."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Literal

from headway.common.wire.messages.health import Verdict
from headway.console.run import Run
from headway.health.journal import newest_revisions, read_verdicts
from headway.testkit.journal import query

from benchmarks.campaign.real.kinds import Injection, agrees, is_accusing


class Said:
    """Reads ``verdicts.jsonl`` repeatedly. Times are of reading, by the monotonic clock: the run's
    own wall clock may have been changed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}
        """When each revision was first seen, and the newest step then."""
        self._begun_s, self._begun_step = 0.0, 0

    def begin(self) -> None:
        """What is known now is about something else."""
        for known in read_verdicts(self._run.folder.verdicts):
            self._seen[known.id, known.revision] = (0.0, 0)
        self._begun_s, self._begun_step = time.monotonic(), self.step()

    def step(self) -> int:
        """The newest step that has metrics."""
        return int(query(self._run, "SELECT MAX(step) FROM metrics")[0][0] or 0)

    @property
    def num_steps(self) -> int:
        """Since the beginning."""
        return self.step() - self._begun_step

    def open(self) -> list[str]:
        """Ids of the verdicts that are not over."""
        newest = newest_revisions(read_verdicts(self._run.folder.verdicts))
        return [one.id for one in newest if one.is_open]

    def accusing(self) -> list[Verdict]:
        """What verdicts accuse since the beginning, in order; a revision may name another rank."""
        now_s, found = time.monotonic(), dict[tuple[str, str, int], Verdict]()
        for verdict in read_verdicts(self._run.folder.verdicts):
            key = (verdict.id, verdict.revision)
            if key not in self._seen:
                self._seen[key] = (now_s, self.step())
            if self._seen[key][0] and is_accusing(verdict):
                found.setdefault((verdict.id, verdict.kind, verdict.rank), verdict)
        return list(found.values())

    def rows(
        self, one: Injection, ranks: Collection[int], node: int, struck_s: float
    ) -> list[dict[str, Any]]:
        """The same as plain data, next to what was injected into these ranks on this node."""
        found = [self._row(verdict, one, ranks, node, struck_s) for verdict in self.accusing()]
        return sorted(found, key=lambda row: float(row["after_s"]))

    def _row(
        self, verdict: Verdict, one: Injection, ranks: Collection[int], node: int, struck_s: float
    ) -> dict[str, Any]:
        seen_s, step = self._seen[verdict.id, verdict.revision]
        who = f"rank {verdict.rank}" if verdict.rank >= 0 else f"node {verdict.node}"
        who = who if max(verdict.rank, verdict.node) >= 0 else "the run"
        return {
            "text": f"{verdict.kind} of {who}",
            "kind": verdict.kind,
            "cause": verdict.cause,
            "subject": verdict.subject,
            "name": verdict.name,
            "confidence": verdict.confidence,
            "is_right": agrees(one, verdict, ranks, node),
            "accuses": accused(one, verdict, ranks, node),
            "after_s": round(seen_s - struck_s, 2),
            "steps": step - self._begun_step,
            "evidence": [f"{fact.name}: {fact.value}"[:300] for fact in verdict.evidence],
        }


def accused(
    one: Injection, verdict: Verdict, ranks: Collection[int], node: int
) -> Literal["target", "nobody", "innocent"]:
    """Whom a verdict is about, right or wrong."""
    if agrees(one, verdict, ranks, node):
        return "nobody" if one.names == "program" else "target"
    if verdict.rank < 0 and verdict.node < 0:
        return "nobody"
    if verdict.rank >= 0:
        return "target" if verdict.rank in ranks else "innocent"
    return "target" if verdict.node == node or one.names == "part" else "innocent"
