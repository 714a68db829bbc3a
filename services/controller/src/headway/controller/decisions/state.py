"""The recovery decisions of a run: (state, event, now) -> actions.

They use no sockets, clocks or files.

    gathering -> reading -> choosing -> beginning -> joining -> running -> over
        ^                                               |          |
        +------------------ leaving <-------------------+----------+

``phases/transitions.py`` has every edge, with those of failures and of a new driver.

A phase is a row of ``PHASES``: what it does, its time limit, the sentence why it waits, the next
rung. Actions that can fail come back as ``Done`` or ``Failed`` and count only then. Orders to
executors are level-triggered: what beats show is compared with what should be, and the difference
is sent again until it is gone; so a lost message, a restarted executor or a restarted driver needs
no case of its own. Every decision is a function of ``Start``, the limits, and the events with their
times.
"""

from __future__ import annotations

from headway.common.decide import Action, Done, Failed, Log
from headway.common.wire.messages.driver import NodeBeat, NodeState, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import WorkerBeat
from headway.controller.decisions import reactions, silence, waiting
from headway.controller.decisions.admission import node_checks, same_code
from headway.controller.decisions.core import Core
from headway.controller.decisions.drains import Drains, drain_refusal
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    CheckWanted,
    CommandQueued,
    DrainNode,
    DurableFound,
    EvictNode,
    ExecutorEnded,
    Input,
    NodeRebooted,
    Remember,
    Start,
    Tick,
    VerdictReceived,
)
from headway.controller.decisions.invariants import check
from headway.controller.decisions.machines import replenishing
from headway.controller.decisions.phases.base import Phase
from headway.controller.decisions.phases.choosing import Beginning, Choosing, Reading, found
from headway.controller.decisions.phases.gathering import Gathering, loading_sentence
from headway.controller.decisions.phases.generation import Joining, Leaving, Over, Running
from headway.controller.decisions.saves import Saves
from headway.controller.decisions.verdicts import Verdicts
from headway.controller.decisions.waiting import StopWatch
from headway.trainer.config import RecoveryConfig

TICK_LIMIT_S = 1.0
EVENT_LIMIT_S = 0.25
"""What one tick, or any other event, can add to the driver's clock at most."""
PHASES: dict[str, Phase] = {
    phase.name: phase
    for phase in (
        Gathering(),
        Reading(),
        Choosing(),
        Beginning(),
        Joining(),
        Running(),
        Leaving(),
        Over(),
    )
}


class RunState(Core):
    """One run, from the gathering of its first workers to its end.

    Args:
        start: what a driver begins with.
        limits: time limits.
        now: a monotonic clock in seconds, like that of ``handle``.
    """

    def __init__(self, start: Start, limits: RecoveryConfig, now: float) -> None:
        super().__init__(start, limits, now)
        self._verdicts, self._stop, self._drains = Verdicts(), StopWatch(), Drains(self)
        self._saves = Saves()
        self._memory = self._stored = start.memory

    # ---- the one entry ------------------------------------------------------------------------
    def handle(self, event: Input, now: float) -> list[Action]:
        """Take in one event; returns what to do, in order."""
        phase = self.phase
        is_tick = isinstance(event, Tick)
        self.clock.advance(now, TICK_LIMIT_S if is_tick else EVENT_LIMIT_S)
        if isinstance(event, NodeBeat):
            if phase == "over":
                return []
            node, actions = reactions.on_beat(self, event)
            if node is None and not actions:
                return actions
        else:
            node, actions = _only_node(event), self._take(event)
        actions += self._on_tick() if is_tick else self._advance(phase, node)
        return self._remember() + actions

    def _advance(self, phase: str, node: int | None) -> list[Action]:
        """Let the phase look at the run, and each phase that is entered thereby.

        ``phase`` is the one before the event: if it was left, the next one looks at the whole run,
        else only at ``node`` when the event concerns no other.
        """
        if self.phase != phase or node not in self.fleet.nodes:
            node, phase = None, self.phase
        actions = PHASES[phase].look(self, node)
        while self.phase != phase:
            phase = self.phase
            actions += PHASES[phase].look(self, None)
        return actions

    def _on_tick(self) -> list[Action]:
        actions = self._overdue()
        if self.phase != "over":
            actions += silence.watch(self) + reactions.release(self) + self.orders.kills()
            actions += same_code.watch(self) + waiting.watch(self) + node_checks.watch(self)
            actions += replenishing.watch(self)
            actions += reactions.check_rollback(self) + self._verdicts.repeat(self)
            actions += self._saves.look(self) + self._drains.look(self)
        if self.phase != "over":  # what was looked at first may have ended the run
            actions += self._stop.look(self, self.why)
        return actions + self._advance(self.phase, None)

    def _overdue(self) -> list[Action]:
        """Say why a phase takes longer than its limit, and take its next rung."""
        phase = PHASES[self.phase]
        if self.clock.now - self.waited_since < phase.limit_s(self):
            return []
        self.waited_since = self.gathered_since = self.clock.now
        waited_s = round(self.clock.now - self.since, 1)
        why = phase.why(self)
        log = Log("waiting", {"phase": phase.name, "waited_s": waited_s, "reason": why})
        return [log, *phase.overdue(self)]

    def _remember(self) -> list[Action]:
        if self.is_memory_stale:
            self.is_memory_stale = False
            memory = self.memory
            if memory != self._memory:
                self._memory = memory
                self.effects.forget(Remember)
        if self._memory is not self._stored and self.effects.due(Remember):
            return self.effects.ask(Remember(self._memory))
        return []

    # ---- what happens -------------------------------------------------------------------------
    def _take(self, event: Input) -> list[Action]:
        match event:
            case VerdictReceived():
                return self._verdicts.judge(self, event)
            case Done():
                if isinstance(event.action, Remember) and event.action.memory == self._memory:
                    self._stored = self._memory
                actions = reactions.on_done(self, event.action, event.note)
                if isinstance(event.action, AwaitCheckpoint) and self.phase != "over":
                    actions += self._drains.found(self, event.action)
                return actions
            case Failed():
                return reactions.on_failed(self, event)
            case _ if self.phase == "over":
                return []
            case DurableFound():
                return found(self, event)
            case WorkerGone():
                return reactions.on_gone(self, event)
            case Relay(left=left) if left is not None:
                return reactions.on_left(self, left)
            case Relay(store=opened) if opened is not None:
                if opened.generation == self.generation:
                    self.store = (opened.host, opened.port, opened.secret)
                    self.orders.begin_round()
            case Seals() if event.generation == self.generation and self.phase == "reading":
                return reactions.on_seals(self, event)
            case ExecutorEnded():
                return silence.on_executor_ended(self, event.node)
            case NodeRebooted():
                return reactions.on_rebooted(self, event.node)
            case CommandQueued():
                if event.steer.sequence > len(self.commands):
                    self.add_command(event.steer)
                    self.is_steering = True
                    self.orders.begin_round()
                return reactions.check_rollback(self)
            case EvictNode():
                if event.node in self.machines.leaving:
                    del self.machines.leaving[event.node]
                    self.is_memory_stale = True
                return reactions.evict(self, event.node)
            case CheckWanted():
                return node_checks.ask(self, event.node)
            case DrainNode():
                return self._drains.begin(self, event)
            case _:
                pass
        return []

    # ---- what others read ---------------------------------------------------------------------
    def eviction_refusal(self, node: int) -> str:
        """Why the node cannot be evicted now; empty when it can."""
        return reactions.eviction_refusal(self, node)

    def drain_refusal(self, node: int) -> str:
        """Why the node cannot be drained now; empty when it can."""
        return drain_refusal(self, node)

    def check_refusal(self, node: int) -> str:
        """Why the node cannot be checked now; empty when it can."""
        return node_checks.refusal(self, node)

    def draining(self) -> str:
        """Which nodes are about to leave the run, as a sentence; empty without any."""
        return self._drains.sentence(self)

    def why(self) -> str:
        """Why the run does not step now, as a sentence; empty while it steps.

        Waits are counted on the driver's own clock, up to the newest event.
        """
        return PHASES[self.phase].why(self)

    def validate(self) -> None:
        """Check every invariant; for tests.

        Raises:
            AssertionError: with what does not fit.
        """
        assert self.phase in PHASES, f"unknown phase {self.phase!r}"
        assert self._memory == self.memory, "a successor would know less than this driver"
        check(self)

    @property
    def paused(self) -> bool:
        """Whether ranks report that they wait on request."""
        return self.members.num_paused > 0

    @property
    def refill(self) -> bool:
        """Whether nodes may fork standbys now: not while survivors need the cores for a rebuild."""
        return self.phase in ("running", "gathering")

    @property
    def nodes(self) -> list[int]:
        """Numbers of all nodes, lost ones included."""
        return list(self.fleet.nodes)

    def knows(self, node: int) -> bool:
        """Whether the run has a node of this number."""
        return node in self.fleet.nodes

    def worker(self, name: str | None) -> WorkerBeat | None:
        """The newest beat of a worker, None if its node reports none."""
        return self.fleet.worker(name)

    def status_of(self, node: int) -> NodeState:
        return self.fleet.nodes[node].status

    def is_alive(self, node: int) -> bool:
        """Whether the node reports."""
        return self.status_of(node) in ("active", "spare")

    def is_leaving(self, node: int) -> bool:
        """Whether the node was taken out of the run, and its machine has not been ended yet."""
        found = self.fleet.nodes[node]
        return reactions.is_taken_out(self, found) and not found.is_released

    def step_of(self, node: int) -> int:
        """Completed steps that every rank of the node has reported in its newest generation."""
        return self.fleet.nodes[node].step

    def services(self, node: int) -> dict[str, int]:
        """Service -> pid, of those that are up on the node."""
        return self.fleet.nodes[node].services

    def troubles(self) -> dict[int, str]:
        """Node -> what its executor cannot do now.

        Only nodes whose newest beat reports a trouble are listed, and no lost ones.
        """
        nodes = self.fleet.nodes.items()
        return {n: node.trouble for n, node in nodes if node.trouble and node.status != "lost"}

    def unused(self) -> dict[int, str]:
        """Node -> why it is not used, for those that are being checked or have failed a check."""
        return node_checks.sentences(self)

    def machine_sentences(self) -> dict[int, str]:
        """Node -> which machine is on order for it and since when, or why none is."""
        return replenishing.sentences(self)

    @property
    def is_loading(self) -> bool:
        """Whether ranks wait for torch to be loaded on a node."""
        return self.phase == "gathering" and bool(loading_sentence(self))

    def is_active(self, node: int) -> bool:
        """Whether the node carries ranks; False also for a number that the run does not know."""
        return node in self.fleet.nodes and bool(self.fleet.nodes[node].ranks)

    def known_version(self, node: int) -> int:
        """Return the version of the newest full beat of the node.

        -1 when one is needed or the node is not known.
        """
        return self.fleet.nodes[node].version if node in self.fleet.nodes else -1

    def spare_for(self, node: int) -> int | None:
        """The spare that would take over from the node, None when none is ready."""
        return self.fleet.spare_for(node)

    @property
    def clock_s(self) -> float:
        """The driver's own clock, which leaves out its stalls; ``replay`` sets it."""
        return self.clock.now

    @clock_s.setter
    def clock_s(self, now: float) -> None:
        self.clock.now = now


def _only_node(event: Input) -> int | None:
    """The node that alone is concerned, None when the event may concern several."""
    match event:
        case Seals(node=node) | WorkerGone(node=node):
            return node
        case Relay(node=node, left=left) if left is not None:
            return node
        case _:
            return None
