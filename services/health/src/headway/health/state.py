"""Evaluates the beats of a run's agents: pure decisions without sockets, clocks or files.

``MonitorState`` takes events with their time and returns the verdicts that are new or revised.
One instance handles 12,288 nodes: a beat costs the work of its own node, a tick checks only
nodes and quiet ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headway.common.wire.messages.health import (
    AgentBeat,
    Machine,
    Verdict,
    VerdictTaken,
    WorkerSignals,
)
from headway.health.config import HealthConfig
from headway.health.detectors import data, worker_ends
from headway.health.detectors.episodes import Episodes, fact
from headway.health.detectors.fabric import Fabric
from headway.health.detectors.findings import FindingEpisodes
from headway.health.detectors.follow_ups import FollowUps
from headway.health.detectors.hangs import Hangs
from headway.health.detectors.pace import Pace
from headway.health.detectors.process import (
    ENDED,
    alive_processes,
    close_replaced,
    judge_process,
    process_key,
)
from headway.health.detectors.rank_view import RankView, observe, steps_on, still_s
from headway.health.detectors.silent_nodes import NodeView, close_heard, silent_nodes
from headway.health.detectors.slow import SlowRanks
from headway.health.detectors.worker_ends import WorkerEnds
from headway.health.first_cause.crashes import CrashCauses
from headway.health.first_cause.stage import FirstCause
from headway.health.rule_files import shipped
from headway.health.rulebook import RuleBook
from headway.health.slowness.live import LiveJudgement

REPEATED: Final = frozenset({"crash", "stopped", "node_silent", "fabric_cut", "fabric_split"})
"""Kinds that are repeated as long as they are open, whatever was done about them."""
LATE_BEATS: Final = 3
"""Missing beats after which a node may be why other ranks wait, so that none is judged yet."""
NO_MACHINE: Final = Machine()
"""Machine of a node that has not reported what it consists of."""


class MonitorState:
    """Beats in, verdicts out.

    Its clock advances by at most one beat interval per event or tick: if the monitor itself was
    stopped or starved, all nodes look late at once, and that time does not count.
    """

    def __init__(
        self,
        config: HealthConfig,
        run_id: str,
        own_node: int = -1,
        rules: RuleBook | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """``own_node`` is the monitor's.

        Without ``rules`` those that come with Headway are used. Verdicts are dated by ``clock_s``,
        the wall clock; nothing is decided by it.
        """
        self.config = config
        self.run_id = run_id
        self.generation = -1
        """The newest generation that any rank has reported; older ones are ignored."""
        self.nodes: dict[int, NodeView] = {}
        self.machines: dict[int, Machine] = {}
        """What each node consists of, as its agent last reported."""
        self.ranks: dict[int, RankView] = {}
        self._episodes = Episodes(run_id, clock_s)
        self._follow_ups = FollowUps(self._episodes, config.again_s)
        self._hangs = Hangs(self._episodes, self._follow_ups, config)
        self._fabric = Fabric(self._episodes, config, own_node)
        self._slow = SlowRanks(self._episodes, config.beat_interval_s)
        self._first_cause = FirstCause(self._episodes, self._follow_ups, config)
        self._crashes = CrashCauses(self._episodes)
        self._ends = WorkerEnds(self._episodes)
        self._findings = FindingEpisodes(
            self._episodes, rules or shipped(), config, self._first_cause, self._crashes
        )
        self._pace = Pace(config)
        self._ended: dict[int, RankView] = {}
        """Ranks of the newest generation that have ended with code 0, as they were last seen."""
        self._quiet: set[int] = set()
        """Ranks silent beyond their limit in enough beats."""
        self._stuck: set[int] = set()
        """Ranks whose step does not end."""
        self._clock_s = 0.0
        self._last_now_s: float | None = None

    def restore(self, verdicts: list[Verdict]) -> None:
        """Take over from an earlier monitor of the run without reporting its verdicts again."""
        self._episodes.restore(verdicts)
        self._ends.restore(verdicts)
        self._findings.restore(verdicts, self._clock_s)
        self._first_cause.restore(self._clock_s)

    def open_verdicts(self) -> list[Verdict]:
        """The open verdicts that were reported."""
        return [one for one in self._episodes.verdicts() if self._first_cause.is_reported(one)]

    def on_beat(self, beat: AgentBeat, now_s: float) -> list[Verdict]:
        """Process an agent's beat.

        Beats of another run, and beats overtaken by later ones, are dropped.
        """
        clock_s = self._advance(now_s)
        known = self.nodes.get(beat.node)
        if beat.run_id != self.run_id or (known is not None and self._is_older(beat, known)):
            return []
        self.nodes[beat.node] = NodeView(beat, clock_s)
        verdicts = close_heard(self._episodes, beat)
        has_ended = any(worker.state in ENDED for worker in beat.workers)
        alive = alive_processes(known.beat) if has_ended and known is not None else frozenset()
        pids = frozenset(worker.pid for worker in beat.workers)
        for ended in self._ends.take(beat, known.beat if known is not None else None):
            verdicts += self._on_end(beat.node, ended, pids, clock_s)
        explained = worker_ends.explained(beat)
        for worker in beat.workers:
            who = (worker.pid, worker.start_ticks)
            found = self._on_worker(beat.node, worker, who in alive, who in explained, clock_s)
            if any(one.kind == "crash" and one.is_open for one in found):
                key = process_key(beat.node, worker)
                found += self._crashes.on_end(key, beat.node, worker, pids, clock_s, clock_s)
            verdicts += found
        views = (self.ranks.get(worker.rank) for worker in beat.workers)
        here = (view for view in views if view is not None and view.node == beat.node)
        verdicts += data.close_delivered(self._episodes, beat.node, here, self.config)
        generation = max((worker.generation for worker in beat.workers), default=self.generation)
        if beat.machine is not None:
            self.machines[beat.node] = beat.machine
        machine = self.machines.get(beat.node, NO_MACHINE)
        verdicts += self._findings.judge(
            beat.node, generation, beat.findings, machine, pids, clock_s
        )
        return self._report(verdicts, clock_s)

    def tick(self, now_s: float) -> list[Verdict]:
        """Process the passing of time; call it about once per beat interval."""
        clock_s = self._advance(now_s)
        verdicts = [
            *silent_nodes(self._episodes, self.nodes, self.config, clock_s),
            *self._data_stalls(clock_s),
            *self._cuts(clock_s),
            *self._silent_ranks(clock_s),
            *self._repeated(clock_s),
            *self._slow.begin_generation(self.generation),
            *self._findings.tick(clock_s),
        ]
        reported = self._report(verdicts, clock_s)
        later = self._first_cause.tick(len(self.nodes), self._addresses, clock_s)
        self._follow_ups.begin([one for one in later if one.is_open], clock_s)
        return reported + later

    def on_judged(self, judged: LiveJudgement, now_s: float) -> list[Verdict]:
        """Process what the newest steps of all ranks show; an older generation's is dropped."""
        clock_s = self._advance(now_s)
        if judged.generation < self.generation:
            return []
        return self._report(self._slow.judge(judged, now_s), clock_s)

    def on_taken(self, answer: VerdictTaken, now_s: float) -> list[Verdict]:
        """Process the driver's answer to a verdict; return the revision with it, or nothing.

        It is nothing if the driver is undecided or answered an older question.
        """
        clock_s = self._advance(now_s)
        return self._report(self._follow_ups.answered(answer, clock_s), clock_s)

    def _report(self, verdicts: list[Verdict], clock_s: float) -> list[Verdict]:
        """What is reported of the new revisions of one event, which most events have none of."""
        if not verdicts:
            return []
        self._follow_ups.begin(verdicts, clock_s)
        same = self._crashes.take_same()
        reported = self._first_cause.judge(verdicts, same, len(self.nodes), clock_s)
        self._follow_ups.begin([one for one in reported if one.is_open], clock_s)
        return reported

    def _addresses(self) -> dict[str, int]:
        """The node at each address of the ranks' network."""
        return {view.beat.fabric_address: node for node, view in self.nodes.items()}

    def _advance(self, now_s: float) -> float:
        if self._last_now_s is not None:
            self._clock_s += min(max(now_s - self._last_now_s, 0.0), self.config.beat_interval_s)
        self._last_now_s = now_s
        return self._clock_s

    def _on_end(
        self, node: int, ended: worker_ends.Ended, pids: frozenset[int], clock_s: float
    ) -> list[Verdict]:
        verdicts = self._ends.report(node, ended)
        at_s, is_oom = clock_s - ended.end.age_s, ended.end.how == "out_of_memory"
        if ended.end.how != "stopped":
            verdicts += self._crashes.on_end(
                ended.key, node, ended.worker, pids, at_s, clock_s, is_out_of_memory=is_oom
            )
        return verdicts

    def _on_worker(
        self,
        node: int,
        worker: WorkerSignals,
        was_alive: bool,
        is_explained: bool,
        clock_s: float,
    ) -> list[Verdict]:
        if self._steps_on(node, worker):
            view = self.ranks[worker.rank]
            view.signals, view.heard_s, view.absence = worker, clock_s, ""
            self._pace.note(worker)
            return []
        verdicts: list[Verdict] = []
        if worker.generation > self.generation:
            self.generation = worker.generation
            self._ended.clear()
        is_current = worker.generation == self.generation
        if is_current and worker.state not in ENDED:
            verdicts += close_replaced(self._episodes, node, worker)
        beat_s = self.config.beat_interval_s
        if worker.state not in ENDED:
            verdicts += judge_process(self._episodes, node, worker, beat_s)
        elif is_explained or self._is_held_elsewhere(node, worker):
            pass  # else a returning node's leftovers of a rank that has moved to another node
        elif was_alive or (is_current and clock_s >= self._settle_s()):
            verdicts += judge_process(self._episodes, node, worker, beat_s)
        if is_current:
            self._observe(node, worker, clock_s)
            verdicts += self._close_silence(node, worker)
        else:
            self._forget(node, worker)
        return verdicts

    def _steps_on(self, node: int, worker: WorkerSignals) -> bool:
        """Whether there is nothing to judge: most of the time of a large run's monitor."""
        view = self.ranks.get(worker.rank)
        if view is None or worker.generation != self.generation or worker.rank in self._stuck:
            return False
        is_open = bool(self._episodes.of_rank(worker.rank))
        return not is_open and steps_on(view, node, worker, self.config)

    def _is_held_elsewhere(self, node: int, worker: WorkerSignals) -> bool:
        view = self.ranks.get(worker.rank)
        is_current = view is not None and view.signals.generation == self.generation
        return view is not None and is_current and view.node != node

    def _settle_s(self) -> float:
        """How long a new monitor ignores deaths that it did not observe.

        That is until every node had time to report the newest generation, since a rank that moved
        away leaves its segment, with a dead process in it, behind.
        """
        return 2 * self.config.beat_interval_s

    def _observe(self, node: int, worker: WorkerSignals, clock_s: float) -> None:
        if worker.state in ENDED or worker.state == "done":
            if worker.state == "done" and worker.rank in self.ranks:
                self._ended[worker.rank] = self.ranks[worker.rank]
                self._ended[worker.rank].absence = "ended"
            self._forget(node, worker)
            return
        self._pace.note(worker)
        self._ended.pop(worker.rank, None)
        known = self.ranks.get(worker.rank)
        view = observe(known, node, worker, self.config, self._pace.first_limit_s, clock_s)
        self.ranks[worker.rank] = view
        _keep(self._quiet, worker.rank, view.beats_over >= self.config.confirm_beats)
        _keep(self._stuck, worker.rank, view.is_stuck(self.config))

    def _forget(self, node: int, worker: WorkerSignals) -> None:
        view = self.ranks.get(worker.rank)
        if view is not None and view.node == node and view.signals.pid == worker.pid:
            del self.ranks[worker.rank]
            self._quiet.discard(worker.rank)
            self._stuck.discard(worker.rank)

    def _close_silence(self, node: int, worker: WorkerSignals) -> list[Verdict]:
        key = process_key(node, worker)
        known = self._episodes.get(key)
        is_silence = known is not None and known.kind == "silence"
        if not is_silence or still_s(worker) > self.config.silence_floor_s / 2:
            return []
        return self._episodes.close(key, fact("flight", "moves_again", f"head {worker.head}"))

    def _data_stalls(self, clock_s: float) -> list[Verdict]:
        """Verdicts on data daemons that ranks wait for; certain whatever other ranks do."""
        views = [self.ranks[rank] for rank in self._quiet]
        current = [view for view in views if view.signals.generation == self.generation]
        verdicts: list[Verdict] = []
        for node, victim in data.stalled(current, self.config).items():
            known = self._episodes.get(data.data_key(node))
            if known is not None and self._follow_ups.is_due(known, clock_s):
                verdicts += self._follow_ups.repeat(data.data_key(node), clock_s)
            else:
                verdicts += data.report(self._episodes, victim, self.config)
        return verdicts

    def _silent_ranks(self, clock_s: float) -> list[Verdict]:
        verdicts = self._hangs.close_over(self.ranks.values(), self.generation)
        if not self._quiet and not self._stuck:
            return verdicts
        views = list(self.ranks.values())
        late_nodes = {node for node in {v.node for v in views} if self._is_late(node, clock_s)}
        for view in views:
            if view.node not in late_nodes and self._is_unheard(view):
                view.absence = "unreported"
        views += self._ended.values()
        return verdicts + self._hangs.judge(views, late_nodes, self.generation, clock_s)

    def _cuts(self, clock_s: float) -> list[Verdict]:
        """Ranks that are joining look for their peers too."""
        beats = {
            node: view.beat
            for node, view in self.nodes.items()
            if not self._is_late(node, clock_s)
            and any(worker.state not in ENDED for worker in view.beat.workers)
        }
        return self._fabric.judge(beats, self.generation, clock_s)

    def _is_late(self, node: int, clock_s: float) -> bool:
        return clock_s - self.nodes[node].heard_s > LATE_BEATS * self.config.beat_interval_s

    def _is_unheard(self, view: RankView) -> bool:
        """Whether a node has reported for some beats, but not about this rank of it."""
        unheard_s = self.nodes[view.node].heard_s - view.heard_s
        return unheard_s > LATE_BEATS * self.config.beat_interval_s

    def _repeated(self, clock_s: float) -> list[Verdict]:
        """Repeat verdicts on dead, stopped and silent ones that are still open.

        Hangs are judged again instead.
        """
        verdicts: list[Verdict] = []
        for key, verdict in self._episodes.open_of_generation(self.generation, REPEATED):
            if self._follow_ups.is_due(verdict, clock_s):
                verdicts += self._follow_ups.repeat(key, clock_s)
        return verdicts

    def _is_older(self, beat: AgentBeat, known: NodeView) -> bool:
        """Whether a beat was overtaken by a later one.

        The later one is of its agent, or of the agent that started later.

        After a reboot start times count from 0 again, so an agent that was silent
        for long is ignored.
        """
        sender, newest = (beat.start_ticks, beat.pid), (known.beat.start_ticks, known.beat.pid)
        if sender == newest:
            return beat.sequence <= known.beat.sequence
        is_heard = self._clock_s - known.heard_s <= self.config.node_silence_s
        return is_heard and sender < newest


def _keep(ranks: set[int], rank: int, is_in: bool) -> None:
    if is_in:
        ranks.add(rank)
    else:
        ranks.discard(rank)
