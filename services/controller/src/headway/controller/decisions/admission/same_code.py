"""All ranks of a run compute with one version of the code; a worker of another one is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import KillWorker, RestartService, WorkerBeat
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Send
from headway.controller.decisions.fleet import names

AGAIN_S = 30.0
"""Pause between two restarts of a zygote whose code is refused: its source may be restored."""


def watch(core: Core) -> list[Action]:
    """Report nodes whose standbys have other code, and restart their zygotes.

    Called at each tick. Zygotes are started again while a rank needs them, in case the source was
    restored.
    """
    actions: list[Action] = []
    for number, source in _others(core).items():
        if core.odd_code.get(number) != source:
            core.odd_code[number] = source
            fields = {"node": number, "source": source, "wanted": core.source}
            reason = code_sentence(core, [number])
            actions.append(Log("code_differs", {**fields, "reason": reason}))
    if core.phase == "gathering":
        lacking = core.lost_carriers() or core.fleet.unreachable
        spares = [n for n in _others(core) if not core.fleet.nodes[n].ranks] if lacking else []
        for number in sorted({*refused_nodes(core), *spares}):
            if core.clock.now - core.zygote_restarts.get(number, -AGAIN_S) >= AGAIN_S:
                core.zygote_restarts[number] = core.clock.now
                actions += _restart(core, number)
    return actions


def is_same_code(core: Core, view: WorkerBeat) -> bool:
    """Whether the worker has the code that the run's ranks compute with."""
    return not core.source or view.source in ("", core.source)


def choose_source(core: Core, views: Iterable[WorkerBeat]) -> None:
    """The code of the run is that of these workers; without any, this driver's own."""
    found = Counter(view.source for view in views if view.source)
    [(core.fleet.source, _)] = found.most_common(1) or [(core.own_source, 0)]
    odd = (n for n, node in core.fleet.nodes.items() if core.fleet.is_odd(node))
    core.fleet.odd = dict.fromkeys(odd)


def refused_nodes(core: Core) -> list[int]:
    """Return nodes that have only workers of other code for one of their ranks.

    They report, and lack a worker for the rank.
    """
    nodes = sorted({core.fleet.rank_nodes[rank] for rank in core.members.vacant})
    others = _others(core) if nodes else {}
    return [n for n in nodes if n in others and core.fleet.nodes[n].status == "active"]


def code_sentence(core: Core, nodes: list[int]) -> str:
    """What differs, and what to do about it."""
    return (
        f"the workers of {names(nodes)} have another version of Headway's source than the run: "
        f"{_others(core).get(nodes[0], 'unknown')}, not {core.source}; restore the old source, or "
        "stop and resume the run, so that all ranks have the new one"
    )


def _others(core: Core) -> dict[int, str]:
    """Node -> digest of its standbys' source, where it is not the run's.

    Only nodes whose standbys all have another source are listed.
    """
    nodes = core.fleet.nodes
    return {number: min(nodes[number].sources) for number in sorted(core.fleet.odd)}


def _restart(core: Core, number: int) -> list[Action]:
    node = core.fleet.nodes[number]
    order = RestartService(
        run_id=core.run_id,
        epoch=core.epoch,
        service="zygote",
        reason="its source is not the run's",
        pid=node.services.get("zygote", 0),
    )
    idle = [view for view in node.workers.values() if view.status == "idle"]
    odd = [view.worker for view in idle if not is_same_code(core, view)]
    kills = [KillWorker(run_id=core.run_id, epoch=core.epoch, worker=name) for name in odd]
    return [Send(number, message) for message in (order, *kills)]
