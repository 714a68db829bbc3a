"""What follows when a node that was given up is a node of the run again."""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.controller.decisions.core import Core
from headway.controller.decisions.node import Node


def returned(core: Core, node: Node) -> list[Action]:
    """Record it, and have those of its workers killed that were condemned meanwhile."""
    core.is_memory_stale = True
    core.machines.note_returned(node.number)
    killed = [name for name in node.workers if name in core.fleet.marked_for_kill]
    return [Log("node_returned", {"node": node.number, "killed": killed}), *core.orders.kills()]
