"""A model of a cluster for the driver's decisions: it loses messages, workers, executors and nodes."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import (
    KillWorker,
    LeftGeneration,
    ReadSeals,
    StoreOpened,
    ToWorker,
    WorkerBeat,
)
from headway.trainer.config import RecoveryConfig
from headway.trainer.control.events import (
    Action,
    BeginGeneration,
    DurableFound,
    FindDurable,
    Finish,
    NodeUnavailable,
    RestartNode,
    Tell,
    Tick,
)
from headway.trainer.control.state import RunState

LIMITS = RecoveryConfig(
    group_timeout_s=10.0,
    join_timeout_s=20.0,
    out_timeout_s=3.0,
    driver_silent_s=0.5,
    node_silent_s=1.0,
    node_lost_s=4.0,
    max_crashes=50,
)
RANKS = {0: 0, 1: 0, 2: 1, 3: 1}
STEPS = 30


@dataclass
class FakeWorker:
    name: str
    status: str = "idle"
    generation: int = -1
    aborted: int = -1
    rank: int = -1
    step: int = 0
    command: int = 0
    frozen: bool = False

    def beat(self) -> WorkerBeat:
        return WorkerBeat(
            worker=self.name,
            pid=zlib.crc32(self.name.encode()),
            start_ticks=1,
            status=self.status,
            generation=self.generation,
            rank=self.rank,
            step=self.step,
            command=self.command,
            applied=self.command,
        )


@dataclass
class FakeNode:
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    arenas: dict[int, set[int]] = field(default_factory=dict)
    executor: bool = True
    lost: bool = False


class FakeCluster:
    """Three nodes, the last a spare. Time goes in ticks of 0.1 s; a step takes one tick."""

    def __init__(self, loss: float = 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.loss = loss
        self.nodes = {n: FakeNode() for n in range(3)}
        self.count = 0
        self.durable: tuple[int, str] | None = None
        self.journal: list[BeginGeneration] = []
        self.finished: Finish | None = None
        self.redone: list[int] = []
        self.furthest = 0
        self.inbox: list[object] = []
        self.driver = self.new_driver()

    def new_driver(self) -> RunState:
        last = self.journal[-1] if self.journal else None
        return RunState(
            steps=STEPS,
            rank_nodes=dict(last.rank_nodes) if last else RANKS,
            nodes=3,
            limits=LIMITS,
            now=self.now,
            generation=last.generation if last else -1,
            epoch=len(self.journal) + 1,
        )

    # ---- one tick of everything ----------------------------------------------------------------
    def tick(self) -> None:
        self.now += 0.1
        for number, node in self.nodes.items():
            self._refill(number, node)
            if node.executor and not node.lost:
                self._deliver(
                    NodeBeat(
                        node=number,
                        pid=1,
                        services={},
                        workers=tuple(w.beat() for w in node.workers.values()),
                    )
                )
        self._step_workers()
        for event in self.inbox:
            self._carry_out(self.driver.handle(event, self.now))  # type: ignore[arg-type]
        self.inbox.clear()
        self._carry_out(self.driver.handle(Tick(), self.now))

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            if self.finished is None:
                self.tick()

    def members(self) -> list[FakeWorker]:
        return [w for n in self.nodes.values() for w in n.workers.values() if w.rank >= 0]

    def kill(self, worker: FakeWorker) -> None:
        for number, node in self.nodes.items():
            if node.workers.pop(worker.name, None) and node.executor:
                self._deliver(
                    WorkerGone(
                        node=number,
                        worker=worker.name,
                        pid=1,
                        rank=worker.rank,
                        generation=worker.generation,
                        reason="killed",
                    )
                )

    def lose_node(self, number: int) -> None:
        self.nodes[number] = FakeNode(lost=True, executor=False)

    # ---- inside --------------------------------------------------------------------------------
    def _refill(self, number: int, node: FakeNode) -> None:
        if node.lost or not node.executor or not self.driver.refill:
            return
        wanted = 1 + (2 if number in self.driver.rank_nodes.values() else 0)
        while len(node.workers) < wanted:
            name = f"n{number}w{self.count}"
            self.count += 1
            node.workers[name] = FakeWorker(name)

    def _step_workers(self) -> None:
        inside = [w for w in self.members() if w.status in ("joining", "running")]
        newest = max((w.generation for w in inside), default=-1)
        ready = [
            w for w in inside if w.generation == newest and not w.frozen and w.aborted < newest
        ]
        if {w.rank for w in ready} == set(RANKS) and self.store_known(newest):
            step = {w.step for w in ready}
            assert len(step) == 1, f"ranks of one generation stand at different steps {step}"
            self._complete(ready, step.pop() + 1)
        elif len(ready) < 4 and newest >= 0:
            for worker in ready:  # a peer is missing: gloo reports a broken connection
                if worker.status == "running" and self.random.random() < 0.5:
                    self._leave(worker, "peer")

    def store_known(self, generation: int) -> bool:
        return all(
            w.generation < generation
            or w.status == "running"
            or getattr(w, "store", -1) == generation
            for w in self.members()
            if w.status in ("joining", "running")
        )

    def _complete(self, ready: list[FakeWorker], step: int) -> None:
        if step <= self.furthest:
            self.redone.append(step)
        self.furthest = max(self.furthest, step)
        for worker in ready:
            worker.step, worker.status = step, "running" if step < STEPS else "finished"
            self._home(worker).arenas[worker.rank] = {step, step - 1}
        if step % 5 == 0:
            self.durable = (step, f"step-{step}")

    def _home(self, worker: FakeWorker) -> FakeNode:
        return next(n for n in self.nodes.values() if worker.name in n.workers)

    def _leave(self, worker: FakeWorker, reason: str) -> None:
        worker.status = "out"
        left = LeftGeneration(
            worker=worker.name, generation=worker.generation, rank=worker.rank, reason=reason
        )
        self._deliver(Relay(node=0, left=left))

    def _deliver(self, event: object) -> None:
        if self.random.random() >= self.loss:
            self.inbox.append(event)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case BeginGeneration():
                    assert not self.journal or action.generation > self.journal[-1].generation
                    self.journal.append(action)
                case FindDurable():
                    self._carry_out(self.driver.handle(DurableFound(self.durable), self.now))
                case RestartNode():
                    if self.nodes[action.node].lost:
                        self._carry_out(self.driver.handle(NodeUnavailable(action.node), self.now))
                    else:
                        self.nodes[action.node].executor = True
                case Finish():
                    self.finished = action
                case Tell() if (
                    self.random.random() >= self.loss and self.nodes[action.node].executor
                ):
                    self._told(action.node, action.message)
                case _:
                    pass

    def _told(self, number: int, message: object) -> None:
        node = self.nodes[number]
        if isinstance(message, ReadSeals):
            sealed = {rank: tuple(sorted(steps)) for rank, steps in node.arenas.items()}
            self._deliver(Seals(node=number, generation=message.generation, sealed=sealed))
        elif isinstance(message, KillWorker) and message.worker in node.workers:
            self.kill(node.workers[message.worker])
        elif isinstance(message, ToWorker) and message.worker in node.workers:
            self._worker_told(node, node.workers[message.worker], message)

    def _worker_told(self, node: FakeNode, worker: FakeWorker, message: ToWorker) -> None:
        if worker.frozen:
            return
        if message.assign is not None:
            assign = message.assign
            assert assign.generation in [begun.generation for begun in self.journal], (
                "assigned before the journal knew"
            )
            if assign.generation > max(worker.generation, worker.aborted):
                worker.generation, worker.rank, worker.status = (
                    assign.generation,
                    assign.rank,
                    "joining",
                )
                worker.step = assign.restore.step
                if assign.restore.source == "arena":
                    assert assign.restore.step in node.arenas[assign.rank]
                    node.arenas[assign.rank] = {
                        s for s in node.arenas[assign.rank] if s <= assign.restore.step
                    }
                else:
                    node.arenas[assign.rank] = {assign.restore.step}
                if assign.rank == 0:
                    self._deliver(
                        Relay(
                            node=0,
                            store=StoreOpened(generation=assign.generation, host="h", port=1),
                        )
                    )
                    self.opened = assign.generation
        if message.store_generation >= 0:
            worker.store = message.store_generation  # type: ignore[attr-defined]
        if message.steer is not None and message.steer.sequence == worker.command + 1:
            worker.command += 1
        if message.abort_generation is not None and message.abort_generation >= worker.generation:
            worker.aborted = max(worker.aborted, message.abort_generation)
            if worker.status in ("joining", "running", "finished"):
                self._leave(worker, "aborted")
