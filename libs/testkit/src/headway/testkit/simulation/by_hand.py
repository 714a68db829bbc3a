"""Drives the driver's state event by event, for tests that need a certain order of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from headway.common.decide import Action, Done, Log
from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import LeaveReason, LeftGeneration, WorkerBeat
from headway.controller.decisions.events import (
    BeginGeneration,
    DurableFound,
    FindDurable,
    Input,
    Send,
    Start,
    Tick,
)
from headway.controller.decisions.state import RunState
from headway.testkit.simulation.driver import LIMITS, RANKS
from headway.trainer.config import RecoveryConfig

T = TypeVar("T")


class Hand:
    """A run of two nodes with two ranks each and a spare by default. All nodes beat in ``wait``."""

    def __init__(
        self,
        *,
        rank_nodes: dict[int, int] = RANKS,
        nodes: int = 3,
        limits: RecoveryConfig = LIMITS,
        **start: Any,
    ) -> None:
        self.now = 100.0
        self.start = Start(run_id="r", steps=100, rank_nodes=rank_nodes, nodes=nodes, **start)
        self.state = RunState(self.start, limits, self.now)
        self.workers: dict[int, list[WorkerBeat]] = {
            n: [self.idle(n, i) for i in range(len(self.state.fleet.rank_nodes) // 2 + 1)]
            for n in range(nodes)
        }
        self.versions = dict.fromkeys(range(nodes), 0)
        self.incarnation = dict.fromkeys(range(nodes), 1)
        self.silent: set[int] = set()
        self.step = 0
        self.trouble: dict[int, str] = {}

    @staticmethod
    def idle(node: int, index: int) -> WorkerBeat:
        """A standby."""
        pid = 100 * (node + 1) + index
        return WorkerBeat(worker=f"n{node}w{index}", pid=pid, start_ticks=1, status="idle")

    # ---- events ---------------------------------------------------------------------------------
    def send(self, event: Input, after_s: float = 0.0) -> list[Action]:
        """One event; every invariant is checked."""
        self.now += after_s
        actions = self.state.handle(event, self.now)
        self.state.validate()
        return actions

    def beat(self, node: int, **changes: Any) -> list[Action]:
        """A full beat of the node, as it is now."""
        self.versions[node] += 1
        beat = NodeBeat(
            node=node,
            pid=self.incarnation[node],
            version=self.versions[node],
            incarnation=self.incarnation[node],
            workers=tuple(self.workers[node]),
            services={"dataloader": 7, "agent": 8},
            step=self.step,
            trouble=self.trouble.get(node, ""),
            run_id="r",
        )
        return self.send(msgspec.structs.replace(beat, **changes))  # type: ignore[type-var]

    def pulse(self, node: int) -> list[Action]:
        """A beat with only the node's step."""
        return self.send(
            NodeBeat(
                node=node,
                pid=self.incarnation[node],
                version=self.versions[node],
                incarnation=self.incarnation[node],
                step=self.step,
                run_id="r",
            )
        )

    def wait(self, seconds: float) -> list[Action]:
        """Time passes: every node but the silent ones beats, at 2 Hz."""
        actions: list[Action] = []
        for number in range(round(seconds * 10)):
            self.now += 0.1
            if number % 5 == 0:
                for node in self.workers:
                    if node not in self.silent:
                        actions += self.pulse(node)
            actions += self.send(Tick())
        return actions

    def change(self, node: int, index: int, **how: Any) -> None:
        """Another status, generation, ... of a worker, in the next full beat."""
        view = self.workers[node][index]
        self.workers[node][index] = msgspec.structs.replace(view, **how)  # type: ignore[type-var]

    def gone(self, node: int, worker: str, pid: int) -> WorkerGone:
        """The note that a process has ended."""
        return WorkerGone(node=node, worker=worker, pid=pid, rank=0, generation=0, reason="killed")

    def left(self, rank: int, reason: LeaveReason = "error", **more: Any) -> Relay:
        """The note that the rank's worker has left its generation."""
        left = LeftGeneration(
            worker=self.state.members.workers[rank],
            generation=more.pop("generation", self.state.generation),
            rank=rank,
            reason=reason,
            **more,
        )
        return Relay(node=self.state.fleet.rank_nodes[rank], left=left)

    # ---- whole stretches ------------------------------------------------------------------------
    def gather(self) -> list[Action]:
        """Every node beats in full."""
        return [action for node in self.workers for action in self.beat(node)]

    def read(self, *steps: int) -> list[Action]:
        """Every arena holds these steps."""
        actions: list[Action] = []
        for node in sorted(set(self.state.fleet.rank_nodes.values())):
            ranks = [rank for rank, home in self.state.fleet.rank_nodes.items() if home == node]
            sealed = dict.fromkeys(ranks, steps) if steps else {}
            actions += self.send(
                Seals(node=node, generation=self.state.generation, sealed=sealed, run_id="r")
            )
        return actions

    def begin(self, actions: Iterable[Action]) -> list[Action]:
        """The journal takes the generation that ``actions`` want to begin."""
        return self.send(Done(only(actions, BeginGeneration)))

    def join(self, step: int, *, status: str = "running") -> list[Action]:
        """Let every rank be in the current generation, after ``step`` steps.

        Every rank has stepped unless ``status`` says otherwise.
        """
        self.step = step
        for rank, name in self.state.members.workers.items():
            node = self.state.fleet.rank_nodes[rank]
            index = [view.worker for view in self.workers[node]].index(name)
            self.change(
                node,
                index,
                status=status,
                generation=self.state.generation,
                rank=rank,
                step=step,
                command=len(self.state.commands),
            )
        return [a for node in self.workers if node not in self.silent for a in self.beat(node)]

    def run(self, step: int = 1) -> Hand:
        """From the first beats to the first step."""
        self.gather()
        self.read()
        self.begin(self.send(DurableFound(None)))
        self.join(step)
        assert self.state.phase == "running"
        return self

    def run_again(self, step: int = 5) -> Hand:
        """A successor: no worker is left over, and every arena holds this step."""
        self.gather()
        self.read(step)
        actions = self.send(DurableFound(None))
        while not any(isinstance(action, BeginGeneration) for action in actions):
            actions = self.wait(0.1)  # the pause after the same failure at the same step
        self.begin(actions)
        self.join(step + 1)
        return self

    def leave(self) -> list[Action]:
        """Every worker has left."""
        for views in self.workers.values():
            for index, view in enumerate(views):
                if view.status not in ("idle", "left"):
                    views[index] = msgspec.structs.replace(view, status="left")  # type: ignore[type-var]
        return [a for node in self.workers if node not in self.silent for a in self.beat(node)]


def only(actions: Iterable[Action], kind: type[T]) -> T:
    """The one action of this kind."""
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def events(actions: Iterable[Action]) -> list[str]:
    """Names of what is to be logged."""
    return [action.event for action in actions if isinstance(action, Log)]


def sent(actions: Iterable[Action], kind: type[Any]) -> list[Send]:
    """Orders of this kind to executors."""
    return [a for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def asked_for(actions: Iterable[Action]) -> bool:
    """Whether the newest checkpoint is to be looked for."""
    return any(isinstance(action, FindDurable) for action in actions)
