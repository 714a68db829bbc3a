"""The recovery decisions of a run: (state, event, now) -> actions, without sockets,
clocks or files.

    gathering -> reading -> choosing -> beginning -> joining -> running -> over
        ^                                               |          |
        +------------------ leaving <-------------------+----------+

A phase is a row of ``PHASES``: what it does, its time limit, the sentence why it waits, the next
rung. Actions that can fail come back as ``Done`` or ``Failed`` and count only then. Orders to
executors are level-triggered: what beats show is compared with what should be, and the difference
is sent again until it is gone; so a lost message, a restarted executor or a restarted driver needs
no case of its own. Every decision is a function of ``Start``, the limits, and the events with their
times.
"""

from __future__ import annotations

from collections import Counter

from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.worker import Restore, Steer
from headway.controller.decisions import reactions, same_code, silence, waiting
from headway.controller.decisions.core import Core
from headway.controller.decisions.drains import Drains, drain_refusal
from headway.controller.decisions.events import (
    Action,
    AwaitCheckpoint,
    Done,
    DrainNode,
    DurableFound,
    Event,
    EvictNode,
    ExecutorEnded,
    Failed,
    Judged,
    Log,
    Memory,
    Rebooted,
    Remember,
    Start,
    Steered,
    Tick,
)
from headway.controller.decisions.invariants import check
from headway.controller.decisions.phases.base import Phase
from headway.controller.decisions.phases.choosing import Beginning, Choosing, Reading, found
from headway.controller.decisions.phases.gathering import Gathering, loading_sentence
from headway.controller.decisions.phases.generation import Joining, Leaving, Over, Running
from headway.controller.decisions.saves import Saves
from headway.controller.decisions.stop import StopWatch
from headway.controller.decisions.verdicts import Verdicts
from headway.trainer.config import RecoveryConfig

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


class RunState:
    """One run, from the gathering of its first workers to its end.

    Args:
        start: what a driver begins with.
        limits: time limits.
        now: a monotonic clock in seconds, like that of ``handle``.
    """

    def __init__(self, start: Start, limits: RecoveryConfig, now: float) -> None:
        self._core = Core(start, limits, now)
        self._verdicts, self._stop, self._drains = Verdicts(), StopWatch(), Drains(self._core)
        self._saves = Saves()
        self._memory = self._stored = start.memory

    # ---- the one entry ------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event; returns what to do, in order."""
        core, phase = self._core, self._core.phase
        is_tick = isinstance(event, Tick)
        core.clock.advance(now, is_tick=is_tick)
        if isinstance(event, NodeBeat):
            if phase == "over":
                return []
            node, actions = reactions.on_beat(core, event)
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
        core = self._core
        if core.phase != phase or node not in core.fleet.nodes:
            node, phase = None, core.phase
        actions = PHASES[phase].look(core, node)
        while core.phase != phase:
            phase = core.phase
            actions += PHASES[phase].look(core, None)
        return actions

    def _on_tick(self) -> list[Action]:
        core = self._core
        actions = self._overdue()
        if core.phase != "over":
            actions += silence.watch(core) + reactions.release(core) + core.kills()
            actions += same_code.watch(core) + waiting.watch(core)
            actions += reactions.check_rollback(core) + self._verdicts.repeat(core)
            actions += self._saves.look(core) + self._drains.look(core)
            actions += self._stop.look(core, self.why)
        return actions + self._advance(core.phase, None)

    def _overdue(self) -> list[Action]:
        """Say why a phase takes longer than its limit, and take its next rung."""
        core, phase = self._core, PHASES[self._core.phase]
        if core.clock.now - core.waited_since < phase.limit_s(core):
            return []
        core.waited_since = core.gathered_since = core.clock.now
        waited_s = round(core.clock.now - core.since, 1)
        why = phase.why(core)
        log = Log("waiting", {"phase": phase.name, "waited_s": waited_s, "reason": why})
        return [log, *phase.overdue(core)]

    def _remember(self) -> list[Action]:
        core = self._core
        if core.is_memory_stale:
            core.is_memory_stale = False
            memory = core.memory()
            if memory != self._memory:
                self._memory = memory
                core.effects.forget(Remember)
        if self._memory is not self._stored and core.effects.due(Remember):
            return core.effects.ask(Remember(self._memory))
        return []

    # ---- what happens -------------------------------------------------------------------------
    def _take(self, event: Event) -> list[Action]:
        core = self._core
        match event:
            case Judged():
                return self._verdicts.judge(core, event)
            case Done():
                if isinstance(event.action, Remember) and event.action.memory == self._memory:
                    self._stored = self._memory
                actions = reactions.on_done(core, event.action)
                if isinstance(event.action, AwaitCheckpoint) and core.phase != "over":
                    actions += self._drains.found(core, event.action)
                return actions
            case Failed():
                return reactions.on_failed(core, event)
            case _ if core.phase == "over":
                return []
            case DurableFound():
                return found(core, event)
            case WorkerGone():
                return reactions.on_gone(core, event)
            case Relay(left=left) if left is not None:
                return reactions.on_left(core, left)
            case Relay(store=opened) if opened is not None:
                if opened.generation == core.generation:
                    core.store = (opened.host, opened.port, opened.secret)
                    core.begin_round()
            case Seals() if event.generation == core.generation and core.phase == "reading":
                return reactions.on_seals(core, event)
            case ExecutorEnded():
                return silence.on_executor_ended(core, event.node)
            case Rebooted():
                return reactions.on_rebooted(core, event.node)
            case Steered():
                if event.steer.sequence > len(core.commands):
                    core.add_command(event.steer)
                    core.is_steering = True
                    core.begin_round()
                return reactions.check_rollback(core)
            case EvictNode():
                return reactions.evict(core, event.node)
            case DrainNode():
                return self._drains.begin(core, event)
            case _:
                pass
        return []

    # ---- what others read ---------------------------------------------------------------------
    def eviction_refusal(self, node: int) -> str:
        """Why the node cannot be evicted now; empty when it can."""
        return reactions.eviction_refusal(self._core, node)

    def drain_refusal(self, node: int) -> str:
        """Why the node cannot be drained now; empty when it can."""
        return drain_refusal(self._core, node)

    def draining(self) -> str:
        """Which nodes are about to leave the run, as a sentence; empty without any."""
        return self._drains.sentence(self._core)

    def why(self) -> str:
        """Why the run does not step now, as a sentence; empty while it steps.

        Waits are counted on the driver's own clock, up to the newest event.
        """
        return PHASES[self._core.phase].why(self._core)

    def validate(self) -> None:
        """Check every invariant; for tests.

        Raises:
            AssertionError: with what does not fit.
        """
        assert self._core.phase in PHASES, f"unknown phase {self._core.phase!r}"
        assert self._memory == self._core.memory(), "a successor would know less than this driver"
        check(self._core)

    @property
    def phase(self) -> str:
        """Name of the phase, a key of ``PHASES``."""
        return self._core.phase

    @property
    def outcome(self) -> str:
        """``finished``, ``stopped`` or ``failed`` once the run is over, else empty."""
        return self._core.outcome

    @property
    def detail(self) -> str:
        """Why it ended so."""
        return self._core.detail

    @property
    def step(self) -> int:
        """Completed optimizer steps of the whole run."""
        return self._core.step

    @property
    def steps(self) -> int:
        """Steps of the whole run when it is finished."""
        return self._core.steps

    @property
    def generation(self) -> int:
        """The generation that workers are assigned to, -1 before the first."""
        return self._core.generation

    @property
    def epoch(self) -> int:
        """Number of this driver."""
        return self._core.epoch

    @property
    def rank_nodes(self) -> dict[int, int]:
        """Rank -> the node that carries it."""
        return self._core.fleet.rank_nodes

    @property
    def members(self) -> dict[int, str]:
        """Rank -> the worker that holds it."""
        return self._core.members.workers

    @property
    def commands(self) -> list[Steer]:
        """Every command of the user, in order; ``Steered`` appends to it."""
        return self._core.commands

    @property
    def applied(self) -> int:
        """Newest command that every rank has applied."""
        return self._core.applied

    @property
    def paused(self) -> bool:
        """Whether ranks report that they wait on request."""
        return self._core.members.num_paused > 0

    @property
    def restore(self) -> Restore:
        """From where the current generation began."""
        return self._core.restore

    @property
    def statuses(self) -> Counter[str]:
        """Status of a rank -> number of ranks; ``missing`` has no living worker."""
        return self._core.members.statuses

    @property
    def memory(self) -> Memory:
        """What a successor must know."""
        return self._core.memory()

    @property
    def refill(self) -> bool:
        """Whether nodes may fork standbys now: not while survivors need the cores for a rebuild."""
        return self._core.phase in ("running", "gathering")

    @property
    def nodes(self) -> list[int]:
        """Numbers of all nodes, lost ones included."""
        return list(self._core.fleet.nodes)

    def knows(self, node: int) -> bool:
        """Whether the run has a node of this number."""
        return node in self._core.fleet.nodes

    def worker(self, name: str | None) -> WorkerBeat | None:
        """The newest beat of a worker, None if its node reports none."""
        return self._core.fleet.worker(name)

    def status_of(self, node: int) -> str:
        """``active``, ``spare``, ``silent`` or ``lost``."""
        return self._core.fleet.nodes[node].status

    def is_alive(self, node: int) -> bool:
        """Whether the node reports."""
        return self.status_of(node) in ("active", "spare")

    def is_leaving(self, node: int) -> bool:
        """Whether the node was evicted or drained, and its machine has not been ended yet."""
        found = self._core.fleet.nodes[node]
        return found.bar == "evicted" and not found.is_released

    def step_of(self, node: int) -> int:
        """Completed steps that every rank of the node has reported in its newest generation."""
        return self._core.fleet.nodes[node].step

    def services(self, node: int) -> dict[str, int]:
        """Service -> pid, of those that are up on the node."""
        return self._core.fleet.nodes[node].services

    def troubles(self) -> dict[int, str]:
        """Node -> what its executor cannot do now,
        of those that have said so in their newest beat."""
        nodes = self._core.fleet.nodes.items()
        return {n: node.trouble for n, node in nodes if node.trouble and node.status != "lost"}

    @property
    def is_loading(self) -> bool:
        """Whether ranks wait for torch to be loaded on a node."""
        return self._core.phase == "gathering" and bool(loading_sentence(self._core))

    def is_active(self, node: int) -> bool:
        """Whether the node carries ranks; False also for a number that the run does not know."""
        return node in self._core.fleet.nodes and bool(self._core.fleet.nodes[node].ranks)

    def known_version(self, node: int) -> int:
        """Version of the newest full beat of the node,
        -1 when one is needed or the node is not known."""
        return self._core.fleet.nodes[node].version if node in self._core.fleet.nodes else -1

    def spare_for(self, node: int) -> int | None:
        """The spare that would take over from the node, None when none is ready."""
        return self._core.fleet.spare_for(node)

    @property
    def run_id(self) -> str:
        """Of the run."""
        return self._core.run_id

    @property
    def clock_s(self) -> float:
        """The driver's own clock, which leaves out its stalls; ``replay`` sets it."""
        return self._core.clock.now

    @clock_s.setter
    def clock_s(self, now: float) -> None:
        self._core.clock.now = now


def _only_node(event: Event) -> int | None:
    """The node that alone is concerned, None when the event may concern several."""
    match event:
        case Seals(node=node) | WorkerGone(node=node):
            return node
        case Relay(node=node, left=left) if left is not None:
            return node
        case _:
            return None
