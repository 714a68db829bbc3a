"""The ranks of a simulated run: they join, restore, step together, and leave."""

from __future__ import annotations

import random
from collections.abc import Callable

from headway.common.wire.message import Message
from headway.common.wire.messages.driver import Relay
from headway.common.wire.messages.executor import (
    LeaveReason,
    LeftGeneration,
    StoreOpened,
    ToWorker,
)
from headway.common.wire.messages.worker import Assign
from headway.testkit.simulation.driver import RANKS, Disk
from headway.testkit.simulation.node import Node
from headway.testkit.simulation.processes import Worker


class Ranks:
    """The workers of all nodes, as far as they train; a step takes one tick."""

    def __init__(
        self,
        nodes: dict[int, Node],
        disk: Disk,
        chance: random.Random,
        steps: int,
        to_driver: Callable[[Node, Message], None],
    ) -> None:
        self._nodes, self._disk, self._random, self._steps = nodes, disk, chance, steps
        self._to_driver = to_driver
        self.repeated: list[int] = []
        self.max_step = 0
        self.restore_s = 0.0
        """How long a rank restores a state that is not in its arena."""

    def total(self, agreed: int) -> int:
        """Steps of the whole run, with every extension among the first commands."""
        commands = self._disk.commands[:agreed]
        return max(self._steps, *(c.count for c in commands if c.operation == "extend"), 0)

    def members(self) -> list[tuple[Node, Worker]]:
        """Living workers that were given a rank, each with its node."""
        return [(n, w) for n in self._nodes.values() for w in n.workers if w.rank >= 0]

    # ---- steps ----------------------------------------------------------------------------------
    def tick(self, dt: float) -> None:
        """Restore, and complete a step if every rank is ready."""
        members = [(n, w) for n, w in self.members() if not w.is_hung]
        self._restore_more([w for _, w in members], dt)
        inside = [(n, w) for n, w in members if w.status in ("joining", "restored", "running")]
        newest = max((w.generation for _, w in inside), default=-1)
        ready = [
            (n, w)
            for n, w in inside
            if w.generation == newest and w.aborted < newest and w.restoring_s <= 0.0
        ]
        if {w.rank for _, w in ready} == set(RANKS) and all(
            w.status == "running" or w.store == newest for _, w in ready
        ):
            steps = {w.step for _, w in ready}
            assert len(steps) == 1, f"ranks of one generation are at different steps {steps}"
            self._complete(ready, steps.pop() + 1)
        elif len(ready) < len(RANKS) and newest >= 0:
            for node, worker in ready:  # a peer is missing: gloo reports a broken connection
                if worker.status == "running" and self._random.random() < 0.5:
                    self._leave(node, worker, "peer")

    def _restore_more(self, workers: list[Worker], dt: float) -> None:
        for worker in workers:
            is_inside = worker.status == "joining" and worker.store == worker.generation
            if is_inside and worker.restoring_s > 0.0:
                worker.restored_bytes += 1
                worker.restoring_s -= dt
                if worker.restoring_s <= 0.0:
                    worker.status = "restored"

    def _complete(self, ready: list[tuple[Node, Worker]], step: int) -> None:
        agreed = min(w.command for _, w in ready)
        operations = [c.operation for c in self._disk.commands[:agreed]]
        last = [o for o in operations if o in ("pause", "resume")][-1:]
        paused = last == ["pause"] and "stop" not in operations
        for _, worker in ready:
            worker.applied, worker.paused = agreed, paused
            if paused:
                worker.status = "running"
        if paused:
            return
        if step <= self.max_step:
            self.repeated.append(step)
        self.max_step = max(self.max_step, step)
        ends = step >= self.total(agreed) or "stop" in operations
        for node, worker in ready:
            worker.step, worker.status = step, "finished" if ends else "running"
            node.arenas[worker.rank] = {step, step - 1}
            node.flipped -= {(worker.rank, step)}
        if step % 5 == 0 and not self._disk.is_elsewhere:
            self._disk.durable[step] = True

    def _leave(self, node: Node, worker: Worker, reason: LeaveReason, **more: object) -> None:
        worker.status = "left"
        left = LeftGeneration(
            worker=worker.name,
            generation=worker.generation,
            rank=worker.rank,
            reason=reason,
            **more,  # type: ignore[arg-type]
        )
        self._to_driver(node, Relay(node=node.number, left=left))

    # ---- orders ----------------------------------------------------------------------------------
    def order(self, node: Node, message: ToWorker) -> None:
        """An order that has reached the executor of a node."""
        member = node.guardian.workers.members.get(message.worker)
        worker = node.processes.get(member.process) if member is not None else None
        if not isinstance(worker, Worker) or worker.state != "S" or worker.is_hung:
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
                self._leave(node, worker, "aborted")

    def _assigned(self, node: Node, worker: Worker, assign: Assign) -> None:
        begun = [begun.generation for begun in self._disk.journal]
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
            self._to_driver(node, Relay(node=node.number, store=opened))

    def _restore(self, node: Node, worker: Worker, assign: Assign) -> bool:
        rank, step = assign.rank, assign.restore.step
        if assign.restore.source == "arena":
            if rank in node.damaged or (rank, step) in node.flipped:
                self._leave(node, worker, "error", detail="wrong digest", bad_snapshot=True)
                return False
            assert step in node.arenas[rank], f"rank {rank} holds {node.arenas[rank]}, not {step}"
            node.arenas[rank] = {s for s in node.arenas[rank] if s <= step}
            return True
        if assign.restore.source == "durable" and not self._disk.durable[step]:
            if assign.restore.reader in (-1, rank):  # else the others wait for it to join
                part = assign.restore.doubted
                more = {"detail": "wrong digest", "bad_checkpoint": True, "bad_part": part}
                self._leave(node, worker, "error", **more)
            return False
        good = [s for s, is_good in self._disk.durable.items() if is_good]
        assert assign.restore.source == "durable" or not good, f"started over beside {good}"
        node.arenas[rank] = {step}
        node.damaged.discard(rank)
        node.flipped = {(r, s) for r, s in node.flipped if r != rank}
        return True
