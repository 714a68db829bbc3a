"""What is done about silent nodes: their executors are started again, or they are given up."""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import RestartNode
from headway.controller.decisions.node import Node

RESTART_GRACE_S = 10.0
"""An executor that was started needs up to 5 s before its first beat;
starting it again would end it."""
MAX_RESTARTS = 32
"""Under way at a time: each is a thread and, over machines, an ssh. When the driver's own network
was away, most nodes report again before it is their turn, and are left alone."""
NOT_RESTARTED = ("gone", "evicted", "verdict", "check", "ordered")
"""Exclusions of nodes whose executor is not started again:
a person or the engine must provide another machine."""


def watch(core: Core) -> list[Action]:
    """Have silent executors started again; give a node up when that did not help."""
    actions: list[Action] = []
    due: list[Node] = []
    for node in core.fleet.quiet(core.clock.now, core.limits.node_silent_s):
        if node.exclusion in NOT_RESTARTED:
            continue
        if not node.is_missed:
            core.fleet.miss(node)
            fields = {"node": node.number, "silent_s": round(core.clock.now - node.beat_at, 1)}
            actions.append(Log("node_silent", fields))
        if _cannot_succeed(core, node):
            silent_s = core.clock.now - node.beat_at
            actions += core.lose_node(node.number, f"silent for {silent_s:.1f} s")
        elif core.effects.due(RestartNode, node.number, again_s=RESTART_GRACE_S):
            due.append(node)
    # in turn: those that cannot be started must not keep the others from their first attempt
    due.sort(key=lambda node: (core.effects.asked_at(RestartNode, node.number), not node.ranks))
    for node in due[: _room(core)]:
        actions += core.effects.ask(RestartNode(node.number))
    return actions


def on_executor_ended(core: Core, number: int) -> list[Action]:
    """The engine knows that the executor has ended."""
    node = core.fleet.nodes.get(number)
    if node is None or node.exclusion in NOT_RESTARTED:
        return []
    actions: list[Action] = []
    if not node.is_missed:
        core.fleet.miss(node)
        actions.append(Log("executor_ended", {"node": number}))
    if core.effects.due(RestartNode, number):
        actions += restart(core, number)
    return actions


def restart(core: Core, number: int) -> list[Action]:
    """Have the node's executor started again, unless too many restarts are under way."""
    return core.effects.ask(RestartNode(number)) if _room(core) else []


def _room(core: Core) -> int:
    return max(0, MAX_RESTARTS - core.effects.num_open(RestartNode))


def _cannot_succeed(core: Core, node: Node) -> bool:
    """Long silent although it was started again, and nothing speaks for keeping it."""
    now = core.clock.now
    silent_s = now - node.beat_at + node.silent_before_s
    if node.status == "lost" or silent_s < core.limits.node_lost_s:
        return False
    if _is_kept(core, node):
        return False
    if core.effects.error(RestartNode, node.number):  # a further attempt is not waited for
        return True
    # one that was started anew reports within that time
    tried_at = core.effects.tried_at(RestartNode, node.number)
    return tried_at is not None and now - tried_at >= core.limits.node_silent_s


def _is_kept(core: Core, node: Node) -> bool:
    """Whether a silent node is not given up for now.

    One with ranks: while no spare is ready, or steps are made. Steps need every rank, so its
    workers are well and only its executor is silent. One without ranks: while one with ranks is
    silent, too. Then it may be this driver that is cut off; it finds that out by the nodes that are
    not given up (``Connections.is_cut_off``), so these must not become fewer.
    """
    if not node.ranks:
        return bool(core.fleet.unreachable)
    if core.fleet.spare_for(node.number) is None:
        return True
    is_stepping = core.clock.now - core.progress_at < core.limits.node_lost_s
    return core.phase == "running" and is_stepping
