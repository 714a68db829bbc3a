"""Detects ranks that have ended and were replaced at once, by what their executors have noted.

An end that the run wanted, or with exit code 0, is not a problem. The verdict asks for nothing: the
driver has learned of the end before, and its answer is that this generation is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from headway.common.node.worker_ends import MAX_KEPT
from headway.common.wire.messages.health import (
    AgentBeat,
    EndKind,
    Evidence,
    Verdict,
    VerdictKind,
    WorkerEnd,
    WorkerSignals,
)
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.detectors.process import describe_action, process_key
from headway.health.policy import RAISED

SEEN_S: Final = 0.1
"""Executors look at their processes 20 times a second."""
MAX_TAKEN: Final = 4 * MAX_KEPT
"""Ends that are remembered of a node; its executor keeps a quarter of it."""
ALIVE: Final = "alive"
"""The state of a process that has raised an error and joins the next generation."""
_WHY: Final = {
    "killed": "killed by a signal",
    "out_of_memory": "killed by the kernel: out of memory",
    "stopped": "by a signal; its executor then killed it because it blocked all other ranks",
}
_SENDER: Final = {
    "killed": "not Headway and not the OOM killer of its control group: a user or program on this "
    "node (same user or root), or the process itself (a native crash)",
    "stopped": "a user or program on this node (same user or root); Headway never sends SIGSTOP",
}
"""Possible senders of the signal, by how the process ended."""
Identity = tuple[int, int, int, EndKind]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended without being asked to."""

    key: Key
    end: WorkerEnd
    worker: WorkerSignals
    """The process as it was last seen, with what its executor knows of its end."""


class WorkerEnds:
    """Takes each end once, however often beats repeat it."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._taken: dict[int, deque[Identity]] = {}
        """By node, the newest ends: a beat may lack one that the next one has again."""
        self._restored: set[tuple[str, int]] = set()
        """Problem and generation of what an earlier monitor has reported."""

    def restore(self, verdicts: Iterable[Verdict]) -> None:
        """Adopt what an earlier monitor of the run has reported, open or not."""
        self._restored = {
            (one.id.rpartition("#")[0], one.generation) for one in verdicts if one.pid
        }

    def take(self, beat: AgentBeat, before: AgentBeat | None) -> list[Ended]:
        """The ends in a beat that are new and that nobody asked for."""
        known = self._taken.setdefault(beat.node, deque(maxlen=MAX_TAKEN))
        fresh = [end for end in beat.ends if _identity(end) not in known]
        if not fresh:
            return []
        known.extend(map(_identity, fresh))
        seen = [*(before.workers if before is not None else ()), *beat.workers]
        last = {(one.pid, one.start_ticks): one for one in seen}
        found = [_ended(beat.node, end, last.get((end.pid, end.start_ticks))) for end in fresh]
        return [one for one in found if self._is_problem(one)]

    def report(self, node: int, ended: Ended) -> list[Verdict]:
        """Open the verdict, or add to one that a beat has opened already."""
        end, worker = ended.end, ended.worker
        rows = _rows(ended)
        known = self._episodes.get(ended.key)
        kind: VerdictKind = "stopped" if end.how == "stopped" else "crash"
        if known is not None and known.kind == kind:
            names = {row.name for row in known.evidence}
            return self._episodes.amend(ended.key, *(row for row in rows if row.name not in names))
        return self._episodes.report(
            ended.key,
            kind,
            rows,
            advice=RAISED if end.how == "raised" else None,
            node=node,
            rank=worker.rank,
            pid=worker.pid,
            generation=worker.generation,
            since=Since(end.age_s, SEEN_S),
        )

    def _is_problem(self, ended: Ended) -> bool:
        end = ended.end
        if end.how == "ordered" or end.exit_code == 0:
            return False
        return (":".join(map(str, ended.key)), end.generation) not in self._restored


def explained(beat: AgentBeat) -> frozenset[tuple[int, int]]:
    """The processes whose end is in a beat, of which their last state shows nothing more."""
    return frozenset((end.pid, end.start_ticks) for end in beat.ends if end.how != "raised")


def _identity(end: WorkerEnd) -> Identity:
    return end.pid, end.start_ticks, end.generation, end.how


def _ended(node: int, end: WorkerEnd, seen: WorkerSignals | None) -> Ended:
    plain = seen or WorkerSignals(
        rank=end.rank, pid=end.pid, start_ticks=end.start_ticks, state="", generation=-1,
        head=0, step=-1, step_s=0.0, num_steps=0, median_step_s=0.0, age_s=0.0,
    )  # fmt: skip
    worker: WorkerSignals = msgspec.structs.replace(  # type: ignore[type-var]
        plain,
        rank=end.rank,
        state=ALIVE if end.how == "raised" else "X",
        generation=end.generation,
        exit_code=1 if end.how == "raised" else end.exit_code,
        reason=end.reason,
    )
    return Ended(process_key(node, worker), end, worker)


def _rows(ended: Ended) -> tuple[Evidence, ...]:
    end, ago_s = ended.end, ended.end.age_s
    rows = [fact("proc", "state", ended.worker.state, ago_s)]
    if why := _WHY.get(end.how):
        rows.append(fact("proc", "why", why, ago_s))
    if sender := _SENDER.get(end.how):
        rows.append(fact("proc", "sender", sender, ago_s))
    if end.exit_code is not None:
        rows.append(fact("proc", "exit_code", str(end.exit_code), ago_s))
    if end.how in ("exited", "raised"):
        rows.append(fact("proc", "last_words", end.reason, ago_s))
    else:
        rows.append(fact("proc", "last_words", "none: the process left no message", ago_s))
    if ended.worker.head:
        rows.append(fact("flight", "last_action", describe_action(ended.worker), ago_s))
    return tuple(rows)
