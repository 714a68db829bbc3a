"""When a node gives its ranks to a spare, and which one takes them."""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.controller.decisions.admission.same_code import is_same_code
from headway.controller.decisions.core import Core

SAVE_S = 3.0
"""Time for the stores to write what a node that gives way has in memory."""


def replace(core: Core) -> list[Action]:
    """Move ranks to ready spares.

    The ranks are those of lost nodes, of nodes that came back from a silence without a worker, and
    of nodes whose ranks keep dying.
    """
    return [*_give_way(core), *replace_lost(core)]


def replace_lost(core: Core) -> list[Action]:
    """Move the ranks of lost nodes to spares."""
    actions: list[Action] = []
    for number in core.fleet.nearest_first(core.fleet.lost_carriers):
        spare = core.fleet.spare_for(number)
        if spare is None:
            continue
        ranks = core.fleet.move_ranks(number, spare)
        for rank in ranks:
            core.members.drop(rank)
        fields = {"node": number, "spare": spare, "ranks": list(ranks)}
        actions.append(Log("node_replaced", fields))
        if core.fleet.is_unchecked(core.fleet.nodes[spare]):
            reason = "ranks were without a node, and no spare that had passed its check was ready"
            actions.append(Log("node_unchecked", {"node": spare, "reason": reason}))
    return actions


def _give_way(core: Core) -> list[Action]:
    """Give nodes up beside which a spare with warm workers is the better place.

    One that was frozen, or lost all its processes at once, has to start its services again, which
    takes longer than the spare. One whose ranks keep dying stays in the run as the last choice.
    """
    actions: list[Action] = []
    is_starting = core.is_adopting or core.generation < 0
    for number in [] if is_starting else list(core.fleet.bare):
        if core.fleet.nodes[number].ranks and _warm_spare(core, number) is not None:
            why = "it was silent, and none of its workers is left"
            actions += core.lose_node(number, why, exclusion="trouble")
    if core.clock.now - core.since >= SAVE_S:
        for number in giving_way(core):
            actions += _give_up_flaky(core, number)
    return actions


def giving_way(core: Core) -> list[int]:
    """Return the nodes whose ranks keep dying, where a warm spare could replace them.

    They hold the newest state in memory, which the stores make durable before such a node gives
    way.
    """
    return [
        number
        for number in sorted(core.failures.nodes & core.fleet.nodes.keys())
        if core.fleet.nodes[number].status == "active"
        and core.fleet.nodes[number].ranks
        and core.is_flaky(number)
        and (spare := _warm_spare(core, number)) is not None
        and not core.is_flaky(spare)
    ]


def _give_up_flaky(core: Core, number: int) -> list[Action]:
    count = core.failures.excess(number, core.clock.now)
    causes = core.failures.causes(number)
    why = f"its ranks failed {count} times within an hour"
    log = Log("node_flaky", {"node": number, "failures": count, "causes": causes[-4:]})
    return [log, *core.lose_node(number, why)]


def _warm_spare(core: Core, number: int) -> int | None:
    """The spare for the node, if it has a worker that can take a rank now."""
    spare = core.fleet.spare_for(number)
    if spare is None:
        return None
    views = core.fleet.nodes[spare].workers.values()
    return spare if any(v.status == "idle" and is_same_code(core, v) for v in views) else None
