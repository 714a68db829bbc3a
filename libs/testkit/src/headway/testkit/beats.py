"""Simulated training runs as agents see them: timelines of actions, sampled into beats."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.common.plan.schedule.actions import RECEIVES, SENDS, Kind
from headway.common.wire.messages.health import (
    AgentBeat,
    Finding,
    RankPhase,
    WorkerEnd,
    WorkerSignals,
)
from headway.health.config import HealthConfig

RUN_ID = "0badcafe"
WINDOW_STEPS = HealthConfig().median_window_steps
_PHASES: Mapping[str, RankPhase] = {"JOIN": "join", "EVAL": "eval", "RESTORE": "restore"}
_WAITING = frozenset(
    kind.name for kind in (*SENDS, *RECEIVES, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.NORM)
)  # fmt: skip
_STEP_PARTS = (
    "DATA",
    "FORWARD",
    "RECV_BACKWARD",
    "BACKWARD",
    "REDUCE_SCATTER",
    "NORM",
    "OPTIMIZER",
)


@dataclass(slots=True)
class Timeline:
    """A rank's actions in order, each with begin, end and step; times in seconds."""

    rank: int
    actions: list[tuple[float, float, str, int]] = field(default_factory=list)
    steps: list[tuple[float, float, int]] = field(default_factory=list)
    """Begin, end and index of each finished step."""
    now_s: float = 0.0
    frozen_at_s: float = float("inf")
    """When its process stopped running, as in a frozen control group."""
    waits_at_s: float = float("inf")
    """When its main thread began to wait for others inside an action that computes."""

    def do(self, kind: str, duration_s: float, step: int = -1) -> None:
        """Append an action directly after the last one."""
        self.actions.append((self.now_s, self.now_s + duration_s, kind, step))
        self.now_s += duration_s

    def wait(self, duration_s: float) -> None:
        """Lets time pass between actions, as a paused run does."""
        self.now_s += duration_s

    def run_step(self, step: int, duration_s: float) -> None:
        """One training step in equal parts."""
        began_s = self.now_s
        for kind in _STEP_PARTS:
            self.do(kind, duration_s / len(_STEP_PARTS), step)
        self.steps.append((began_s, self.now_s, step))

    def hang(self, at_s: float, kind: str | None = None) -> None:
        """Never finish the action at ``at_s``; with ``kind``, the next such action after it."""
        for index, (begin_s, end_s, name, step) in enumerate(self.actions):
            if end_s > at_s and (kind is None or name == kind):
                self.actions[index:] = [(begin_s, float("inf"), name, step)]
                self.steps = [one for one in self.steps if one[1] <= begin_s]
                return
        raise ValueError(f"nothing is done at {at_s} s")

    def freeze(self, at_s: float, kind: str) -> None:
        """Its process does not run any more from the next such action on."""
        self.hang(at_s, kind)
        self.frozen_at_s = self.actions[-1][0]

    def wait_inside(self, at_s: float, kind: str) -> None:
        """Never finish the next such action after ``at_s``, since a collective in it waits."""
        self.hang(at_s, kind)
        self.waits_at_s = self.actions[-1][0]

    def sample(self, now_s: float, generation: int = 0) -> WorkerSignals:
        """The worker as an agent's flight source would show it at ``now_s``."""
        head = bisect.bisect_right(self.actions, now_s, key=lambda action: action[0])
        finished = bisect.bisect_right(self.steps, now_s, key=lambda one: one[1])
        began_s, ended_s, kind, _ = self.actions[head - 1] if head else (0.0, 0.0, "", -1)
        is_open = head > 0 and ended_s > now_s
        step = self.steps[finished - 1] if finished else (0.0, 0.0, -1)
        durations_s = [
            ended - began
            for began, ended, _ in self.steps[max(0, finished - WINDOW_STEPS) : finished]
        ]
        return WorkerSignals(
            rank=self.rank,
            pid=1000 + self.rank,
            start_ticks=1,
            state="S",
            generation=generation,
            head=head,
            step=step[2],
            step_s=step[1] - step[0],
            num_steps=finished,
            median_step_s=statistics.median(durations_s) if durations_s else 0.0,
            age_s=now_s - (began_s if is_open else ended_s),
            alive_age_s=max(0.2, now_s - self.frozen_at_s),
            open_kind=kind if is_open else "",
            waits="others" if is_open and (kind in _WAITING or now_s >= self.waits_at_s) else "",
            phase=_PHASES.get(kind, "step") if is_open else "step",
        )


def lockstep(
    num_ranks: int,
    num_steps: int,
    step_s: Callable[[int], float],
    *,
    first_s: float = 0.0,
    pauses: Mapping[int, float] | None = None,
    evaluations: Mapping[int, float] | None = None,
) -> list[Timeline]:
    """Ranks in step with each other.

    Args:
        step_s: step index -> its duration.
        first_s: what joining and compiling take before step 0, all in one action without progress.
        pauses: step index -> seconds that the run is held before it.
        evaluations: step index -> seconds of one long evaluation action before it.
    """
    timelines = [Timeline(rank) for rank in range(num_ranks)]
    for timeline in timelines:
        if first_s:
            timeline.do("JOIN", first_s / 2)
            timeline.do("FORWARD", first_s / 2, 0)
        for step in range(num_steps):
            timeline.wait((pauses or {}).get(step, 0.0))
            if evaluations and step in evaluations:
                timeline.do("EVAL", evaluations[step])
            timeline.run_step(step, step_s(step))
    return timelines


def stall_others(
    timelines: list[Timeline], culprit: int, at_s: float, waiting: str = "NORM"
) -> None:
    """Hang ``culprit`` in its next forward pass after ``at_s``.

    All others hang in the next collective.
    """
    timelines[culprit].hang(at_s, "FORWARD")
    stuck_s = timelines[culprit].actions[-1][0]
    for timeline in timelines:
        if timeline.rank != culprit:
            timeline.hang(stuck_s, waiting)


@dataclass(slots=True)
class SimulatedNode:
    """Makes an agent's beats from the timelines of its ranks."""

    node: int
    timelines: list[Timeline]
    generation: int = 0
    sequence: int = 0
    states: dict[int, str] = field(default_factory=dict)
    """Rank -> process state, where it is not just sleeping."""
    signals: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank -> further fields of its ``WorkerSignals`` that differ from the timeline's."""
    ends: tuple[WorkerEnd, ...] = ()
    """What its executor has noted of ended ranks."""

    def beat(self, now_s: float, findings: tuple[Finding, ...] = ()) -> AgentBeat:
        """The next beat."""
        self.sequence += 1
        workers = []
        for timeline in self.timelines:
            signals = timeline.sample(now_s, self.generation)
            if timeline.rank in self.states:
                signals = _changed(signals, state=self.states[timeline.rank])
            workers.append(_changed(signals, **self.signals.get(timeline.rank, {})))
        return AgentBeat(
            run_id=RUN_ID,
            node=self.node,
            pid=100 + self.node,
            start_ticks=1,
            sequence=self.sequence,
            workers=tuple(workers),
            findings=findings,
            ends=self.ends,
        )


def beat_times(until_s: float, interval_s: float = 0.5, start_s: float = 0.0) -> Iterator[float]:
    """Instants of beats, without accumulating rounding errors."""
    for index in range(round((until_s - start_s) / interval_s)):
        yield start_s + (index + 1) * interval_s


def _changed(signals: WorkerSignals, **changes: Any) -> WorkerSignals:
    fields = {name: getattr(signals, name) for name in signals.__struct_fields__}
    return WorkerSignals(**{**fields, **changes})
