"""What the decisions of a run stand on, and the few changes that several phases make."""

from __future__ import annotations

from typing import Any

from headway.common.decide import Action, AwakeClock, Log
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.worker import Restore, Steer
from headway.controller.decisions.crash_loop import CrashLoopBreaker
from headway.controller.decisions.effects import Effects
from headway.controller.decisions.events import (
    CheckCheckpoint,
    Finish,
    Memory,
    Start,
    topology_of,
)
from headway.controller.decisions.failures import Failure, Failures, RecoveryCost
from headway.controller.decisions.fleet import Fleet
from headway.controller.decisions.machines.machine_orders import MachineOrders
from headway.controller.decisions.members import Members
from headway.controller.decisions.phases import transitions
from headway.controller.decisions.phases.orders import Orders
from headway.controller.decisions.restore import Copies
from headway.trainer.config import RecoveryConfig

PAUSING = ("pause", "resume")


class Core:
    """One run: facts, and ways to change them. The phases decide when.

    Args:
        start: what a driver begins with.
        limits: time limits, all on the driver's own clock.
        now: the caller's monotonic clock, in seconds.
    """

    def __init__(self, start: Start, limits: RecoveryConfig, now: float) -> None:
        self.run_id, self.epoch, self.limits = start.run_id, start.epoch, limits
        self.is_on_gloo, self.link_wait_s = start.is_on_gloo, start.link_wait_s
        self.clock = AwakeClock(now)
        self.effects = Effects(self.clock)
        self.fleet = Fleet(start.nodes, start.rank_nodes, topology_of(start))
        self.fleet.checks.is_on = start.checks_nodes
        self.check_limit_s = start.check_limit_s
        self.members = Members(self.fleet.rank_nodes)
        self.orders = Orders(self.run_id, self.epoch, self.clock, self.fleet)
        self.replaces, self._unix_s = start.replaces, start.unix_s
        self.fleet.source = self.own_source = start.source
        """Digest of the code of this driver."""
        self.steps, self.snapshot_every = start.steps, start.snapshot_every
        self.commands: list[Steer] = []
        self._reset(start.generation)
        self._recall(start.memory)
        for steer in start.commands:
            self.add_command(steer)
        for node in self.fleet.nodes.values():  # executors need that long to find a new driver
            node.beat_at = limits.driver_silent_s + start.grace_s
        if former := self.fleet.nodes.get(start.former):  # it is gone with its driver, probably
            self.fleet.set_silent(former, start.former_silent_s)
        self._recall_nodes(start.memory)

    def _reset(self, generation: int) -> None:
        """What each driver begins anew; ``generation`` is the newest, -1 before the first."""
        self.generation = self.members.generation = generation
        self.begins_at = 0.0
        """The next generation begins no sooner: the same failure led back to its step before."""
        self.numbered = generation
        """The highest generation number that may be on the disk."""
        self.restore = Restore(source="init", step=0)
        self.store: tuple[str, int, str] | None = None
        """Host, port and secret of the store that rank 0 opened for this generation."""
        self.phase = "gathering"
        self.since = self.waited_since = self.gathered_since = 0.0
        self.is_adopting = generation >= 0
        self.outcome = self.detail = ""
        self.gave_up_at: float | None = None
        """When the wait was over; the end only waits for the newest checkpoint's name."""
        self.final_checkpoint = ""
        self.unchecked: Steer | None = None
        """The rollback whose checkpoint is being read."""
        self.max_step, self.progress_at = -1, 0.0
        """Newest step reported in this generation, and when it was new."""
        self.step_s = 0.0
        """How long the newest steps took, each."""
        self.is_steering = True
        """Some member may not hold every command."""
        self.odd_code: dict[int, str] = {}
        """Node -> the other digest of its standbys that was logged."""
        self.zygote_restarts: dict[int, float] = {}
        self.on_order: dict[int, str] = {}
        """Nodes for which the engine has a machine on order -> what it said."""
        self.hang = ""
        """The hang that is about to be ended, as a sentence, until ``hang_shown_until``."""
        self.hang_shown_until = 0.0
        self._restored: dict[int, tuple[int, float]] = {}
        """Rank -> bytes of its state that are there, and when the newest of them came."""

    def _recall(self, memory: Memory) -> None:
        """Take over what the driver before knew of the run."""
        self.cost = RecoveryCost(memory.recoveries)
        self.crash_loop = CrashLoopBreaker(self.limits.max_crashes, memory.crashes, memory.causes)
        self.copies = Copies(memory.bad_checkpoints, memory.bad_snapshots)
        self.failures = Failures(memory.failures)
        self.rollbacks, self.answered = memory.rollbacks, memory.answered
        self.rollback = memory.rollback
        """(step, generation): the user wants this checkpoint back in a later generation."""
        self.marked = memory.marked
        """The newest generation that is recorded in the checkpoints folder."""
        self.spike = memory.spike
        """Position of the data behind a spike from which the run goes back, until it steps there;
        0 without one."""
        self.passes = {step: (samples, count) for step, samples, count in memory.passes}
        """Step of a checkpoint -> where its data continue, and how often spikes led back to it."""
        self.waited_s, self.wait_seen_at = memory.waited_s, 0.0
        """How long a node with ranks has been missing, and up to when that was counted."""
        self.drains = tuple(drain for drain in memory.drains if drain[0] in self.fleet.nodes)
        """Nodes that are about to leave, as a successor must know them."""
        self.machines = MachineOrders(
            self._unix_s,
            kept=(order for order in memory.machine_orders if order[0] in self.fleet.nodes),
            begun=memory.machines_ordered,
            notes=memory.machine_notes,
            leaving=memory.leaving,
        )
        kept = (self.drains, self.machines.kept)
        self.is_memory_stale = kept != (memory.drains, memory.machine_orders)

    def _recall_nodes(self, memory: Memory) -> None:
        """Take over what the driver before knew of nodes."""
        nodes = self.fleet.nodes
        for number in sorted({*memory.lost, *memory.evicted} & nodes.keys()):
            self.fleet.lose(nodes[number], "evicted" if number in memory.evicted else "")
            nodes[number].is_released = number in memory.released
            why = "evicted" if number in memory.evicted else "it was lost under a driver before"
            self.machines.note_lost(number, why, self.unix_now)
        for number, exclusion, *process in memory.excluded:
            if number in nodes and nodes[number].status == "lost":
                self.fleet.exclude(nodes[number], exclusion)
                nodes[number].excluded_process = (process[0], process[1])
        for number, losses in memory.losses:
            if number in nodes:
                nodes[number].losses = losses
                nodes[number].check_number = losses

    def add_command(self, steer: Steer) -> None:
        """Append a command that ranks apply; an extension counts at once."""
        self.commands.append(steer)
        if steer.operation == "extend":
            self.steps = max(self.steps, steer.count)
        if steer.operation == "rollback" and steer.sequence > self.rollbacks:
            self.unchecked = steer
            self.effects.forget(CheckCheckpoint)

    @property
    def rollback_step(self) -> int:
        """Step of the checkpoint that the user wants back, -1 for none."""
        return self.rollback[0] if self.rollback else -1

    def end_rollback(self) -> None:
        """It was carried out or given up."""
        if self.rollback is not None:
            self.rollback, self.is_memory_stale = None, True

    @property
    def is_pause_wanted(self) -> bool:
        """Whether ranks that apply all commands are paused."""
        wanted = (c.operation for c in reversed(self.commands) if c.operation in PAUSING)
        return next(wanted, "") == "pause"

    @property
    def unix_now(self) -> float:
        """The wall-clock time when this driver began, and how long its own clock has run since."""
        return self._unix_s + self.clock.now

    # ---- phases ---------------------------------------------------------------------------------
    def enter(self, phase: str) -> None:
        """Begin a phase; its limit is counted from now on.

        But gathering that is taken up again before a generation has begun continues to count: a
        node whose workers die one after the other must not hold the run forever.

        Raises:
            ImpossibleTransitionError: no event leads from the present phase to this one.
        """
        transitions.check(self.phase, phase)
        is_again = phase == "gathering" and self.phase in ("reading", "choosing", "beginning")
        self.phase = phase
        self.since = self.waited_since = self.clock.now
        if is_again:
            self.waited_since = self.gathered_since
        elif phase == "gathering":
            self.gathered_since = self.clock.now
        self.orders.clear()
        self._restored.clear()

    def note_restored(self, rank: int, view: WorkerBeat) -> None:
        """Note whether more of the rank's state is there than before."""
        known, _ = self._restored.get(rank, (0, 0.0))
        if view.generation == self.generation and view.restored_bytes > known:
            self._restored[rank] = (view.restored_bytes, self.clock.now)

    def restored_at(self, rank: int) -> float:
        """When more of the rank's state was last there, at first the beginning of the phase."""
        _, at = self._restored.get(rank, (0, self.since))
        return at

    def fence(
        self, reason: str, *, is_symptom: bool = False, is_counted: bool = True
    ) -> list[Action]:
        """End the generation and start a recovery.

        A symptom is what a surviving rank noticed; the cause may be reported later, or never."""
        step = self.step
        if not self.members.vacant:  # a rank that died may have been the one that reports
            self.answered = max(self.answered, self.applied)
        self.enter("leaving")
        self.cost.begin(self.clock.now)
        self.crash_loop.fenced(reason, is_counted=is_counted)
        self.is_memory_stale = True
        fields = {
            "generation": self.generation,
            "step": step,
            "reason": reason,
            "is_symptom": is_symptom,
        }
        return [Log("fence", fields)]

    def finish(self, outcome: str, detail: str = "") -> list[Action]:
        """End the run."""
        self.enter("over")
        self.outcome, self.detail = outcome, detail
        return self.effects.ask(Finish(outcome, detail))

    @property
    def step(self) -> int:
        """Completed steps: the least of all nodes whose workers are in the current generation."""
        return min(
            (
                node.step
                for node in self.fleet.nodes.values()
                if node.ranks and node.workers and node.generation == self.generation
            ),
            default=self.restore.step,
        )

    @property
    def applied(self) -> int:
        """Newest command that every member has applied."""
        views = (self.fleet.worker(worker) for worker in self.members.workers.values())
        return min((view.applied for view in views if view is not None), default=0)

    # ---- workers --------------------------------------------------------------------------------
    def lose_worker(self, name: str, reason: str, *, is_blamed: bool = True) -> list[Action]:
        """The worker is dead or as good as dead: it is killed where it still lives.

        Args:
            is_blamed: whether its loss is a cause that the brake counts, and not a consequence.
        """
        if self.fleet.living(name) is None:
            return []
        self.fleet.mark_for_kill(name)
        return self.lost_worker(name, reason, is_blamed=is_blamed)

    def lost_worker(self, name: str, reason: str, *, is_blamed: bool = True) -> list[Action]:
        """The fleet knows already that this one is gone: draw the consequences."""
        rank = self.members.rank_of.get(name)
        actions: list[Action] = [
            Log(
                "worker_lost",
                {"worker": name, "rank": rank, "reason": reason, "generation": self.generation},
            )
        ]
        if rank is None:
            return actions
        self.members.update(rank, None)
        cause = f"rank {rank} is lost: {reason}"
        if is_blamed and self.phase in ("joining", "running", "leaving"):
            self.crash_loop.blame(cause, cause)
            self.count_failure(rank, reason)
        return actions + self.interrupted(cause)

    def count_failure(self, rank: int, cause: str, *, is_error: bool = False) -> None:
        """Note that the rank ended the generation, against its node."""
        node = self.fleet.rank_nodes[rank]
        failure = Failure(node, self.generation, self.clock.now, cause, is_error, self.restore.step)
        self.failures.add(failure)
        self.is_memory_stale = True

    def is_flaky(self, node: int) -> bool:
        """Whether the ranks of this node keep failing, unlike those of others."""
        return self.failures.excess(node, self.clock.now) >= self.limits.max_node_failures

    @property
    def source(self) -> str:
        """Digest of the code that the run's ranks compute with; empty: any will do."""
        return self.fleet.source

    def interrupted(self, reason: str, *, is_counted: bool = True) -> list[Action]:
        """A member cannot go on: leave the generation, or gather again if none has begun."""
        if self.phase in ("joining", "running"):
            return self.fence(reason, is_counted=is_counted)
        if self.phase in ("reading", "choosing", "beginning"):
            self.enter("gathering")
        return []

    def view(self, rank: int) -> WorkerBeat | None:
        """The newest beat of the rank's worker, None if it is not alive."""
        return self.fleet.living(self.members.workers.get(rank))

    # ---- nodes ----------------------------------------------------------------------------------
    def lose_node(self, number: int, reason: str, *, exclusion: str = "") -> list[Action]:
        """Give a node up. Its ranks stay its own until a spare takes them over."""
        node = self.fleet.nodes[number]
        self.is_memory_stale = True
        if node.status == "lost":
            if node.exclusion != "ordered":
                self.fleet.exclude(node, exclusion or node.exclusion)
            return []
        node.is_released = False
        self.machines.note_lost(number, reason, self.unix_now)
        for name in self.fleet.lose(node, exclusion):
            if (rank := self.members.rank_of.get(name)) is not None:
                self.members.update(rank, None)
        fields: dict[str, Any] = {"node": number, "reason": reason}
        if exclusion == "verdict":
            fields["is_bad"] = True
        actions: list[Action] = [Log("node_lost", fields)]
        if node.ranks:
            is_counted = exclusion != "evicted"
            actions += self.interrupted(f"node {number} is lost: {reason}", is_counted=is_counted)
        return actions

    def lost_carriers(self) -> list[int]:
        """Numbers of the lost nodes that carry ranks, sorted."""
        return sorted(self.fleet.lost_carriers)

    # ---- memory ---------------------------------------------------------------------------------
    @property
    def memory(self) -> Memory:
        """What a successor must know."""
        lost = [node for node in self.fleet.nodes.values() if node.status == "lost"]
        # a successor does not know whether an order is still carried out
        orders = self.machines.orders
        excluded = {
            n.number: orders[n.number].exclusion if n.exclusion == "ordered" else n.exclusion
            for n in lost
        }
        return Memory(
            crashes=self.crash_loop.crashes,
            causes=self.crash_loop.causes,
            lost=tuple(node.number for node in lost if excluded[node.number] != "evicted"),
            evicted=tuple(node.number for node in lost if excluded[node.number] == "evicted"),
            released=tuple(node.number for node in lost if node.is_released),
            bad_checkpoints=tuple(sorted(self.copies.bad_checkpoints)),
            marked=self.marked,
            bad_snapshots=tuple(sorted(self.copies.bad_snapshots)),
            excluded=tuple(
                (n.number, excluded[n.number], *n.excluded_process)
                for n in lost
                if excluded[n.number]
            ),
            machine_orders=self.machines.kept,
            machines_ordered=self.machines.begun,
            machine_notes=tuple(self.machines.notes.items()),
            leaving=tuple(self.machines.leaving),
            rollback=self.rollback,
            rollbacks=self.rollbacks,
            spike=self.spike,
            passes=tuple((step, *passed) for step, passed in self.passes.items()),
            drains=self.drains,
            answered=self.answered,
            failures=self.failures.kept,
            waited_s=self.waited_s // 60.0 * 60.0,
            losses=tuple((n.number, n.losses) for n in self.fleet.nodes.values() if n.losses),
            recoveries=self.cost.durations,
        )
