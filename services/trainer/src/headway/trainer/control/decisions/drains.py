"""Planned ends of nodes: a checkpoint first, then a spare takes over, and no crash is counted."""

from __future__ import annotations

from dataclasses import dataclass

from headway.trainer.control.decisions.core import Core
from headway.trainer.control.decisions.events import Action, AwaitCheckpoint, DrainNode, Log
from headway.trainer.control.decisions.reactions import evict, eviction_refusal


@dataclass(frozen=True)
class Drain:
    """A node that will end."""

    after: int
    """A checkpoint of a later step than this is waited for."""
    notice_s: float
    until: float
    """On the driver's clock: the node leaves the run then, with the checkpoint or without."""


class Drains:
    """The nodes that are about to leave the run, until they have left it."""

    def __init__(self, core: Core) -> None:
        self._nodes = {
            node: Drain(after, notice_s, core.clock.now + notice_s)
            for node, after, notice_s in core.drains
        }

    def begin(self, core: Core, event: DrainNode) -> list[Action]:
        """A node will end; the ranks have the command to make a checkpoint already."""
        if refusal := drain_refusal(core, event.node):
            return [Log("drain_refused", {"node": event.node, "reason": refusal})]
        until = core.clock.now + event.notice_s
        self._nodes[event.node] = Drain(core.step, event.notice_s, until)
        self._keep(core)
        core.effects.forget(AwaitCheckpoint)
        fields = {"node": event.node, "notice_s": event.notice_s, "step": core.step}
        return [Log("draining", fields), *self.look(core)]

    def look(self, core: Core) -> list[Action]:
        """Called at each tick: let nodes leave whose time has come, ask for the checkpoint of the
        others."""
        actions: list[Action] = []
        waiting: list[int] = []
        for number, drain in list(self._nodes.items()):
            node = core.fleet.nodes[number]
            if node.status == "lost":  # it ended sooner
                self._forget(core, number)
            elif not node.ranks or core.clock.now >= drain.until:
                actions += self._leave(core, number)
            else:
                waiting.append(drain.after)
        if waiting and core.phase == "running" and core.effects.due(AwaitCheckpoint):
            actions += core.effects.ask(AwaitCheckpoint(max(waiting)))
        return actions

    def found(self, core: Core, action: AwaitCheckpoint) -> list[Action]:
        """There is a complete checkpoint of a later step than ``action.after``."""
        core.effects.forget(AwaitCheckpoint)
        ready = [node for node, drain in self._nodes.items() if drain.after <= action.after]
        return [one for node in ready for one in self._leave(core, node)]

    def _leave(self, core: Core, number: int) -> list[Action]:
        drain = self._nodes[number]
        if eviction_refusal(core, number) and core.clock.now < drain.until:
            return []  # a spare may become ready
        self._forget(core, number)
        return evict(core, number)

    def _forget(self, core: Core, number: int) -> None:
        del self._nodes[number]
        self._keep(core)

    def _keep(self, core: Core) -> None:
        kept = tuple((node, one.after, one.notice_s) for node, one in self._nodes.items())
        core.drains, core.is_memory_stale = kept, True


def drain_refusal(core: Core, node: int) -> str:
    """Why the node cannot be drained now; empty when it can."""
    if any(node == draining for draining, *_ in core.drains):
        return f"node {node} is draining already"
    return eviction_refusal(core, node)
