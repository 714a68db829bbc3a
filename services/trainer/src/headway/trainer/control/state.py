"""The recovery decisions of a run: (state, event, now) -> actions, without sockets, clocks or files.

    gathering --all ranks have a worker--> reading --seals, checkpoint--> joining --all stepped--> running
        ^                                                                    |                        |
        +------------------- all out <-- leaving <--- a member died, left, stopped, was suspected ----+

Messages to workers are level-triggered: what a worker reports is compared with what it should do, and
the difference is said again until it is gone. So a lost message, a restarted executor or a restarted
driver needs no case of its own.
"""

from __future__ import annotations

from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import KillWorker, LeftGeneration, ReadSeals, ToWorker
from headway.common.wire.messages.worker import Assign
from headway.trainer.control.decisions import Decisions, choose_restore
from headway.trainer.control.events import (
    Action,
    BeginGeneration,
    DurableFound,
    FindDurable,
    Hopeless,
    Log,
    NodeUnavailable,
    NotBegun,
    Suspicion,
    Tell,
    Tick,
)

Event = (
    NodeBeat
    | Relay
    | Seals
    | WorkerGone
    | DurableFound
    | NotBegun
    | NodeUnavailable
    | Suspicion
    | Hopeless
    | Tick
)


class RunState(Decisions):
    """One run. ``members`` maps ranks to the workers of the current generation."""

    # ---- the one entry ------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what to do, in order."""
        if self.phase == "over":
            return []
        actions: list[Action] = []
        match event:
            case NodeBeat():
                self._on_beat(event, now)
            case WorkerGone():
                actions += self._lose(event.worker, event.reason, now)
            case Relay(store=opened) if opened is not None and opened.generation == self.generation:
                self.store = (opened.host, opened.port, opened.secret)
            case Relay(left=left) if left is not None:
                actions += self._on_left(left, now)
            case Seals() if event.generation == self.generation and self.phase == "reading":
                self.sealed[event.node] = dict(event.sealed)
            case DurableFound() if self.phase == "choosing":
                actions += self._begin(event, now)
            case NotBegun() if event.generation == self.generation and self.phase == "joining":
                self._enter("gathering", now)
                return []  # the next tick tries again, under a new number
            case NodeUnavailable():
                actions += self._lose_node(event.node, event.reason, now)
            case Hopeless() if self.generation < 0:
                # later the failing rank reports it, and the brake counts
                return self._finish("failed", event.detail, now)
            case Suspicion() if event.generation == self.generation:
                actions += self._suspect(event, now)
            case _:
                pass
        return actions + self._advance(now)

    # ---- what is heard ------------------------------------------------------------------------
    def _on_left(self, left: LeftGeneration, now: float) -> list[Action]:
        if left.generation != self.generation or self.members.get(left.rank) != left.worker:
            return []
        self._mark(left.worker, "out")
        if left.reason == "error":
            self.causes.setdefault(left.detail, f"rank {left.rank} failed: {left.detail}")
        if left.is_fatal:
            return self._finish("failed", f"rank {left.rank}: {left.detail}", now)
        if self.restore.source == "durable" and left.bad_checkpoint:
            self.max_durable = self.restore.step - 1  # an older checkpoint may still be good
        if self.phase not in ("joining", "running"):
            fields = {"worker": left.worker, "rank": left.rank, "reason": left.detail}
            return [Log("worker_failed", fields)] if left.reason == "error" else []
        happened = {"error": "failed", "peer": "lost a peer"}.get(left.reason, left.reason)
        return self._fence(
            f"rank {left.rank} {happened}: {left.detail}", now, is_symptom=left.reason == "peer"
        )

    def _suspect(self, event: Suspicion, now: float) -> list[Action]:
        for worker in self.members.values():
            view = self.worker(worker)
            if view is not None and view.pid == event.pid and self._home(worker) == event.node:
                return self._lose(worker, event.kind, now)
        return []

    def _lose(self, worker: str, reason: str, now: float) -> list[Action]:
        if worker in self.gone:
            return []
        self.gone.add(worker)
        rank = next((r for r, w in self.members.items() if w == worker), None)
        actions: list[Action] = [
            Log(
                "worker_lost",
                {"worker": worker, "rank": rank, "reason": reason, "generation": self.generation},
            )
        ]
        if rank is not None:
            cause = f"rank {rank} is lost: {reason}"
            self.causes[cause] = cause
            if self.phase in ("joining", "running"):
                actions += self._fence(cause, now)
        return actions

    # ---- transitions --------------------------------------------------------------------------
    def _advance(self, now: float) -> list[Action]:
        actions = self._watch_nodes(now)
        if self.phase == "gathering":
            actions += self._gather(now)
        if self.phase == "reading":
            actions += self._read(now)
        if self.phase == "joining":
            actions += self._join(now)
        if self.phase == "running":
            actions += self._run(now)
        if self.phase == "leaving":
            actions += self._leave(now)
        if self.phase != "over":
            actions += [
                self._tell(w.worker, KillWorker(epoch=self.epoch, worker=w.worker))
                for node in self.nodes.values()
                for w in node.workers.values()
                if w.worker in self.gone and self._due(("kill", w.worker), now)
            ]
        return actions

    def _gather(self, now: float) -> list[Action]:
        actions = self._replace_lost(now)
        if self.phase == "over" or any(
            self.nodes[home].status != "active" for home in self.rank_nodes.values()
        ):
            return actions
        if self._adopting:
            self._adopting = False
            return actions + self._adopt(now)
        for rank, home in self.rank_nodes.items():
            if self._alive(self.members.get(rank)):
                continue
            self.members.pop(rank, None)
            free = [
                w
                for w in self.nodes[home].workers.values()
                if w.status in ("idle", "out")
                and w.worker not in self.gone
                and w.worker not in self.members.values()
            ]
            if not free:
                return actions
            # who held the rank before keeps its memory; a worker left over from another rank is the last resort
            self.members[rank] = min(
                free, key=lambda w: (w.rank != rank, w.status != "idle", w.worker)
            ).worker
        self._enter("reading", now)
        self.sealed.clear()
        return actions

    def _adopt(self, now: float) -> list[Action]:
        """A restarted driver takes the run as it finds it."""
        views = [w for node in self.nodes.values() for w in node.workers.values() if w.rank >= 0]
        newest = max((w.generation for w in views), default=-1)
        self.generation = max(self.generation, newest)
        self.members = {
            w.rank: w.worker
            for w in views
            if w.generation == newest
            and w.status != "idle"
            and self.rank_nodes.get(w.rank) == self._home(w.worker)
        }
        if self._all("running", "finished") and newest == self.generation:
            self._enter("running", now)
            return [Log("adopted", {"generation": self.generation})]
        return (
            self._fence("the driver was restarted in the middle of a recovery", now)
            if views
            else []
        )

    def _read(self, now: float) -> list[Action]:
        if not all(self._alive(worker) for worker in self.members.values()):
            self._enter("gathering", now)
            return []
        missing = set(self.rank_nodes.values()) - set(self.sealed)
        if missing:
            return [
                Tell(node, ReadSeals(epoch=self.epoch, generation=self.generation))
                for node in sorted(missing)
                if self._due(("seals", node), now)
            ]
        self._enter("choosing", now)
        return [FindDurable(self.max_durable)]

    def _begin(self, found: DurableFound, now: float) -> list[Action]:
        sealed = {rank: self.sealed[home].get(rank, ()) for rank, home in self.rank_nodes.items()}
        self.restore = choose_restore(self.rank_nodes, sealed, found.checkpoint)
        # never start over beside checkpoints that may be good
        if self.restore.source == "init" and found.trouble:
            return self._finish("failed", f"no snapshot is left and {found.trouble}", now)
        if loop := self._crash_loop():
            return self._finish("failed", loop, now)
        self.generation += 1
        self.store = None
        self._enter("joining", now)
        return [
            BeginGeneration(self.generation, dict(self.rank_nodes)),
            Log(
                "generation",
                {
                    "generation": self.generation,
                    "source": self.restore.source,
                    "step": self.restore.step,
                },
            ),
        ]

    def _join(self, now: float) -> list[Action]:
        if self._all("running", "finished"):
            self._enter("running", now)
            self.max_durable = None  # a checkpoint that proved corrupt is superseded by now
            return [Log("stepping", {"generation": self.generation, "step": self.step})]
        if now - self.since > self.limits.join_timeout_s and not self._all(
            "restored", "running", "finished"
        ):
            return self._join_failed(now)
        actions = self._steer(now)
        for rank, worker in self.members.items():
            view = self.worker(worker)
            if (
                view is not None
                and view.generation < self.generation
                and self._due(("assign", worker), now)
            ):
                assign = Assign(
                    generation=self.generation,
                    rank=rank,
                    restore=self.restore,
                    commands=tuple(self.commands),
                )
                actions.append(
                    self._tell(worker, ToWorker(epoch=self.epoch, worker=worker, assign=assign))
                )
            elif (
                view is not None
                and view.status == "joining"
                and self.store is not None
                and self._due(("store", worker, self.generation), now)
            ):
                actions.append(
                    self._tell(
                        worker,
                        ToWorker(
                            epoch=self.epoch,
                            worker=worker,
                            store_generation=self.generation,
                            store_host=self.store[0],
                            store_port=self.store[1],
                            store_secret=self.store[2],
                        ),
                    )
                )
        return actions

    def _join_failed(self, now: float) -> list[Action]:
        late = {
            r: w
            for r, w in self.members.items()
            if not self._is(w, "restored", "running", "finished")
        }
        limit_s = self.limits.join_timeout_s
        actions = self._fence(f"ranks {sorted(late)} did not restore within {limit_s} s", now)
        for worker in late.values():
            view = self.worker(worker)
            # it never answered: no abort will reach it
            if view is not None and view.generation < self.generation:
                actions += self._lose(worker, "did not join", now)
        return actions

    def _run(self, now: float) -> list[Action]:
        if self._all("finished"):
            stopped = self.step < self.steps
            return self._finish("stopped" if stopped else "finished", "", now)
        left = [
            rank
            for rank, worker in self.members.items()
            if not (self._alive(worker) and self._inside(worker))
        ]
        if left:
            return self._fence(f"ranks {left} left and their word was lost", now)
        return self._steer(now)

    def _steer(self, now: float) -> list[Action]:
        """Give the workers the commands that they do not hold yet."""
        actions: list[Action] = []
        for worker in self.members.values():
            view = self.worker(worker)
            if view is None or view.status not in ("restored", "running"):
                continue
            actions += [
                self._tell(worker, ToWorker(epoch=self.epoch, worker=worker, steer=steer))
                for steer in self.commands[view.command :]
                if self._due(("steer", worker, steer.sequence), now)
            ]
        return actions

    def _leave(self, now: float) -> list[Action]:
        waiting = [
            w
            for node in self.nodes.values()
            for w in node.workers  # strays of older generations too
            if w not in self.gone and self._inside(w)
        ]
        if not waiting:
            self._enter("gathering", now)
            return self._gather(now) + (self._read(now) if self.phase == "reading" else [])
        actions: list[Action] = []
        limit_s = self.limits.out_timeout_s
        if now - self.since > limit_s:
            for worker in waiting:
                actions += self._lose(worker, f"did not leave within {limit_s} s", now)
            return actions
        return [
            self._tell(
                worker, ToWorker(epoch=self.epoch, worker=worker, abort_generation=self.generation)
            )
            for worker in waiting
            if self._due(("abort", worker, self.generation), now)
        ]
