"""Nodes, workers and connections of the model, and what a tick of 0.1 s does to them."""

from __future__ import annotations

import random

from headway.common.wire.messages.driver import NodeBeat, Relay, WorkerGone
from headway.common.wire.messages.executor import (
    DriverBeat,
    KillWorker,
    LeaveReason,
    LeftGeneration,
    ReadSeals,
    RestartService,
    StoreOpened,
    ToWorker,
)
from headway.common.wire.messages.worker import Assign, Steer, SteerOperation
from headway.controller.decisions.events import (
    BeginGeneration,
    CommandQueued,
    Finish,
    VerdictReceived,
)
from headway.controller.decisions.state import RunState
from headway.testkit.trainer.cluster_model.network import Network
from headway.testkit.trainer.cluster_model.node import FakeNode, FakeWorker
from headway.testkit.trainer.cluster_model.shell import LIMITS, RANKS, STEPS, Disk, Driver
from headway.trainer.config import RecoveryConfig

TICK_S = 0.1
FROZEN_S = 2.0
"""Time that the monitor takes to blame a frozen worker."""
LEASE_S = 0.5
"""Time that an executor takes to find a new driver."""


class FakeCluster:
    """Nodes 0 and 1 carry two ranks each, the others are spares; a step takes one tick."""

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        nodes: int = 3,
        limits: RecoveryConfig = LIMITS,
        steps: int = STEPS,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.network = Network(self.random, loss=loss)
        self.nodes = {number: FakeNode(number) for number in range(nodes)}
        self.disk, self.limits, self.steps = Disk(), limits, steps
        self.repeated: list[int] = []
        self.max_step = 0
        self.restore_s = 0.0
        """How long a rank restores a state that is not in its arena."""
        self.frozen_at: dict[str, float] = {}
        self.verdicts: list[VerdictReceived] = []
        self.opened: dict[int, str] = {}
        """Generation -> the worker that opened its store."""
        self.old_drivers: list[Driver] = []
        self._count = 0
        self.driver = self._new_driver()

    # ---- what tests look at ---------------------------------------------------------------------
    @property
    def state(self) -> RunState:
        return self.driver.state

    @property
    def finished(self) -> Finish | None:
        return self.disk.finished

    @property
    def journal(self) -> list[BeginGeneration]:
        return self.disk.journal

    @property
    def total(self) -> int:
        """Steps of the whole run, with every extension that was accepted."""
        return self._total(len(self.disk.commands))

    def _total(self, agreed: int) -> int:
        commands = self.disk.commands[:agreed]
        return max(self.steps, *(c.count for c in commands if c.operation == "extend"), 0)

    def members(self) -> list[FakeWorker]:
        """Workers that were given a rank."""
        return [w for n in self.nodes.values() for w in n.workers.values() if w.rank >= 0]

    def run(self, ticks: int) -> None:
        """Let time pass, at most until the run is over."""
        for _ in range(ticks):
            if self.finished is None:
                self.tick()

    # ---- disturbances ---------------------------------------------------------------------------
    def kill(self, worker: FakeWorker) -> None:
        """SIGKILL."""
        for number, node in self.nodes.items():
            if node.workers.pop(worker.name, None) and node.is_up:
                gone = WorkerGone(
                    node=number,
                    worker=worker.name,
                    pid=worker.pid,
                    rank=worker.rank,
                    generation=worker.generation,
                    reason="killed",
                )
                self._to_driver(number, gone)

    def lose_node(self, number: int) -> None:
        """The machine is lost permanently."""
        self.nodes[number].wipe()
        self.nodes[number].lost = True

    def new_driver(self, *, old_for_s: float = 0.0) -> None:
        """The driver is replaced; the older one may not notice for a while."""
        if old_for_s:
            self.driver.asleep_until = 0.0
            self.driver.ends_at = self.now + old_for_s
            self.old_drivers.append(self.driver)
        self.driver = self._new_driver()

    def command(self, operation: SteerOperation, count: int = 0) -> None:
        """A command of the user."""
        steer = Steer(sequence=len(self.disk.commands) + 1, operation=operation, count=count)
        self.disk.commands.append(steer)
        self.driver.inbox.append(CommandQueued(steer))

    def judge(self, response: str, node: int, **about: object) -> None:
        """A verdict of the monitor, repeated until it is answered."""
        verdict = VerdictReceived(
            id=f"v{len(self.verdicts)}", revision=1, kind="test", response=response, node=node
        )
        for name, value in about.items():
            object.__setattr__(verdict, name, value)
        self.verdicts.append(verdict)

    # ---- one tick of everything -----------------------------------------------------------------
    def tick(self) -> None:
        """A tenth of a second."""
        self.now = round(self.now + TICK_S, 1)
        for node in self.nodes.values():
            self._tick_node(node)
        self._step_workers()
        self._watch_frozen()
        for number, to_driver, message in self.network.arrived(self.now):
            if not to_driver:
                self._on_order(self.nodes[number], message)
            elif (driver := self._driver_of(message[0])) is not None:
                driver.inbox.append(message[1])
                if isinstance(message[1], NodeBeat):
                    self._greet(driver, number)
        for driver in self.old_drivers:
            driver.tick(self.now, TICK_S)
        self.old_drivers = [d for d in self.old_drivers if d.ends_at > self.now]
        self.driver.tick(self.now, TICK_S)

    def _tick_node(self, node: FakeNode) -> None:
        node.wake(self.now)
        if not node.is_up:
            return
        found = self.now - self.driver.began_at >= LEASE_S or node.epoch == 0
        if found and node.epoch < self.driver.start.epoch:
            node.epoch, node.known = self.driver.start.epoch, -1
        self._refill(node)
        if (beat := node.beat(self.now)) is not None:
            self._to_driver(node.number, beat)

    def _refill(self, node: FakeNode) -> None:
        if not self.state.refill or not node.can_fork:
            return
        wanted = 1 + (2 if self.state.is_active(node.number) else 0)
        while len(node.workers) < wanted:
            name = f"n{node.number}w{self._count}"
            self._count += 1
            node.workers[name] = FakeWorker(name)

    def _watch_frozen(self) -> None:
        for node in self.nodes.values():
            for worker in node.workers.values():
                if not worker.frozen or worker.status == "idle":
                    continue
                at = self.frozen_at.setdefault(worker.name, self.now)
                if self.now - at > FROZEN_S:
                    self.judge("kill_worker", node.number, pid=worker.pid)
                    self.frozen_at[worker.name] = self.now + 5.0
        if round(self.now * 10) % 10 == 0:
            self.verdicts = [v for v in self.verdicts if not self.driver.answers.get(v.id)]
            self.driver.inbox += self.verdicts

    # ---- steps ----------------------------------------------------------------------------------
    def _step_workers(self) -> None:
        self._go_on_restoring()
        inside = [w for w in self.members() if w.status in ("joining", "restored", "running")]
        newest = max((w.generation for w in inside), default=-1)
        ready = [
            w
            for w in inside
            if w.generation == newest
            and not w.frozen
            and w.aborted < newest
            and w.restoring_s <= 0.0
        ]
        if {w.rank for w in ready} == set(RANKS) and self._know_store(ready, newest):
            steps = {w.step for w in ready}
            assert len(steps) == 1, f"ranks of one generation are at different steps {steps}"
            self._complete(ready, steps.pop() + 1)
        elif len(ready) < len(RANKS) and newest >= 0:
            for worker in ready:  # a peer is missing: gloo reports a broken connection
                if worker.status == "running" and self.random.random() < 0.5:
                    self._leave(worker, "peer")

    def _go_on_restoring(self) -> None:
        for worker in self.members():
            is_inside = worker.status == "joining" and worker.store == worker.generation
            if is_inside and not worker.frozen and worker.restoring_s > 0.0:
                worker.restored_bytes += 1
                worker.restoring_s -= TICK_S
                if worker.restoring_s <= 0.0:
                    worker.status = "restored"

    def _know_store(self, ready: list[FakeWorker], generation: int) -> bool:
        return all(w.status == "running" or w.store == generation for w in ready)

    def _complete(self, ready: list[FakeWorker], step: int) -> None:
        agreed = min(w.command for w in ready)
        operations = [c.operation for c in self.disk.commands[:agreed]]
        last = [o for o in operations if o in ("pause", "resume")][-1:]
        paused = last == ["pause"] and "stop" not in operations
        for worker in ready:
            worker.applied, worker.paused = agreed, paused
            if paused:
                worker.status = "running"
        if paused:
            return
        if step <= self.max_step:
            self.repeated.append(step)
        self.max_step = max(self.max_step, step)
        ends = step >= self._total(agreed) or "stop" in operations
        for worker in ready:
            worker.step, worker.status = step, "finished" if ends else "running"
            home = self._home(worker)
            home.arenas[worker.rank] = {step, step - 1}
            home.flipped -= {(worker.rank, step)}
        if step % 5 == 0 and not self.disk.is_elsewhere:
            self.disk.durable[step] = True

    def _home(self, worker: FakeWorker) -> FakeNode:
        return next(n for n in self.nodes.values() if worker.name in n.workers)

    def _leave(self, worker: FakeWorker, reason: LeaveReason, **more: object) -> None:
        worker.status = "left"
        left = LeftGeneration(
            worker=worker.name,
            generation=worker.generation,
            rank=worker.rank,
            reason=reason,
            detail=str(more.pop("detail", "")),
            **more,  # type: ignore[arg-type]
        )
        number = self._home(worker).number
        self._to_driver(number, Relay(node=number, left=left))

    # ---- lines ----------------------------------------------------------------------------------
    def _new_driver(self) -> Driver:
        def send(number: int, message: object) -> None:
            self.network.send(self.now, number, message, to_driver=False)

        return Driver(
            self.disk,
            self.nodes,
            self.random,
            self.now,
            send,
            limits=self.limits,
            steps=self.steps,
        )

    def _driver_of(self, epoch: int) -> Driver | None:
        drivers = [self.driver, *self.old_drivers]
        return next((d for d in drivers if d.start.epoch == epoch), None)

    def _to_driver(self, number: int, message: object) -> None:
        node = self.nodes[number]
        if node.is_up and node.epoch:
            self.network.send(self.now, number, (node.epoch, message), to_driver=True)

    def _greet(self, driver: Driver, number: int) -> None:
        """The answer to a beat. The version is read as the shell reads it: after earlier beats."""
        beat = DriverBeat(
            epoch=driver.start.epoch,
            refill=True,
            active=True,
            known_version=driver.state.known_version(number),
        )
        self.network.send(self.now, number, beat, to_driver=False)

    def _on_order(self, node: FakeNode, message: object) -> None:
        epoch = getattr(message, "epoch", 0)
        if not node.is_up or epoch < node.epoch:
            return
        if epoch > node.epoch:
            node.epoch, node.known = epoch, -1
        match message:
            case DriverBeat():
                node.known = message.known_version
            case ReadSeals():
                self._to_driver(node.number, node.seals(message.generation))
            case RestartService():
                node.services[message.service] = node.services.get(message.service, 0) + 1
            case KillWorker() if message.worker in node.workers:
                self.kill(node.workers[message.worker])
            case ToWorker() if message.worker in node.workers:
                self._on_worker_order(node, node.workers[message.worker], message)

    def _on_worker_order(self, node: FakeNode, worker: FakeWorker, message: ToWorker) -> None:
        if worker.frozen:
            return
        if message.assign is not None:
            self._assigned(node, worker, message.assign)
        if message.store_generation >= 0:
            worker.store = message.store_generation
        if message.steer is not None and message.steer.sequence == worker.command + 1:
            worker.command += 1
        if message.abort_generation is not None and message.abort_generation >= worker.generation:
            worker.aborted = max(worker.aborted, message.abort_generation)
            if worker.status in ("joining", "restored", "running", "finished"):
                self._leave(worker, "aborted")

    def _assigned(self, node: FakeNode, worker: FakeWorker, assign: Assign) -> None:
        begun = [begun.generation for begun in self.journal]
        assert assign.generation in begun, f"generation {assign.generation} is not in the journal"
        if assign.generation <= max(worker.generation, worker.aborted):
            return
        worker.generation, worker.rank, worker.status = assign.generation, assign.rank, "joining"
        worker.step, worker.paused = assign.restore.step, False
        is_near = assign.restore.source == "arena" or self.restore_s == 0.0
        worker.restored_bytes = 0
        worker.restoring_s = 0.0 if is_near else self.restore_s * (1 + assign.rank)
        for command in assign.commands:
            worker.command += command.sequence == worker.command + 1
        if not self._restore(node, worker, assign):
            return
        if assign.rank == 0:
            opened = StoreOpened(generation=assign.generation, host="h", port=1, secret="s")
            self._to_driver(node.number, Relay(node=node.number, store=opened))

    def _restore(self, node: FakeNode, worker: FakeWorker, assign: Assign) -> bool:
        rank, step = assign.rank, assign.restore.step
        if assign.restore.source == "arena":
            if rank in node.damaged or (rank, step) in node.flipped:
                self._leave(worker, "error", detail="wrong digest", bad_snapshot=True)
                return False
            assert step in node.arenas[rank], f"rank {rank} holds {node.arenas[rank]}, not {step}"
            node.arenas[rank] = {s for s in node.arenas[rank] if s <= step}
            return True
        if assign.restore.source == "durable" and not self.disk.durable[step]:
            part, reader = assign.restore.doubted, assign.restore.reader
            if reader in (-1, rank):  # else the others wait for it to join
                self._leave(
                    worker, "error", detail="wrong digest", bad_checkpoint=True, bad_part=part
                )
            return False
        good = [s for s, is_good in self.disk.durable.items() if is_good]
        assert assign.restore.source == "durable" or not good, f"started over beside {good}"
        node.arenas[rank] = {step}
        node.damaged.discard(rank)
        node.flipped = {(r, s) for r, s in node.flipped if r != rank}
        return True
