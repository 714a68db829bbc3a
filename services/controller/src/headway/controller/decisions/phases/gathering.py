"""Gathering: every rank needs a living worker on its node."""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import WorkerBeat
from headway.controller.decisions import spikes, waiting
from headway.controller.decisions.admission.same_code import (
    choose_source,
    code_sentence,
    is_same_code,
    refused_nodes,
)
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import RestartNode
from headway.controller.decisions.fleet import names
from headway.controller.decisions.phases.base import Phase
from headway.controller.decisions.replacing import giving_way, replace, replace_lost
from headway.controller.decisions.silence import RESTART_GRACE_S, restart


class Gathering(Phase):
    """The phase in which every rank gets a worker; left for reading once all have one.

    A restarted driver first adopts what it finds.
    """

    name = "gathering"

    def look(self, core: Core, node: int | None) -> list[Action]:
        actions = replace(core)
        if giving_way(core):
            return actions
        if core.is_adopting:
            if core.fleet.unreachable or not _are_all_known(core):
                return actions
            actions += _adopt(core)
            node = None
            if core.phase != self.name:
                return actions
        if core.fleet.held():  # groups of an older generation, on a node that was silent meanwhile
            core.enter("leaving")
            return actions
        changed = core.fleet.nodes[node].ranks if node is not None and not actions else None
        for rank in list(core.members.vacant) if changed is None else changed:
            if rank in core.members.vacant:
                _fill(core, rank)
        if not core.fleet.unreachable and not core.members.vacant:
            carriers = core.fleet.carriers()
            core.copies.begin(carriers)
            for number in carriers:
                core.effects.forget(RestartNode, number)
            core.enter("reading")
        return actions

    def limit_s(self, core: Core) -> float:
        return core.limits.gather_timeout_s

    def overdue(self, core: Core) -> list[Action]:
        """Replace or restart a node that beats and has no worker for one of its ranks.

        A spare takes over where one is ready; else the node's executor is started again, once.
        """
        actions = _last_resort(core)
        for number in [] if core.is_adopting else waiting.short(core):
            if core.fleet.spare_for(number) is not None:
                actions += core.lose_node(
                    number, waiting.no_worker(core, number), exclusion="trouble"
                )
                actions += replace_lost(core)
            elif not core.effects.is_asked(RestartNode, number):
                actions += restart(core, number)
        return actions

    def why(self, core: Core) -> str:
        if core.fleet.unreachable:
            return waiting.missing_sentence(core) + waiting.outlook(core)
        if refused := refused_nodes(core):
            return code_sentence(core, refused) + waiting.outlook(core)
        if core.is_adopting:
            return "a new driver is taking over"
        if loading := loading_sentence(core):
            return loading
        for number in waiting.short(core):
            return waiting.no_worker(core, number) + waiting.outlook(core)
        return "every rank has a worker"


def _last_resort(core: Core) -> list[Action]:
    """Readmit suspected nodes, and restart troubled ones, when no spare is ready.

    A suspected node is better than none, and a restart may repair one.
    """
    if not core.lost_carriers():
        return []
    actions: list[Action] = []
    for number in list(core.fleet.excluded):
        node = core.fleet.nodes[number]
        if node.exclusion == "verdict":
            core.fleet.exclude(node, "")
            core.is_memory_stale = True
        if node.exclusion == "trouble" and core.effects.due(
            RestartNode, number, again_s=RESTART_GRACE_S
        ):
            actions += restart(core, number)
    return actions


def loading_sentence(core: Core) -> str:
    """``loading torch on node 0 (23 s)``, if nothing else keeps ranks from having a worker."""
    if core.is_adopting or core.fleet.unreachable or refused_nodes(core):
        return ""
    short = {number: core.fleet.nodes[number] for number in waiting.short(core)}
    since = {n: at for n, node in short.items() if (at := node.loading_since) is not None}
    if not since or any(node.trouble for n, node in short.items() if n not in since):
        return ""
    return f"loading torch on {names(since)} ({core.clock.now - min(since.values()):.0f} s)"


def _fill(core: Core, rank: int) -> None:
    """Give the rank the best free worker of its node.

    A worker that held the rank before keeps its memory; a worker left over from another rank is the
    last resort.
    """
    node = core.fleet.nodes[core.fleet.rank_nodes[rank]]
    if node.status != "active":
        return
    free = [view for view in node.workers.values() if _is_free(core, view)]
    if free:
        best = min(free, key=lambda v: (v.rank != rank, v.status != "idle", v.worker))
        core.members.put(rank, best)


def _is_free(core: Core, view: WorkerBeat) -> bool:
    is_outside = view.status in ("idle", "left") and not core.fleet.is_gone(view.worker)
    return is_outside and view.worker not in core.members.rank_of and is_same_code(core, view)


def _are_all_known(core: Core) -> bool:
    """Whether every node with ranks has reported its workers.

    An executor that was restarted too beats before its workers have reported.
    """
    return all(core.fleet.nodes[number].version >= 0 for number in core.fleet.carriers())


def _adopt(core: Core) -> list[Action]:
    """A restarted driver takes the run as it finds it."""
    core.is_adopting = False
    views = [
        view
        for node in core.fleet.nodes.values()
        for view in node.workers.values()
        if view.rank >= 0 and not core.fleet.is_gone(view.worker)
    ]
    newest = max((view.generation for view in views), default=-1)
    core.numbered = max(core.numbered, newest)
    core.generation = core.members.generation = max(core.generation, newest)
    choose_source(core, (view for view in views if view.generation == newest))
    for view in views:
        is_home = core.fleet.rank_nodes.get(view.rank) == core.fleet.home[view.worker]
        if view.generation == newest and view.status != "idle" and is_home:
            core.members.put(view.rank, view)
    if core.members.all("running", "finished"):
        core.enter("running")
        if core.rollback and core.generation <= core.rollback[1]:
            reason = f"the run is rolled back to step {core.rollback_step} on request"
            return core.fence(reason, is_counted=False)
        core.end_rollback()
        spikes.end(core)
        return [Log("adopted", {"generation": core.generation})]
    if not views:
        core.fleet.forgive_silences()  # the run was stopped: its nodes are starting
        return []
    return core.fence("the driver was restarted in the middle of a recovery", is_counted=False)
