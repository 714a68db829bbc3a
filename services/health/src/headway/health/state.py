"""What do the beats of a run's agents mean? Decisions only: no socket, no clock, no file.

``MonitorState`` takes events with their time and returns the verdicts that are new or revised. One instance
holds 12,288 nodes: a beat costs the work of its own node, a tick looks only at nodes and at ranks that are
quiet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway.common.wire.messages.health import AgentBeat, Evidence, Verdict, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes
from headway.health.detectors.logs import LogEpisodes
from headway.health.detectors.process import (
    ENDED,
    PROCESS_KINDS,
    close_replaced,
    judge_process,
    process_key,
)
from headway.health.detectors.silence import RankView, evidence_of, find_culprit, observe
from headway.health.policy import PROCESS_ADVICE, WAITING_CONFIDENCE

LATE_BEATS: Final = 3
"""A node unheard for so many beats may be the reason why other nodes' ranks wait: judge nobody before it is
known."""


@dataclass(slots=True)
class NodeView:
    """The newest beat of one node and when it came, on the state's own clock."""

    beat: AgentBeat
    heard_s: float


class MonitorState:
    """Beats in, verdicts out.

    Its clock runs at most one beat interval further per event or tick than the time given moves: when the
    monitor itself was stopped or starved, all its nodes look late at once, and that time is not held against
    them.
    """

    def __init__(self, config: HealthConfig, run_id: str) -> None:
        self.config = config
        self.run_id = run_id
        self.generation = -1
        """The newest generation any rank has reported; older ones are history."""
        self.nodes: dict[int, NodeView] = {}
        self.ranks: dict[int, RankView] = {}
        self._episodes = Episodes(run_id)
        self._logs = LogEpisodes(self._episodes, config.log_quiet_s)
        self._quiet: set[int] = set()
        """Ranks silent beyond their limit in enough beats."""
        self._clock_s = 0.0
        self._last_now_s: float | None = None

    def restore(self, verdicts: list[Verdict]) -> None:
        """Goes on where an earlier monitor of the run stopped: what it has told is not told again."""
        self._episodes.restore(verdicts)
        self._logs.restore(verdicts, self._clock_s)

    def open_verdicts(self) -> list[Verdict]:
        """The verdicts that stand now."""
        return self._episodes.verdicts()

    def on_beat(self, beat: AgentBeat, now_s: float) -> list[Verdict]:
        """One agent's beat. A beat of another run is dropped; so is one that was overtaken by its
        successor."""
        clock_s = self._advance(now_s)
        known = self.nodes.get(beat.node)
        if beat.run_id != self.run_id or (known is not None and _is_older(beat, known.beat)):
            return []
        self.nodes[beat.node] = NodeView(beat, clock_s)
        verdicts = self._episodes.close(
            ("node", beat.node),
            Evidence(source="beat", name="heard_again", value=f"sequence {beat.sequence}"),
        )
        alive = _alive_processes(known.beat) if known is not None else frozenset()
        for worker in beat.workers:
            verdicts += self._on_worker(
                beat.node, worker, (worker.pid, worker.start_ticks) in alive, clock_s
            )
        generation = max((worker.generation for worker in beat.workers), default=self.generation)
        return verdicts + self._logs.judge(beat.node, generation, beat.hits, clock_s)

    def tick(self, now_s: float) -> list[Verdict]:
        """What time alone brings; call it about once a beat interval."""
        clock_s = self._advance(now_s)
        return [
            *self._silent_nodes(clock_s),
            *self._silent_ranks(clock_s),
            *self._logs.tick(clock_s),
        ]

    def _advance(self, now_s: float) -> float:
        if self._last_now_s is not None:
            self._clock_s += min(max(now_s - self._last_now_s, 0.0), self.config.beat_interval_s)
        self._last_now_s = now_s
        return self._clock_s

    def _on_worker(
        self, node: int, worker: WorkerSignals, was_alive: bool, clock_s: float
    ) -> list[Verdict]:
        verdicts: list[Verdict] = []
        if worker.generation > self.generation:
            self.generation = worker.generation
        is_current = worker.generation == self.generation
        if is_current and worker.state not in ENDED:
            verdicts += close_replaced(self._episodes, node, worker)
        if worker.state not in ENDED or was_alive or (is_current and clock_s >= self._settle_s()):
            verdicts += judge_process(self._episodes, node, worker)
        if is_current:
            self._observe(node, worker)
            verdicts += self._close_silence(node, worker)
        else:
            self._forget(node, worker)
        return verdicts

    def _settle_s(self) -> float:
        """A new monitor believes no death that it has not seen happen before every node had time to show the
        newest generation: a rank that moved away leaves its segment, with a dead process in it, behind."""
        return 2 * self.config.beat_interval_s

    def _observe(self, node: int, worker: WorkerSignals) -> None:
        if worker.state in ENDED or worker.state == "done":
            self._forget(node, worker)
            return
        view = observe(self.ranks.get(worker.rank), node, worker, self.config)
        self.ranks[worker.rank] = view
        if view.beats_over >= self.config.confirm_beats:
            self._quiet.add(worker.rank)
        else:
            self._quiet.discard(worker.rank)

    def _forget(self, node: int, worker: WorkerSignals) -> None:
        view = self.ranks.get(worker.rank)
        if view is not None and view.node == node and view.signals.pid == worker.pid:
            del self.ranks[worker.rank]
            self._quiet.discard(worker.rank)

    def _close_silence(self, node: int, worker: WorkerSignals) -> list[Verdict]:
        key = process_key(node, worker)
        known = self._episodes.get(key)
        if (
            known is None
            or known.kind != "silence"
            or worker.age_s > self.config.silence_floor_s / 2
        ):
            return []
        return self._episodes.close(
            key, Evidence(source="flight", name="moves_again", value=f"head {worker.head}")
        )

    def _silent_nodes(self, clock_s: float) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for node, view in self.nodes.items():
            unheard_s = clock_s - view.heard_s
            if unheard_s <= self.config.node_silence_s:
                continue
            workers = view.beat.workers
            rows = (
                Evidence(
                    source="beat",
                    name="unheard",
                    value=f"more than {self.config.node_silence_s:.1f} s",
                ),
                Evidence(source="beat", name="last_sequence", value=str(view.beat.sequence)),
                Evidence(
                    source="beat",
                    name="ranks",
                    value=", ".join(str(worker.rank) for worker in workers) or "none",
                ),
            )
            generation = max((worker.generation for worker in workers), default=-1)
            verdicts += self._episodes.report(
                ("node", node),
                "node_silent",
                PROCESS_ADVICE["node_silent"],
                rows,
                node=node,
                generation=generation,
            )
        return verdicts

    def _silent_ranks(self, clock_s: float) -> list[Verdict]:
        if not self._quiet or self._is_explained(clock_s):
            return []
        views = [view for view in self.ranks.values() if view.signals.generation == self.generation]
        found = find_culprit(views, self.config)
        if found is None:
            return []
        culprit, is_certain = found
        signals = culprit.signals
        return self._episodes.report(
            process_key(culprit.node, signals), "silence", PROCESS_ADVICE["silence"],
            evidence_of(culprit, views, self.config),
            node=culprit.node, rank=signals.rank, pid=signals.pid, generation=signals.generation,
            confidence=None if is_certain else WAITING_CONFIDENCE,
        )  # fmt: skip

    def _is_explained(self, clock_s: float) -> bool:
        """Whether a known trouble is why ranks stand, or a node that is late may prove to be it."""
        if self._episodes.open_of_generation(self.generation, PROCESS_KINDS | {"node_silent"}):
            return True
        late_s = LATE_BEATS * self.config.beat_interval_s
        nodes = {view.node for view in self.ranks.values()}
        return any(clock_s - self.nodes[node].heard_s > late_s for node in nodes)


def _is_older(beat: AgentBeat, known: AgentBeat) -> bool:
    same_sender = (beat.pid, beat.start_ticks) == (known.pid, known.start_ticks)
    return same_sender and beat.sequence <= known.sequence


def _alive_processes(beat: AgentBeat) -> frozenset[tuple[int, int]]:
    return frozenset(
        (worker.pid, worker.start_ticks) for worker in beat.workers if worker.state not in ENDED
    )
