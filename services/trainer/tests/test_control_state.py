"""The driver's decisions against a model of a cluster that loses messages, workers, executors and nodes."""

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
from headway.common.wire.messages.worker import Restore, Steer
from headway.trainer.control.events import (
    Action,
    BeginGeneration,
    DurableFound,
    FindDurable,
    Finish,
    Hopeless,
    Log,
    NodeUnavailable,
    RestartNode,
    Suspicion,
    Tell,
    Tick,
)
from headway.trainer.control.nodes import Limits
from headway.trainer.control.restore import choose_restore
from headway.trainer.control.state import RunState
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = Limits(join_s=20.0, out_s=3.0, node_silent_s=1.0, node_lost_s=4.0, max_crashes=50)
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
        ready = [w for w in inside if w.generation == newest and not w.frozen and w.aborted < newest]
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
            w.generation < generation or w.status == "running" or getattr(w, "store", -1) == generation
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
        left = LeftGeneration(worker=worker.name, generation=worker.generation, rank=worker.rank, reason=reason)
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
                case Tell() if self.random.random() >= self.loss and self.nodes[action.node].executor:
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
            assert assign.generation in [begun.generation for begun in self.journal], "assigned before the journal knew"
            if assign.generation > max(worker.generation, worker.aborted):
                worker.generation, worker.rank, worker.status = assign.generation, assign.rank, "joining"
                worker.step = assign.restore.step
                if assign.restore.source == "arena":
                    assert assign.restore.step in node.arenas[assign.rank]
                    node.arenas[assign.rank] = {s for s in node.arenas[assign.rank] if s <= assign.restore.step}
                else:
                    node.arenas[assign.rank] = {assign.restore.step}
                if assign.rank == 0:
                    self._deliver(Relay(node=0, store=StoreOpened(generation=assign.generation, host="h", port=1)))
                    self.opened = assign.generation
        if message.store_generation >= 0:
            worker.store = message.store_generation  # type: ignore[attr-defined]
        if message.steer is not None and message.steer.sequence == worker.command + 1:
            worker.command += 1
        if message.abort_generation is not None and message.abort_generation >= worker.generation:
            worker.aborted = max(worker.aborted, message.abort_generation)
            if worker.status in ("joining", "running", "finished"):
                self._leave(worker, "aborted")


def test_an_undisturbed_run_needs_one_generation_and_finishes() -> None:
    cluster = FakeCluster()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1
    assert cluster.redone == []


def test_a_killed_worker_costs_one_generation_and_at_most_one_completed_step() -> None:
    cluster = FakeCluster()
    cluster.run(12)
    survivors = {w.name for w in cluster.members() if w.rank != 2}
    cluster.kill(next(w for w in cluster.members() if w.rank == 2))
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 2
    assert len(cluster.redone) <= 1
    assert survivors <= {w.name for w in cluster.members()}


def test_a_lost_node_is_replaced_by_the_spare_from_the_durable_step() -> None:
    cluster = FakeCluster()
    cluster.run(15)
    cluster.lose_node(1)
    cluster.run(200)
    assert cluster.finished == Finish("finished", "")
    assert set(cluster.driver.rank_nodes.values()) == {0, 2}
    assert max(cluster.redone) <= cluster.furthest


def test_a_lost_node_without_a_spare_ends_the_run_with_a_reason() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    cluster.lose_node(2)
    cluster.run(20)
    cluster.lose_node(1)
    cluster.run(100)
    assert cluster.finished is not None
    assert cluster.finished.outcome == "failed"
    assert "no spare" in cluster.finished.detail


def test_a_restarted_driver_takes_a_healthy_run_as_it_finds_it() -> None:
    cluster = FakeCluster()
    cluster.run(12)
    cluster.driver = cluster.new_driver()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1


def test_the_same_failure_at_the_same_step_stops_the_run_and_names_it() -> None:
    cluster = FakeCluster()
    cluster.driver.limits = Limits(join_s=20, out_s=3, node_silent_s=1, node_lost_s=4, max_crashes=3)
    for _ in range(200):
        cluster.tick()
        stuck = [w for w in cluster.members() if w.status == "running" and w.rank == 1 and w.step >= 5]
        if stuck and cluster.finished is None:
            cluster.driver.handle(
                Relay(
                    node=0,
                    left=LeftGeneration(
                        worker=stuck[0].name,
                        generation=stuck[0].generation,
                        rank=1,
                        reason="error",
                        detail="ValueError: labels",
                    ),
                ),
                cluster.now,
            )
            for worker in cluster.members():
                worker.step = min(worker.step, 5)
    assert cluster.driver.outcome == "failed"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), loss=st.sampled_from([0.0, 0.1, 0.3]))
def test_any_order_of_faults_ends_with_a_finished_run(seed: int, loss: float) -> None:
    cluster = FakeCluster(loss=loss, seed=seed)
    chaos = random.Random(seed + 1)
    lost = False
    for _ in range(8):
        cluster.run(chaos.randrange(1, 15))
        fault = chaos.choice(["worker", "freeze", "executor", "driver", "two", "node"])
        members = cluster.members()
        if fault in ("worker", "two"):
            for worker in chaos.sample(members, min(len(members), 1 + (fault == "two"))):
                cluster.kill(worker)
        elif fault == "freeze" and members:
            chaos.choice(members).frozen = True
        elif fault == "executor":
            cluster.nodes[chaos.randrange(3)].executor = False
        elif fault == "driver":
            cluster.driver = cluster.new_driver()
        elif not lost and all(node.executor for node in cluster.nodes.values()):
            lost = True
            cluster.lose_node(chaos.choice([0, 1]))
    cluster.loss = 0.0
    cluster.run(1500)
    assert cluster.finished == Finish("finished", ""), (cluster.driver.phase, cluster.driver.generation)
    generations = [begun.generation for begun in cluster.journal]
    assert generations == sorted(set(generations))


def test_a_fault_of_the_users_before_the_first_generation_ends_the_run_with_its_reason() -> None:
    cluster = FakeCluster()
    assert cluster.driver.handle(Hopeless("user_error: install numpy"), 0.1) == [
        Finish("failed", "user_error: install numpy")
    ]
    running = FakeCluster()
    running.run(10)
    assert not [a for a in running.driver.handle(Hopeless("late"), running.now) if isinstance(a, Finish)]


def test_the_restore_point_is_the_newest_step_that_every_rank_holds() -> None:
    assert choose_restore(range(2), {0: (4, 5), 1: (5, 6)}, None) == Restore(source="arena", step=5)
    assert choose_restore(range(2), {0: (4, 5)}, (3, "f")) == Restore(source="durable", step=3, folder="f")
    assert choose_restore(range(2), {0: (4,), 1: (3,)}, None) == Restore(source="init", step=0)
    assert choose_restore(range(1), {0: (4,)}, (9, "f")) == Restore(source="durable", step=9, folder="f")


def test_words_of_an_older_generation_change_nothing() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    cluster.kill(cluster.members()[1])
    cluster.run(20)
    driver = cluster.driver
    assert (driver.phase, driver.generation) == ("running", 1)
    rank, worker = next(iter(driver.members.items()))
    view = driver.worker(worker)
    assert view is not None
    late = [
        Relay(node=0, left=LeftGeneration(worker=worker, generation=0, rank=rank, reason="aborted")),
        Suspicion(node=0, pid=view.pid, generation=0, kind="silence"),
        Relay(node=0, store=StoreOpened(generation=0, host="old", port=1)),
    ]
    for event in late:
        assert [a for a in driver.handle(event, cluster.now) if isinstance(a, Log)] == []
    assert (driver.phase, driver.generation) == ("running", 1)
    assert driver.store is None or driver.store[0] != "old"


def test_seals_read_for_an_older_generation_do_not_count() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    driver.phase = "reading"
    driver.sealed.clear()
    driver.handle(Seals(node=0, generation=driver.generation - 1, sealed={0: (99,)}), cluster.now)
    assert driver.sealed == {}


def test_commands_reach_a_worker_in_order_until_it_holds_them_all() -> None:
    cluster = FakeCluster(loss=0.5, seed=3)
    cluster.driver.commands += [Steer(sequence=1, operation="pause"), Steer(sequence=2, operation="resume")]
    cluster.loss = 0.3
    cluster.run(300)
    assert {w.command for w in cluster.members() if w.status != "idle"} <= {0, 1, 2}
    assert cluster.finished is not None
