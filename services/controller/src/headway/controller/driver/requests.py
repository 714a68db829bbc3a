"""What people ask of a run: its status, steering for the workers, drills, planned ends of nodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from headway.common.errors import BusyError, InputError
from headway.common.plan.crossings import dp_pairs
from headway.common.wire.messages.driver import (
    ANNOUNCED,
    Accepted,
    Command,
    GetStatus,
    RankState,
    RankStatus,
    Status,
)
from headway.common.wire.messages.executor import Inject
from headway.common.wire.messages.worker import Steer, SteerOperation
from headway.controller.decisions.events import (
    CheckWanted,
    CommandQueued,
    DrainNode,
    EvictNode,
    Input,
    Tick,
)
from headway.controller.decisions.members import MISSING
from headway.controller.decisions.state import RunState
from headway.controller.driver.connections import Connections
from headway.controller.faults import faults
from headway.controller.faults.inside import check_layout
from headway.controller.journal.writer import JournalWriter
from headway.trainer.config import RunConfig, check_name, check_sample, check_setting

MOST_STEPS = 10**9
MOST_COMMANDS = 8000
MOST_WAITING_TOKENS = 50_000
"""All commands travel in one message, of 1 MiB at most, to a worker that joins."""
MAX_ANSWERED = 256
"""Ids of carried out commands that are remembered, beside those in the journal."""
JOURNAL_LIMIT_S = 0.5
"""How long a request waits for the journal; meanwhile nothing else is handled."""
REMEDY_OF_REFUSAL = "see `headway status`; add a node or stop the run"
MOST_NOTICE_S = 86_400
MAX_LISTED = 4096  # ranks of one status


class Requests:
    """The driver's handlers of ``Command`` and ``GetStatus``.

    Args:
        name: of the run.
        config: of the run.
        state: decides.
        journal: commands are durable before they are accepted.
        handle: lets the state decide on an event, and acts.
        note: keeps an event in the journal.
        over: outcome and reason of a run that is over, else two empty texts.
        num_skipped: steps skipped so far.
    """

    connections: Connections
    """Set once the server listens."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        state: RunState,
        journal: JournalWriter,
        *,
        handle: Callable[[Input], None],
        note: Callable[[str, dict[str, Any]], None],
        over: Callable[[], tuple[str, str]],
        num_skipped: Callable[[], int],
    ) -> None:
        self._name, self._config, self._state, self._journal = name, config, state, journal
        self._handle, self._note, self._over = handle, note, over
        self._num_skipped = num_skipped
        self._crossings: tuple[dict[int, int], tuple[int, int]] = ({}, (0, 0))
        self._answered: deque[str] = deque(maxlen=MAX_ANSWERED)

    def take(self, message: Command, _peer: bytes) -> Accepted:
        """Carry a command out, or note it for the workers; a repeated id changes nothing.

        Raises:
            InputError: an unknown fault, target or node; a value that cannot be set.
            BusyError: the journal cannot be written now.
        """
        if self._state.phase == "over":
            if message.operation == "stop":
                return Accepted(sequence=0)  # it ends already
            raise InputError(
                f"the run is {self._state.outcome}", remedy="`headway runs` shows how to resume it"
            )
        match message.operation:
            case "inject":
                carry_out = self._inject
            case "evict":
                carry_out = self._evict
            case "drain":
                carry_out = self._drain
            case "check":
                carry_out = self._check
            case steered:
                return Accepted(sequence=self._steer(message, steered))
        if message.id not in self._answered:
            carry_out(message)
            self._answered.append(message.id)
        return Accepted(sequence=0)

    # ---- steering -----------------------------------------------------------------------------
    def _steer(self, message: Command, operation: SteerOperation) -> int:
        steer, is_new = self._durable(message.id, self._checked(message, operation))
        if is_new:
            self._handle(Tick())
        return steer.sequence

    def _checked(self, message: Command, operation: SteerOperation) -> Steer:
        """What the ranks get of a command.

        Raises:
            InputError: a value that cannot be used.
        """
        count, known = message.count, self._state.commands
        if len(known) >= MOST_COMMANDS and operation != "stop":
            raise InputError(
                f"the run has reached the limit of {MOST_COMMANDS} commands",
                remedy="continue with a fork: `headway fork`",
            )
        match operation:
            case "set":
                check_setting(message.name, message.value, self._config, force=message.force)
            case "unset":
                check_name(message.name)
            case "extend":
                count = self._state.steps + message.count  # of the whole run: may be repeated
                if message.count < 1 or count > MOST_STEPS:
                    raise InputError(
                        f"cannot extend the run by {message.count} steps",
                        remedy="give a number of additional steps, from 1 on",
                    )
            case "sample":
                check_sample(message.tokens, message.count, message.value, self._config)
                waiting = sum(len(one.tokens) for one in known[self._state.applied :])
                if waiting + len(message.tokens) > MOST_WAITING_TOKENS:
                    raise BusyError(
                        f"prompts of {waiting} tokens are still waiting",
                        remedy="try again when they are done",
                    )
            case "rollback":
                count = message.step
                if message.step < 1:
                    raise InputError(
                        f"there is no checkpoint of step {message.step}",
                        remedy="`headway ckpt ls` lists the checkpoints",
                    )
        return Steer(
            sequence=0,
            operation=operation,
            name=message.name,
            value=message.value,
            count=count,
            tokens=message.tokens,
        )

    def _durable(self, command_id: str, steer: Steer) -> tuple[Steer, bool]:
        """The command once it is in the journal, and whether it is new."""
        is_there, found = threading.Event(), []

        def add(journal: Any) -> tuple[Steer, bool]:
            result: tuple[Steer, bool] = journal.add_command(command_id, steer)
            found.append(result)
            is_there.set()
            return result

        def then(result: tuple[Steer, bool] | None, _error: str) -> None:
            if result is not None and result[1]:
                self._accepted(result[0])

        self._journal.submit(add, then)
        if not is_there.wait(JOURNAL_LIMIT_S):
            why = self._journal.trouble or "the journal does not answer"
            raise BusyError(
                f"cannot record the command within {JOURNAL_LIMIT_S:g} s: {why}",
                remedy="free space in the run's folder, or end the process that locks run.sqlite; "
                "`headway stop --now` needs no journal",
            )
        self._journal.run_callbacks()
        return found[0]

    def _accepted(self, steer: Steer) -> None:
        self._handle(CommandQueued(steer))
        names = ("sequence", "operation", "name", "value", "count")
        self._note("command", {name: getattr(steer, name) for name in names})

    # ---- status -------------------------------------------------------------------------------
    def status(self, message: GetStatus, _peer: bytes) -> Status:
        """The run as the driver sees it now; ``detail`` says why a run is over."""
        state, (outcome, detail) = self._state, self._over()
        first, number = max(0, message.first_rank), max(0, min(message.num_ranks, MAX_LISTED))
        listed = range(first, min(first + number, len(state.fleet.rank_nodes)))
        nodes = {state.fleet.rank_nodes[rank] for rank in listed} | {self.connections.home}
        crossing, pairs = self._dp_pairs()
        return Status(
            name=self._name,
            phase=outcome or state.phase,
            epoch=state.epoch,
            generation=state.generation,
            step=state.step,
            steps=state.steps,
            paused=state.paused,
            commands=len(state.commands),
            applied=state.applied,
            ranks=tuple(self._rank(rank) for rank in listed),
            nodes={node: state.status_of(node) for node in state.nodes},
            services={node: state.services(node) for node in sorted(nodes)},
            detail=detail or state.detail,
            waiting=self._waiting(),
            num_ranks=len(state.fleet.rank_nodes),
            statuses=dict(state.members.statuses),
            skipped=self._num_skipped(),
            troubles=state.troubles(),
            unused=state.unused(),
            checking=tuple(sorted(state.fleet.checks.wanted.keys() & state.unused().keys())),
            is_starting=state.is_loading,
            dp_pairs=pairs,
            dp_crossing=crossing,
            machines=state.machine_sentences(),
        )

    def _dp_pairs(self) -> tuple[int, int]:
        """Those that cross leaf switches, and all; counted again when ranks have moved."""
        fleet = self._state.fleet
        if any(fleet.topology.switches) and self._crossings[0] != fleet.rank_nodes:
            counts = dp_pairs(self._config.parallel.grid, fleet.rank_nodes, fleet.topology)
            self._crossings = dict(fleet.rank_nodes), counts
        return self._crossings[1]

    def _waiting(self) -> str:
        reasons = [self._state.why(), self._state.draining(), self._journal.trouble]
        return "; ".join(reason for reason in reasons if reason)

    def _rank(self, rank: int) -> RankStatus:
        beat = self._state.worker(self._state.members.workers.get(rank))
        worker, pid, step = (beat.worker, beat.pid, beat.step) if beat else ("", 0, 0)
        status: RankState = beat.status if beat else MISSING
        node = self._state.fleet.rank_nodes[rank]
        if status == "running":  # a worker reports changes only; its node also counts steps
            step = max(step, self._state.step_of(node))
        return RankStatus(
            rank=rank,
            node=node,
            worker=worker,
            pid=pid,
            status=status,
            step=step,
            memory_bytes=beat.memory_bytes if beat else 0,
            memory_predicted=beat.memory_predicted if beat else 0,
        )

    # ---- drills and ends of nodes --------------------------------------------------------------
    def _inject(self, message: Command) -> None:
        if message.name == "worker" and message.rank not in self._state.fleet.rank_nodes:
            raise InputError(
                f"rank {message.rank} is not in the run", remedy="give the rank of the worker"
            )
        if message.name == "worker" and self._rank(message.rank).status != "running":
            raise InputError(
                f"rank {message.rank} is not training yet: {self._waiting() or 'it is starting'}",
                remedy="try again when `headway status` shows it as running",
            )
        home = self._state.fleet.rank_nodes.get(message.rank, self.connections.home)
        node = message.node if message.node >= 0 else home
        if node not in self.connections.nodes:
            raise InputError(
                f"node {node} is not connected to the driver",
                remedy=f"use one of {sorted(self.connections.nodes)}",
            )
        faults.check(message.fault, message.name, self._state.services(node))
        check_layout(message.fault, self._config)
        fields = {"target": message.name, "fault": message.fault, "rank": message.rank}
        self._note("injected", {**fields, "node": node})
        self.connections.send(
            node,
            Inject(
                run_id=self._state.run_id,
                epoch=self._state.epoch,
                target=message.name,
                fault=message.fault,
                rank=message.rank,
                duration_s=message.duration_s,
            ),
        )

    def _evict(self, message: Command) -> None:
        refusal = self._state.eviction_refusal(message.node)
        if refusal:
            raise InputError(
                f"node {message.node} cannot be evicted: {refusal}", remedy=REMEDY_OF_REFUSAL
            )
        self._handle(EvictNode(message.node))

    def _check(self, message: Command) -> None:
        refusal = self._state.check_refusal(message.node)
        if refusal:
            raise InputError(
                f"node {message.node} cannot be checked: {refusal}",
                remedy="`headway health check` on the machine runs the same checks",
            )
        self._handle(CheckWanted(message.node))

    def _drain(self, message: Command) -> None:
        refusal = self._state.drain_refusal(message.node)
        if refusal:
            raise InputError(
                f"node {message.node} cannot be drained: {refusal}", remedy=REMEDY_OF_REFUSAL
            )
        if not 0 <= message.duration_s <= MOST_NOTICE_S:
            raise InputError(
                f"a notice of {message.duration_s:g} s is out of range",
                remedy=f"give 0 to {MOST_NOTICE_S} seconds",
            )
        # in the journal first, like any command: a successor of this driver repeats neither
        self._durable(message.id, Steer(sequence=0, operation="checkpoint"))
        is_announced = message.name == ANNOUNCED
        self._handle(DrainNode(message.node, message.duration_s, is_announced))
