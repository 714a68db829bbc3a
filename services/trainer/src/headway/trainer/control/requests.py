"""What people ask of a run: its status, steering for the workers, drills, eviction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headway.common.errors import InputError
from headway.common.wire.client import Client
from headway.common.wire.messages.driver import Accepted, Command, GetStatus, RankStatus, Status
from headway.common.wire.messages.executor import Inject
from headway.launch.engine import Engine
from headway.trainer.control.events import Action, Log, NodeUnavailable
from headway.trainer.control.journal import Journal
from headway.trainer.control.state import Event, RunState

STEERED = frozenset({"pause", "resume", "stop", "checkpoint", "set", "unset"})


class Requests:
    """The driver's handlers of ``Command`` and ``GetStatus``.

    ``name``: of the run. ``clients``: node -> (endpoint, line to its executor). ``home``: the
    driver's own node. ``act`` carries an action out, ``handle`` lets the state decide on an event,
    ``tick`` lets it act at once.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        state: RunState,
        clients: Mapping[int, tuple[str, Client]],
        engine: Engine,
        *,
        home: int,
        act: Callable[[Action], None],
        handle: Callable[[Event], None],
        tick: Callable[[], None],
    ) -> None:
        self._journal, self._state, self._clients, self._engine = journal, state, clients, engine
        self._name, self._home = name, home
        self._act, self._handle, self._tick = act, handle, tick

    def take(self, message: Command, peer: bytes) -> Accepted:
        """Carry a command out, or note it for the workers; one that comes again under its id changes nothing.

        Raises:
            InputError: an unknown operation, fault, target or node; a value that cannot be set.
        """
        del peer
        if message.operation in STEERED:
            if message.operation in ("set", "unset") and message.name != "lr":
                raise InputError(
                    f"cannot set {message.name!r}", remedy="only lr can be set while a run is live"
                )
            if message.operation == "set" and not 0 < message.value < math.inf:
                raise InputError(
                    f"cannot set lr to {message.value}", remedy="set lr to a number above 0"
                )
            steer, new = self._journal.add_command(
                message.id, message.operation, message.name, message.value
            )
            if new:
                self._state.commands.append(steer)
                self._act(
                    Log(
                        "command",
                        {
                            "sequence": steer.sequence,
                            "operation": steer.operation,
                            "name": steer.name,
                            "value": steer.value,
                        },
                    )
                )
                self._tick()
            return Accepted(sequence=steer.sequence)
        if message.operation == "inject":
            self._inject(message)
        elif message.operation == "evict":
            self._evict(message)
        else:
            raise InputError(
                f"unknown operation {message.operation!r}", remedy="see `headway --help`"
            )
        return Accepted(sequence=0)

    def status(self, message: GetStatus, peer: bytes) -> Status:
        """The run as the driver sees it now; ``detail`` says why a run is over."""
        del message, peer
        state = self._state
        return Status(
            name=self._name,
            phase=state.outcome or state.phase,
            epoch=state.epoch,
            generation=state.generation,
            step=state.step,
            steps=state.steps,
            paused=state.paused,
            commands=len(state.commands),
            applied=state.applied,
            ranks=tuple(self._rank(rank, home) for rank, home in sorted(state.rank_nodes.items())),
            nodes={number: node.status for number, node in state.nodes.items()},
            services={number: node.services for number, node in state.nodes.items()},
            detail=self._journal.fact("detail", ""),
        )

    def _rank(self, rank: int, home: int) -> RankStatus:
        beat = self._state.worker(self._state.members.get(rank))
        worker, pid, status, step = (
            (beat.worker, beat.pid, beat.status, beat.step) if beat else ("", 0, "missing", 0)
        )
        return RankStatus(rank=rank, node=home, worker=worker, pid=pid, status=status, step=step)

    def _inject(self, message: Command) -> None:
        if message.fault not in ("kill", "stop"):
            raise InputError(f"unknown fault {message.fault!r}", remedy="use kill or stop")
        node = (
            message.node
            if message.node >= 0
            else self._state.rank_nodes.get(message.rank, self._home)
        )
        if node not in self._clients:
            raise InputError(f"node {node} is not there", remedy="see `headway status`")
        if message.name == "worker" and message.rank not in self._state.rank_nodes:
            raise InputError(
                f"rank {message.rank} is not in the run", remedy="give the rank of the worker"
            )
        targets = {"executor", *self._state.nodes[node].services}
        if message.name not in {"worker", *targets}:
            raise InputError(
                f"node {node} runs no {message.name!r}",
                remedy=f"use one of {', '.join(sorted(targets))}",
            )
        self._act(
            Log(
                "injected",
                {
                    "target": message.name,
                    "fault": message.fault,
                    "rank": message.rank,
                    "node": node,
                },
            )
        )
        self._clients[node][1].notify(
            Inject(
                epoch=self._journal.epoch,
                target=message.name,
                fault=message.fault,
                rank=message.rank,
            )
        )

    def _evict(self, message: Command) -> None:
        node = self._state.nodes.get(message.node)
        if node is None or node.status == "lost":
            raise InputError(f"node {message.node} is not there", remedy="see `headway status`")
        if message.node in self._state.rank_nodes.values() and not self._state.spare_for(
            message.node
        ):
            raise InputError(
                f"no spare is ready for node {message.node}",
                remedy="stop the run, or add a node first",
            )
        self._act(Log("evicted", {"node": message.node}))
        self._engine.lose_node(message.node)
        self._handle(NodeUnavailable(message.node, "evicted"))
