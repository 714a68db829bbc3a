"""When the engine is to bring another machine for a node, and what is done if that fails.

| the machine | another one is ordered |
|---|---|
| condemned by a verdict, or evicted | once nothing of the run is on it |
| the same, and it is not certain that it has ended | after ``recovery.replace_after_s`` |
| it is lost, or silent while no spare is ready | after ``recovery.replace_after_s`` |
| it has failed its check twice in a row | at once |
| drained by a person | never, for maintenance; on Slurm as if it was evicted |
| its node has announced its own end | never: its owner takes it away |

Engines differ in which of these they provide for (``Replaces``). While the engine works on an
order, the node is neither started nor taken back: what reports may be the machine that is about to
be rebuilt. Afterwards it is started as any lost node, and becomes a spare. A machine that returns
by itself ends its order. Under a driver that took over meanwhile, an order counts as failed, so the
command may run twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.common.decide import Action, Log
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import ReplaceMachine, RestartNode
from headway.controller.decisions.machines.machine_orders import AGAIN_S, MachineOrder
from headway.controller.decisions.node import Node

RETURN_LIMIT_S = 600.0
"""A machine that was delivered reports within this time, or the order has failed."""
ANSWER_LIMIT_S = 1200.0
"""An engine that has not answered by then never will; its own limit is shorter."""
LEAST_CHECKS = 2
"""A machine that fails one check may pass the next one."""


def watch(core: Core) -> list[Action]:
    """Order machines that are due, and repeat orders that have failed; at each tick."""
    if core.replaces == "nothing":
        return []
    actions: list[Action] = []
    for number, order in list(core.machines.orders.items()):
        actions += _look(core, number, order)
    for number, why in list(_due(core)):
        actions += _order(core, number, why)
    return actions


def on_delivered(core: Core, action: ReplaceMachine, note: str) -> list[Action]:
    """The engine has brought another machine, on which the node is started."""
    order = _answered(core, action)
    if order is None:
        return []
    number, now = action.node, core.unix_now
    fields = {"node": number, "took_s": round(now - order.at, 1), "note": note}
    core.machines.deliver(number, note, now)
    node = core.fleet.nodes[number]
    core.fleet.exclude(node, "")
    # so that the first beat counts as that of another machine
    node.is_missed, node.version = True, -1
    core.effects.forget(RestartNode, number)
    return [Log("machine_delivered", fields)]


def on_failed(core: Core, action: ReplaceMachine, error: str) -> list[Action]:
    """The engine could not bring another machine."""
    if _answered(core, action) is None:
        return []
    return _fail(core, action.node, error or "it failed")


def on_queued(core: Core, number: int) -> None:
    """The engine itself waits for the machine, as for a queued job: no limit holds for that."""
    order = core.machines.orders.get(number)
    if order is not None and order.state == "delivered":
        core.machines.deliver(number, "", core.unix_now)
        core.is_memory_stale = True


def is_open(core: Core, number: int) -> bool:
    """Whether another machine is on order for the node, or will be ordered again."""
    return core.machines.is_open(number, core.unix_now, core.limits.max_replacements)


def _answered(core: Core, action: ReplaceMachine) -> MachineOrder | None:
    """The order that the answer is about, if it counts."""
    order = core.machines.orders.get(action.node)
    is_newest = order is not None and (order.state, order.number) == ("asked", action.number)
    if core.phase == "over" or not is_newest:
        return None
    core.is_memory_stale = True
    return order


# ---- what is due --------------------------------------------------------------------------------
def _due(core: Core) -> Iterator[tuple[int, str]]:
    """Nodes without an order for which another machine is to be ordered now, and why."""
    machines, fleet = core.machines, core.fleet
    for number, (since, why) in machines.lost.items():
        if number in machines.orders or number in machines.leaving:
            continue
        if _is_lost_for_good(core, fleet.nodes[number], core.unix_now - since):
            yield number, why
    if core.replaces != "lost" or core.phase != "gathering" or _steps(core):
        return
    limit_s = core.limits.node_lost_s + core.limits.replace_after_s
    for number in fleet.unreachable:
        silent_s = core.clock.now - fleet.nodes[number].beat_at
        if number not in machines.lost and number not in machines.orders and silent_s >= limit_s:
            yield number, f"silent for {silent_s:.0f} s"


def _is_lost_for_good(core: Core, node: Node, lost_s: float) -> bool:
    is_long = lost_s >= core.limits.replace_after_s
    is_silent = core.clock.now - node.beat_at >= core.limits.node_lost_s
    match node.exclusion:
        case "verdict" | "evicted":
            return node.is_released or is_long
        case "check":
            is_unfit = node.check == "failed" and node.check_failures >= LEAST_CHECKS
            return core.replaces == "lost" and (is_unfit or (is_long and is_silent))
        case _:  # one that reports is about to return, or is being checked first
            return core.replaces == "lost" and is_long and is_silent


def _steps(core: Core) -> bool:
    """Whether steps are made: they need every rank, so every machine with ranks is well."""
    return core.clock.now - core.progress_at < core.limits.node_lost_s


# ---- orders -------------------------------------------------------------------------------------
def _look(core: Core, number: int, order: MachineOrder) -> list[Action]:
    """What has become of an order."""
    now = core.unix_now
    if order.state == "asked" and now - order.at >= ANSWER_LIMIT_S:
        return _fail(core, number, f"the engine has not answered for {ANSWER_LIMIT_S:.0f} s")
    if order.state == "delivered" and now - order.at >= RETURN_LIMIT_S:
        return _fail(core, number, f"it has not reported within {RETURN_LIMIT_S:.0f} s")
    if order.state == "failed" and now >= order.again_at:
        return _order(core, number, order.reason)
    return []


def _order(core: Core, number: int, why: str) -> list[Action]:
    if core.machines.num_today(core.unix_now) >= core.limits.max_replacements:
        return _refuse(core, number)
    node, actions = core.fleet.nodes[number], list[Action]()
    if node.status != "lost":
        actions += core.lose_node(number, f"{why}, and no spare is ready")
    order = core.machines.ask(number, why, node.exclusion, core.unix_now)
    core.fleet.exclude(node, "ordered")
    core.on_order.pop(number, None)
    core.is_memory_stale = True
    actions.append(Log("machine_ordered", {"node": number, "reason": why, "try": order.tries}))
    return [*actions, ReplaceMachine(number, why, order.number)]


def _refuse(core: Core, number: int) -> list[Action]:
    if number in core.machines.refused:
        return []
    core.machines.refused[number] = None
    return [Log("machine_not_ordered", {"node": number, "reason": _used_up(core)})]


def _fail(core: Core, number: int, error: str) -> list[Action]:
    order, node = core.machines.orders[number], core.fleet.nodes[number]
    core.fleet.exclude(node, order.exclusion)  # also after a delivery that brought no machine
    core.machines.fail(number, error, core.unix_now)
    core.is_memory_stale = True
    again_s = round(order.again_at - core.unix_now) if order.state == "failed" else None
    return [Log("machine_not_delivered", {"node": number, "reason": error, "again_s": again_s})]


# ---- for people ---------------------------------------------------------------------------------
def sentences(core: Core) -> dict[int, str]:
    """Node -> which machine is on order for it and since when, or why none is."""
    found = dict(core.machines.notes)
    for number in core.machines.refused.keys() - core.machines.orders.keys():
        found[number] = f"no other machine is ordered: {_used_up(core)}"
    for number, order in core.machines.orders.items():
        said = [_sentence(core, number, order), found.get(number, "")]
        found[number] = "; ".join(one for one in said if one)
    return found


def _sentence(core: Core, number: int, order: MachineOrder) -> str:
    now = core.unix_now
    ordered = f"{max(0.0, now - order.since):.0f} s ago ({order.reason})"
    tried = f"try {order.tries} of {len(AGAIN_S) + 1}"
    match order.state:
        case "asked":
            again = f"; {tried}, before: {order.error}" if order.error else ""
            return f"another machine was ordered {ordered}{again}"
        case "delivered":
            awaited = core.on_order.get(number) or "it is ready and has not reported yet"
            return f"another machine was ordered {ordered}: {awaited}"
        case "failed" if is_open(core, number):
            again_s = max(0.0, order.again_at - now)
            failed = f"it failed ({order.error}), {tried}, the next one in {again_s:.0f} s"
            return f"another machine was ordered {ordered}: {failed}"
        case "failed":
            return f"no other machine: {order.error}; {_used_up(core)}"
        case _:
            return f"no other machine: given up after {order.tries} tries: {order.error}"


def _used_up(core: Core) -> str:
    most = core.limits.max_replacements
    return f"{most} were ordered within a day (recovery.max_replacements)"
