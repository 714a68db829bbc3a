"""Planned ends of nodes: a checkpoint first, then a spare takes over, and no crash is counted.

Ranks that step make the checkpoint; of others the stores write what is in memory (``saves``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headway.common.decide import Action, Log
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import AwaitCheckpoint, DrainNode
from headway.controller.decisions.fleet import names
from headway.controller.decisions.reactions import evict, eviction_refusal
from headway.controller.decisions.saves import is_still, step_in_memory

SETTLED = ("joining", "running")
"""Phases in which it is known which step the ranks hold."""


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
        self._generation = core.generation
        self._awaited = -1

    def begin(self, core: Core, event: DrainNode) -> list[Action]:
        """A node will end; the ranks have the command to make a checkpoint already.

        A second notice for it, such as one that was sent again, can only shorten the time.
        """
        if refusal := drain_refusal(core, event.node):
            return [Log("drain_refused", {"node": event.node, "reason": refusal})]
        self._follow(core)
        until = core.clock.now + event.notice_s
        if event.is_announced or core.replaces == "lost":  # there, a drain is for maintenance
            core.is_memory_stale |= event.node not in core.machines.leaving
            core.machines.leaving[event.node] = None
        if (known := self._nodes.get(event.node)) is not None:
            if until < known.until:
                self._nodes[event.node] = replace(known, notice_s=event.notice_s, until=until)
                self._keep(core)
            return self.look(core)
        self._nodes[event.node] = Drain(core.step, event.notice_s, until)
        self._keep(core)
        core.effects.forget(AwaitCheckpoint)
        fields = {"node": event.node, "notice_s": event.notice_s, "step": core.step}
        return [Log("draining", fields), *self.look(core)]

    def look(self, core: Core) -> list[Action]:
        """Let nodes leave whose time has come, and ask for the checkpoint of the others.

        Called at each tick.
        """
        self._follow(core)
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
        if waiting and core.phase in SETTLED:
            actions += self._await(core, int(min(max(waiting), _enough(core))))
        return actions

    def _await(self, core: Core, after: int) -> list[Action]:
        if after != self._awaited:
            self._awaited = after
            core.effects.forget(AwaitCheckpoint)
        is_due = core.effects.due(AwaitCheckpoint)
        return core.effects.ask(AwaitCheckpoint(after)) if is_due else []

    def sentence(self, core: Core) -> str:
        """Which nodes are about to leave, and when at the latest; empty without any."""
        leaving = [
            f"{names([node])} leaves after a checkpoint, "
            f"at the latest in {drain.until - core.clock.now:.0f} s"
            for node, drain in self._nodes.items()
        ]
        return "; ".join(leaving)

    def found(self, core: Core, action: AwaitCheckpoint) -> list[Action]:
        """There is a complete checkpoint of a later step than ``action.after``."""
        core.effects.forget(AwaitCheckpoint)
        enough = _enough(core) if core.phase in SETTLED else math.inf
        ready = [n for n, one in self._nodes.items() if min(one.after, enough) <= action.after]
        return [one for node in ready for one in self._leave(core, node)]

    def _follow(self, core: Core) -> None:
        """A generation that went back carries the command out again, at an earlier step."""
        if core.generation == self._generation or core.phase not in SETTLED:
            return
        self._generation = core.generation
        for number, drain in self._nodes.items():
            if core.restore.step < drain.after:
                self._nodes[number] = replace(drain, after=core.restore.step)
                core.effects.forget(AwaitCheckpoint)
                self._keep(core)

    def _leave(self, core: Core, number: int) -> list[Action]:
        drain = self._nodes[number]
        if eviction_refusal(core, number):
            if core.clock.now < drain.until:
                return []  # a spare may become ready
            core.machines.leaving.pop(number, None)  # it stays
        self._forget(core, number)
        return evict(core, number)

    def _forget(self, core: Core, number: int) -> None:
        del self._nodes[number]
        self._keep(core)

    def _keep(self, core: Core) -> None:
        kept = tuple((node, one.after, one.notice_s) for node, one in self._nodes.items())
        core.drains, core.is_memory_stale = kept, True


def _enough(core: Core) -> float:
    """Return the step after which a checkpoint loses nothing.

    A later checkpoint loses nothing while the ranks do not step, because the stores write what they
    hold in memory. Infinity while the ranks step.
    """
    return step_in_memory(core) - 1 if is_still(core) else math.inf


def drain_refusal(core: Core, node: int) -> str:
    """Why the node cannot be drained now; empty when it can."""
    if any(node == draining for draining, *_ in core.drains):
        return ""
    if node in core.fleet.nodes and core.fleet.nodes[node].status == "lost":
        return f"node {node} is lost already"
    if (refusal := eviction_refusal(core, node)) or not core.fleet.nodes[node].ranks:
        return refusal
    before = [number for number, *_ in core.drains if core.fleet.nodes[number].ranks]
    if len(core.fleet.ready_spares()) <= len(before):
        return f"no spare is ready for node {node} besides those for {names(before)}"
    return ""
