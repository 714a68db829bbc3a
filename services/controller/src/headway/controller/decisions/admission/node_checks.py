"""A machine is checked before the run relies on it: spares, nodes that return, suspects.

| node | when it is checked | until then |
|---|---|---|
| a spare that joins | while the run trains | it takes over, after the spares that were checked |
| a lost node without ranks that returns | at once | it stays lost |
| a spare that a verdict names | while the run trains | as a spare that joins |

A node that fails is given up, and returns no sooner than with another executor, after another
check. A check that is not done within its limit, for example since the executor does not know how,
counts as not applicable. A node with ranks is not checked: the check would slow the ranks down.
"""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import CheckNode
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Send, VerdictReceived
from headway.controller.decisions.node import Node

CHECK_LIMIT_S = 240.0
"""Longer than an executor lets a check take, so that a hung one is reported by name."""
SUSPECT_AGAIN_S = 600.0
"""Verdicts that name a machine come with every line of its log; it is checked again this often."""
OF_MACHINES = frozenset(
    {"gpu_fault", "network_fault", "pcie_error", "disk_fault", "memory_error", "kernel_stall"}
)
"""Kinds of verdicts that name a machine."""


def watch(core: Core) -> list[Action]:
    """Order the checks that are due, repeatedly until a beat shows a result; at each tick."""
    fleet, now = core.fleet, core.clock.now
    if not fleet.is_checking:
        return []
    for number in fleet.spares if core.phase == "running" else ():
        if fleet.nodes[number].check == "none":
            fleet.want_check(fleet.nodes[number], now)
    actions: list[Action] = []
    for node in [fleet.nodes[number] for number in fleet.to_check]:
        is_later = node.status == "spare" and core.phase != "running"
        if node.ranks or node.is_missed or is_later:
            node.check_since = now
        elif now - node.check_since >= CHECK_LIMIT_S:
            fleet.set_check(node, "passed")
            reason = f"no result within {CHECK_LIMIT_S:.0f} s"
            actions.append(_log(node, "not_run", reason))
        elif core.due("check", node.number):
            order = CheckNode(run_id=core.run_id, epoch=core.epoch, number=node.check_number)
            actions.append(Send(node.number, order))
    return actions


def take(core: Core, node: Node) -> list[Action]:
    """A beat shows the result of a check that was waited for."""
    if node.check != "failed":
        return [_log(node, "not_run" if node.check_reason else "passed", node.check_reason)]
    if node.exclusion == "check" and node.process == node.excluded_process:
        return []  # a driver before has given it up for this
    failed, reason = node.failed_checks, node.check_reason
    actions: list[Action] = [_log(node, "failed", reason)]
    if node.ranks:  # it was needed before the check was done
        return actions
    actions += core.lose_node(node.number, f"its check failed: {reason}", exclusion="check")
    node.excluded_process = node.process
    core.fleet.keep_failure(node, failed, reason)
    return actions


def suspect(core: Core, verdict: VerdictReceived) -> None:
    """Have the spare checked again that a verdict names without being certain enough to act on."""
    fleet, node = core.fleet, core.fleet.nodes[verdict.node]
    is_settled = node.check == "passed" and core.clock.now - node.check_since >= SUSPECT_AGAIN_S
    if fleet.is_checking and verdict.kind in OF_MACHINES and node.status == "spare" and is_settled:
        fleet.want_check(node, core.clock.now)


def sentences(core: Core) -> dict[int, str]:
    """Node -> why it is not used: it is being checked, or its check has failed."""
    found = {
        number: "it is checked before it is used"
        for number in core.fleet.to_check
        if core.fleet.nodes[number].status == "lost"
    }
    for number in core.fleet.excluded:
        node = core.fleet.nodes[number]
        if node.exclusion == "check" and node.check != "wanted":
            reason = node.check_reason or "the reason is in the journal"
            found[number] = (
                f"its check failed: {reason}; repair the machine, then start the node again"
            )
    return found


def _log(node: Node, result: str, reason: str) -> Log:
    fields = {"node": node.number, "result": result, "failed": list(node.failed_checks)}
    return Log("node_checked", {**fields, "reason": reason})
