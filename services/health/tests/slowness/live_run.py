"""A run whose summaries are judged while it trains, two ranks on a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Verdict
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.config import HealthConfig
from headway.health.slowness.live import LiveSlowness
from headway.health.slowness.steps import TIMES
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID

from services.health.tests.slowness.played_steps import PlayedSteps

RANKS_PER_NODE = 2


def messages(steps: PlayedSteps, generation: int, offset: int) -> Iterator[list[StepSummary]]:
    """Of each step a message per node; ``offset`` steps were made before."""
    rows = steps.rows()
    groups: list[list[GroupSum]] = [[] for _ in rows.rank]
    for owner, line, wait_us in zip(rows.owner, rows.line, rows.wait_us, strict=True):
        groups[owner].append(GroupSum(int(line), 0, 1, int(wait_us), 0, 0, 0))
    sums = [
        StepSum(
            int(rows.rank[at]), generation, int(rows.step[at]) + offset, 1, 0,
            *(int(rows.times[name][at]) for name in TIMES), tuple(groups[at]),
            int(rows.times["num_passes"][at]),
        )
        for at in range(len(rows.rank))
    ]  # fmt: skip
    size = steps.grid.world_size
    for number in range(steps.num_steps):
        of_step = sums[number * size : (number + 1) * size]
        yield [
            StepSummary(
                run_id=RUN_ID, node=first // RANKS_PER_NODE, pid=1, boot_id="b",
                sequence=number + 1, num_dropped=0, steps=tuple(of_step[first:][:RANKS_PER_NODE]),
            )
            for first in range(0, size, RANKS_PER_NODE)
        ]  # fmt: skip


@dataclass
class LiveRun:
    """Steps of ``step_s``, of which every fourth is judged when its summaries have arrived."""

    grid: Grid | None
    config: HealthConfig = field(default_factory=HealthConfig)
    reported: list[tuple[int, Verdict]] = field(default_factory=list)
    """Each verdict with the step after which it came, counted from the first that was played."""
    now_s: float = 0.0
    step: int = -1
    every: int = 4
    """Steps from one judgement to the next."""
    step_s: float = 1.0
    lost: set[int] = field(default_factory=set)
    """Nodes whose summaries do not arrive."""

    def __post_init__(self) -> None:
        self.restart_monitor()

    def run(self, steps: PlayedSteps, generation: int = 0) -> LiveRun:
        """Train so many steps."""
        for arrived in messages(steps, generation, self.step + 1):
            self.now_s += self.step_s
            self.step += 1
            self.live.add([(one, self.now_s) for one in arrived if one.node not in self.lost])
            if self.step % self.every:
                continue
            if (judged := self.live.judge(self.now_s)) is not None:
                self.note(self.state.on_judged(judged, self.now_s))
        return self

    def restart_monitor(self) -> None:
        """Another one, which has read what was written."""
        self.live = LiveSlowness(self.grid, self.config)
        self.state = MonitorState(self.config, RUN_ID, clock_s=lambda: self.now_s)
        self.state.restore([verdict for _, verdict in self.reported])

    def note(self, verdicts: list[Verdict]) -> None:
        """Keep what was said."""
        self.reported += [(self.step, one) for one in verdicts]

    def said(self) -> list[tuple[int, int, str]]:
        """Step, rank and sentence of each verdict."""
        return [(step, one.rank, facts(one).get("finding", "")) for step, one in self.reported]


def facts(verdict: Verdict) -> dict[str, str]:
    """Its evidence by name, of several the last."""
    return {row.name: row.value for row in verdict.evidence}
