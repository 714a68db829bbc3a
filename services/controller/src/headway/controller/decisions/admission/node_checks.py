"""A machine is checked before the run relies on it: spares, nodes that return, suspects.

| node | when it is checked | until then |
|---|---|---|
| a spare that joins | while the run trains | it takes over, after the spares that were checked |
| a lost node without ranks that returns | at once | it stays lost, unless ranks need it |
| a spare that a verdict names | while the run trains | as a spare that joins |
| one that failed | after a pause, on request, with a new executor | it stays lost |

A node that fails is given up, until a later check of it passes. What more than half of the machines
fail is doubted, and none is given up for it. A check that is not done within its limit, for example
since the executor does not know how, counts as not applicable. A node with ranks is not checked:
the check would slow the ranks down.
"""

from __future__ import annotations

from typing import Any

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import CheckNode
from headway.controller.decisions.admission.returning import returned
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Send, VerdictReceived
from headway.controller.decisions.node import Node, may_return

SUSPECT_AGAIN_S = 600.0
"""Verdicts that name a machine come with every line of its log; it is checked again this often."""
OF_MACHINES = frozenset(
    {
        "gpu_fault",
        "network_fault",
        "pcie_error",
        "disk_fault",
        "memory_error",
        "kernel_stall",
        "silent_corruption",
    }
)
"""Kinds of verdicts that name a machine."""


def watch(core: Core) -> list[Action]:
    """Order the checks that are due, repeatedly until a beat shows a result; at each tick."""
    checks, now = core.fleet.checks, core.clock.now
    if not checks.is_on:
        return []
    actions = _use_unchecked(core)
    for node in _due(core):
        checks.want(node, now)
    for node in [core.fleet.nodes[number] for number in checks.wanted]:
        is_later = node.status == "spare" and core.phase != "running"
        if is_later or not _reports(core, node):
            node.check_since = now
        elif now - node.check_since >= core.check_limit_s:
            actions.append(_without_result(core, node))
        elif core.orders.due("check", node.number):
            order = CheckNode(run_id=core.run_id, epoch=core.epoch, number=node.check_number)
            actions.append(Send(node.number, order))
    return actions


def take(core: Core, node: Node) -> list[Action]:
    """A beat shows the result of a check that was waited for, or one from before this driver."""
    if node.check != "failed":
        return [_log(node, "not_run" if node.check_reason else "passed")]
    checks, now = core.fleet.checks, core.clock.now
    doubted = checks.doubted(now)
    if doubted.issuperset(node.failed_checks):
        return [_log(node, "doubted"), *_readmit(core, doubted)]
    actions: list[Action] = [_log(node, "failed")]
    failed, reason, failures = node.failed_checks, node.check_reason, node.check_failures
    why = f"its check failed: {reason}"
    actions += core.lose_node(node.number, why, exclusion="check")
    node.excluded_process = node.process
    checks.fail(node, failed, reason, now)
    node.check_failures = failures
    return actions


def suspect(core: Core, verdict: VerdictReceived) -> None:
    """Have the spare checked again that a verdict names without being certain enough to act on."""
    checks, node = core.fleet.checks, core.fleet.nodes[verdict.node]
    is_settled = node.check == "passed" and core.clock.now - node.check_since >= SUSPECT_AGAIN_S
    if checks.is_on and verdict.kind in OF_MACHINES and node.status == "spare" and is_settled:
        checks.want(node, core.clock.now)


def refusal(core: Core, number: int) -> str:
    """Why the node cannot be checked now; empty when it can."""
    node = core.fleet.nodes.get(number)
    if node is None:
        return f"node {number} is not in the run"
    if not core.fleet.checks.is_on:
        return "this run checks no machines (health.check_nodes)"
    return "it carries ranks, which a check would slow down" if node.ranks else ""


def ask(core: Core, number: int) -> list[Action]:
    """A person asks for a check, as after a repair: what an earlier one found does not count."""
    if refusal(core, number):
        return []
    core.fleet.checks.want(core.fleet.nodes[number], core.clock.now)
    return [Log("check_asked", {"node": number})]


def sentences(core: Core) -> dict[int, str]:
    """Node -> why it is not used: it is being checked, or its check has failed."""
    fleet = core.fleet
    found = {
        number: "it is checked before it is used"
        for number in fleet.checks.wanted
        if fleet.nodes[number].status == "lost"
    }
    for number in fleet.excluded:
        node = fleet.nodes[number]
        if node.exclusion != "check":
            continue
        reason = node.check_reason or "the reason is in the journal"
        if node.check == "wanted":
            found[number] = f"it is checked again; before, its check failed: {reason}"
        elif node.check != "passed":
            again_s = max(0.0, fleet.checks.again_in_s(node, core.clock.now))
            found[number] = (
                f"its check failed: {reason}; repair the machine, then start the node again; it is "
                f"also checked again in {again_s:.0f} s"
            )
    return found


def _due(core: Core) -> list[Node]:
    """The nodes whose check becomes wanted now, without anybody asking."""
    fleet, now = core.fleet, core.clock.now
    spares = fleet.spares if core.phase == "running" else ()
    nodes = [fleet.nodes[number] for number in spares]
    due = [node for node in nodes if node.check == "none"]
    repeated = [node for node in nodes if node.check == "doubted"]
    for number in fleet.excluded:
        node = fleet.nodes[number]
        is_given_up = node.exclusion == "check" and node.check in ("failed", "none")
        if is_given_up and not node.ranks and _reports(core, node):
            repeated.append(node)
    return due + [node for node in repeated if fleet.checks.again_in_s(node, now) <= 0]


def _use_unchecked(core: Core) -> list[Action]:
    """Take nodes back before their check is done if ranks are without a node and no spare is ready.

    Training continues at once, and failures of the machine would show like those of any other. One
    whose last check has failed is not taken.
    """
    fleet, actions = core.fleet, list[Action]()
    for node in [fleet.nodes[number] for number in fleet.checks.wanted]:
        if node.status != "lost" or node.exclusion == "check" or node.version < 0:
            continue
        if not (_reports(core, node) and may_return(node) and _lacks_node(core)):
            continue
        fleet.admit(node)
        actions += returned(core, node)
    return actions


def _lacks_node(core: Core) -> bool:
    """Whether ranks are on a node that is lost or would be, and no spare is ready to take them."""
    if core.phase == "running" or core.fleet.ready_spares():
        return False
    gone_since = core.clock.now - core.limits.node_lost_s
    nodes = (core.fleet.nodes[number] for number in core.fleet.unreachable)
    return any(node.status == "lost" or node.beat_at <= gone_since for node in nodes)


def _readmit(core: Core, doubted: frozenset[str]) -> list[Action]:
    """Use the nodes that failed nothing but what is doubted; each returns with its next beat."""
    numbers = []
    for node in core.fleet.nodes.values():
        if node.check == "failed" and doubted.issuperset(node.failed_checks):
            core.fleet.checks.doubt(node)
            numbers.append(node.number)
    fields = {"checks": sorted(doubted), "nodes": numbers}
    reason = "more than half of the checked machines fail it: a cause that they share is likely"
    return [Log("checks_doubted", {**fields, "reason": reason})]


def _without_result(core: Core, node: Node) -> Log:
    reason, now = f"no result within {core.check_limit_s:.0f} s", core.clock.now
    if node.exclusion == "check":
        core.fleet.checks.keep_failed(node, now)
    else:
        core.fleet.checks.let_pass(node, reason, now)
    return _log(node, "not_run", reason)


def _reports(core: Core, node: Node) -> bool:
    return not node.is_missed and core.clock.now - node.beat_at < core.limits.node_silent_s


def _log(node: Node, result: str, reason: str | None = None) -> Log:
    fields: dict[str, Any] = {"node": node.number, "result": result}
    fields["failed"] = list(node.failed_checks)
    fields["reason"] = node.check_reason if reason is None else reason
    return Log("node_checked", fields)
