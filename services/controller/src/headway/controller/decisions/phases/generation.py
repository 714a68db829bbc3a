"""Joining, running, leaving: the life of a generation; and the end of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import WorkerBeat, WorkerState
from headway.common.wire.messages.worker import Assign, Steer
from headway.controller.decisions import spikes
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Finish
from headway.controller.decisions.phases.base import Phase, ranks, seconds

HOLDING: tuple[WorkerState, ...] = ("restored", "running", "finished")
"""Statuses of a worker that has its state."""


class Joining(Phase):
    """The phase in which workers build their groups and restore their state.

    Left once every rank has stepped, or waits in a pause that no command is about to end.
    """

    name = "joining"

    def look(self, core: Core, node: int | None) -> list[Action]:
        is_paused = core.members.num_paused > 0
        is_back = core.members.all("running", "finished")
        if is_back and (core.is_pause_wanted or not is_paused):
            core.enter("running")
            core.is_memory_stale |= core.copies.renewed() | core.cost.end(core.clock.now)
            core.end_rollback()
            spikes.end(core)
            fields = {"generation": core.generation, "step": core.step}
            return [Log("stepping", fields | ({"paused": True} if is_paused else {}))]
        if is_paused:
            core.cost.discard()
        if node is None and not core.orders.is_round_due():
            return []
        workers = _members(core, node)
        actions = [a for rank, view in workers for a in self._lead(core, rank, view)]
        return actions + kill_strays(core, node) + steer(core, node)

    def _lead(self, core: Core, rank: int, view: WorkerBeat) -> list[Action]:
        """What the worker needs next: its rank, then the address of the generation's store."""
        name = view.worker
        if view.generation < core.generation:
            if not core.orders.due("assign", name):
                return []
            assign = Assign(
                generation=core.generation,
                rank=rank,
                restore=core.restore,
                commands=tuple(_slim(c, core.answered) for c in core.commands[view.command :]),
                answered=core.answered,
            )
            return [core.orders.to_worker(name, assign=assign)]
        if view.status == "joining" and core.store is not None and core.orders.due("store", name):
            host, port, secret = core.store
            address = {"store_host": host, "store_port": port, "store_secret": secret}
            return [core.orders.to_worker(name, store_generation=core.generation, **address)]
        return []

    def limit_s(self, core: Core) -> float:
        """Counted for each rank from its newest progress: a large state takes long."""
        limit_s = core.limits.join_timeout_s
        if core.members.all(*HOLDING):
            return math.inf if core.members.num_paused else limit_s
        if core.clock.now - core.waited_since < limit_s:  # then no rank can be late
            return limit_s
        slowest = min(core.restored_at(rank) for rank, _ in _without(core, HOLDING))
        return limit_s + slowest - core.waited_since

    def overdue(self, core: Core) -> list[Action]:
        """End a generation in which a rank took too long to restore its state.

        A rank that has its state may wait for a pause or a long evaluation; one that has none and
        makes no progress holds the others up.
        """
        limit_s = core.limits.join_timeout_s
        late = [
            (rank, view)
            for rank, view in _without(core, HOLDING)
            if core.clock.now - core.restored_at(rank) >= limit_s
        ]
        if not late:
            return []
        silent = [rank for rank, view in late if view is None or view.generation < core.generation]
        actions = core.fence(f"{ranks([r for r, _ in late])} did not restore within {limit_s:g} s")
        for rank in silent:  # they never answered: no abort will reach them
            actions += core.lose_worker(core.members.workers[rank], "did not join", is_blamed=False)
        return actions

    def why(self, core: Core) -> str:
        if late := _without(core, HOLDING):
            silent = [r for r, v in late if v is None or v.generation < core.generation]
            who = ranks(silent or [rank for rank, _ in late])
            what = "answer" if silent else f"restore step {core.restore.step}"
            because = _troubles(core, silent or [rank for rank, _ in late])
            return f"waiting for {who} to {what} for {seconds(core)}{because}"
        if core.members.num_paused:
            return "the run is paused"
        late = _without(core, ("running", "finished"))
        if evaluating := [r for r, view in late if view is not None and view.evaluating]:
            verb = "evaluate" if len(evaluating) > 1 else "evaluates"
            return f"{ranks(evaluating)} {verb} before the first step, for {seconds(core)}"
        waiting = [rank for rank, _ in late]
        because = _troubles(core, waiting)
        return f"waiting for the first step of {ranks(waiting)} for {seconds(core)}{because}"


def _troubles(core: Core, waiting: Iterable[int]) -> str:
    """What is wrong on the nodes of these ranks, to be appended to a sentence."""
    numbers = sorted({core.fleet.rank_nodes[rank] for rank in waiting})
    troubles = ((number, core.fleet.nodes[number].trouble) for number in numbers)
    return "".join(f"; node {number}: {text}" for number, text in troubles if text)


class Running(Phase):
    """Every rank has stepped; left when one of them leaves, or all have finished."""

    name = "running"

    def look(self, core: Core, node: int | None) -> list[Action]:
        if core.members.all("finished"):
            return _finished(core)
        if not core.members.all("joining", *HOLDING):
            left = [rank for rank, _ in _without(core, ("joining", *HOLDING))]
            return core.fence(f"{ranks(left)} left and did not say why")
        if node is None and not core.orders.is_round_due():
            return []
        return kill_strays(core, node) + steer(core, node)

    def why(self, core: Core) -> str:
        if core.members.num_paused:
            return "the run is paused"
        return core.hang if core.clock.now < core.hang_shown_until else ""


def _finished(core: Core) -> list[Action]:
    if core.step >= core.steps:
        return core.finish("finished")
    is_late = any(c.operation == "extend" for c in core.commands[core.applied :])
    late = "the extension arrived after the last step; `headway run` resumes the run"
    return core.finish("stopped", late if is_late else "")


class Leaving(Phase):
    """Workers that hold groups of a generation give them up; left once none does."""

    name = "leaving"

    def look(self, core: Core, node: int | None) -> list[Action]:
        if not core.fleet.held():
            core.enter("gathering")
            return []
        if node is None and not core.orders.is_round_due():
            return []
        newest = max(core.numbered, core.generation, core.fleet.newest)
        return [
            core.orders.to_worker(name, abort_generation=newest)
            for name in (core.fleet.inside if node is None else core.fleet.nodes[node].workers)
            if name in core.fleet.inside and core.orders.due("abort", name)
        ]

    def limit_s(self, core: Core) -> float:
        return core.limits.leave_timeout_s

    def overdue(self, core: Core) -> list[Action]:
        """Kill the workers that received the abort and do not leave.

        Those of a silent node have not received it.
        """
        reason = f"did not leave within {core.limits.leave_timeout_s:g} s"
        nodes = core.fleet.nodes
        late = [n for n, home in core.fleet.inside.items() if nodes[home].status != "silent"]
        return [
            action for name in late for action in core.lose_worker(name, reason, is_blamed=False)
        ]

    def why(self, core: Core) -> str:
        held = [core.members.rank_of.get(name, -1) for name in core.fleet.inside]
        who = (
            ranks(sorted(rank for rank in held if rank >= 0)) if max(held, default=-1) >= 0 else ""
        )
        return f"waiting for {who or 'workers'} to leave generation {core.generation}"


class Over(Phase):
    """The run has ended; the end is recorded as soon as that is possible."""

    name = "over"

    def look(self, core: Core, _node: int | None) -> list[Action]:
        if core.effects.due(Finish):
            return core.effects.ask(Finish(core.outcome, core.detail))
        return []

    def limit_s(self, core: Core) -> float:
        return core.limits.choose_timeout_s if core.effects.error(Finish) else math.inf

    def why(self, core: Core) -> str:
        error = core.effects.error(Finish)
        ended = (
            f"the run has {core.outcome}" if core.outcome != "stopped" else "the run was stopped"
        )
        return f"{ended}; that cannot be recorded yet: {error}" if error else ended


def _slim(steer: Steer, answered: int) -> Steer:
    """Without the prompt of a sample that was made: a list of many must fit into one message."""
    if steer.tokens and steer.sequence <= answered:
        return msgspec.structs.replace(steer, tokens=())  # type: ignore[type-var]
    return steer


def steer(core: Core, node: int | None) -> list[Action]:
    """Give the workers the commands that they do not hold yet."""
    if not core.commands or not (core.is_steering or node is not None):
        return []
    actions: list[Action] = []
    behind = False
    for _, view in _members(core, node):
        missing = core.commands[view.command :]
        behind = behind or bool(missing)
        if view.status in ("restored", "running"):
            actions += [
                core.orders.to_worker(view.worker, steer=command)
                for command in missing
                if core.orders.due("steer", view.worker, command.sequence)
            ]
    core.is_steering = behind if node is None else core.is_steering or behind
    return actions


def kill_strays(core: Core, node: int | None) -> list[Action]:
    """End workers that hold groups of another generation: they were silent when it was left."""
    if len(core.fleet.inside) <= len(core.members.workers) - len(core.members.vacant):
        return []
    inside, rank_of = core.fleet.inside, core.members.rank_of
    seen = list(inside if node is None else core.fleet.nodes[node].workers)
    strays = [name for name in seen if name in inside and name not in rank_of]
    return [
        action for name in strays for action in core.lose_worker(name, "holds no rank any more")
    ]


def _members(core: Core, node: int | None) -> Iterable[tuple[int, WorkerBeat]]:
    """(rank, newest beat) of the living members, of one node or of all."""
    chosen = core.members.workers if node is None else core.fleet.nodes[node].ranks
    views = ((rank, core.view(rank)) for rank in chosen)
    return [(rank, view) for rank, view in views if view is not None]


def _without(core: Core, statuses: tuple[str, ...]) -> list[tuple[int, WorkerBeat | None]]:
    """(rank, newest beat) of those that are not in one of these states of this generation."""
    views = ((rank, core.view(rank)) for rank in core.fleet.rank_nodes)
    return [
        (rank, view)
        for rank, view in views
        if view is None or view.generation != core.generation or view.status not in statuses
    ]
