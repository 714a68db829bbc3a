"""Limits at which a run ends: a missing node, and a stop command.

The node is missing without a ready spare. The command ends the run by force when its ranks make no
progress.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.common.decide import Action
from headway.controller.decisions.admission.same_code import code_sentence, refused_nodes
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import FindDurable, RestartNode
from headway.controller.decisions.fleet import names
from headway.controller.decisions.machines import replenishing
from headway.controller.decisions.phases.base import ranks

GONE_AGAIN_S = 60.0
"""How often a machine that the engine called gone is asked for again: it may have been repaired."""
KEPT_S = 60.0
"""A successor knows the wait in whole multiples of this."""


def watch(core: Core) -> list[Action]:
    """Count the time in which a node is missing, and end the run at the limit.

    Called at each tick. Time in which the engine has a machine on order, or one that was ordered in
    vain is ordered again, does not count. The count begins anew once the run has stepped.
    """
    elapsed_s, core.wait_seen_at = core.clock.now - core.wait_seen_at, core.clock.now
    if core.phase == "running":
        _count(core, 0.0)
    if core.phase != "gathering" or not (missing := _missing(core)):
        core.gave_up_at, core.final_checkpoint = None, ""
        return []
    core.cost.discard()  # waiting for a machine is not what a recovery costs
    if not any(number in core.on_order or replenishing.is_open(core, number) for number in missing):
        _count(core, core.waited_s + elapsed_s)
    if 0 < core.limits.wait_for_node_s <= core.waited_s:
        return _give_up(core)
    return [action for number in missing for action in _ask_again(core, number)]


def _count(core: Core, waited_s: float) -> None:
    core.is_memory_stale |= waited_s // KEPT_S != core.waited_s // KEPT_S
    core.waited_s = waited_s


def _missing(core: Core) -> list[int]:
    """Return the nodes with ranks that cannot carry them.

    They are lost, silent for so long that a spare would have taken over, run other code, or have
    had no worker for a rank for ``gather_timeout_s``.
    """
    given_up = [
        number
        for number in core.fleet.unreachable
        if core.fleet.nodes[number].status == "lost"
        or core.clock.now - core.fleet.nodes[number].beat_at >= core.limits.node_lost_s
    ]
    is_late = core.clock.now - core.since >= core.limits.gather_timeout_s
    return sorted({*given_up, *refused_nodes(core), *(short(core) if is_late else ())})


def short(core: Core) -> list[int]:
    """Nodes that report and lack a worker for one of their ranks."""
    nodes = {core.fleet.rank_nodes[rank]: None for rank in core.members.vacant}
    return sorted(number for number in nodes if core.fleet.nodes[number].status == "active")


def no_worker(core: Core, number: int) -> str:
    """Which ranks of a node have no worker, and why, as a sentence."""
    node = core.fleet.nodes[number]
    vacant = [rank for rank in node.ranks if rank in core.members.vacant]
    because = f": {node.trouble}" if node.trouble else ""
    return f"node {number} has no worker for {ranks(vacant)}{because}"


def _ask_again(core: Core, number: int) -> list[Action]:
    """The engine has no machine for it; silent nodes are restarted by ``silence``."""
    if core.fleet.nodes[number].exclusion != "gone":
        return []
    if core.clock.now - core.effects.asked_at(RestartNode, number) < GONE_AGAIN_S:
        return []
    return core.effects.ask(RestartNode(number))


def _give_up(core: Core) -> list[Action]:
    """End the run, once the newest checkpoint is known, or cannot be found out."""
    if core.gave_up_at is None:
        core.gave_up_at = core.clock.now
        core.effects.forget(FindDurable)  # an earlier answer may be an old one
    late_s = core.clock.now - core.gave_up_at
    if not core.final_checkpoint and late_s < core.limits.choose_timeout_s:
        if core.effects.due(FindDurable):
            bad = tuple(sorted(core.copies.bad_checkpoints))
            return core.effects.ask(FindDurable(bad, core.marked))
        return []
    return core.finish("failed", _farewell(core))


def _farewell(core: Core) -> str:
    kept = core.final_checkpoint or "the checkpoints cannot be read now"
    if refused := refused_nodes(core):
        return f"{code_sentence(core, refused)}; {kept}"
    known = replenishing.sentences(core)
    why = "".join(f"; {known[number]}" for number in _missing(core)[:1] if number in known)
    return f"{missing_sentence(core)}{why}; {kept}; {_remedy(core)}"


def _remedy(core: Core) -> str:
    """What the user can do, as far as it is certain to work."""
    repair = "repair the machine, then `headway run` again, with launch.spares where there are more"
    lost = core.fleet.unreachable
    left = [n for n, node in core.fleet.nodes.items() if n not in lost and node.status != "lost"]
    world = len(core.fleet.rank_nodes)
    fewer = next((n for n in range(len(left), 0, -1) if world % n == 0), 0)
    if not fewer:
        return repair
    sets = {"nodes": fewer, "ranks_per_node": world // fewer, "spares": len(left) - fewer}
    words = " ".join(f"--set launch.{name}={value}" for name, value in sets.items())
    room = f"{world // fewer} ranks" if world // fewer > 1 else "a rank"
    return f"{repair}; or, if a machine has room for {room}, `headway run` with {words}"


def outlook(core: Core) -> str:
    """For the status: how long the run has waited, and what happens at the limit.

    Empty while no node is missing for long.
    """
    missing = _missing(core)
    if not missing:
        return ""
    limit_s = core.limits.wait_for_node_s
    end = f"the run ends after {limit_s:g} s" if limit_s else "without a limit"
    ordered = [core.on_order[number] for number in missing if number in core.on_order]
    if ordered:
        return f"; the engine has a machine on order, which is waited for: {ordered[0]}"
    known = replenishing.sentences(core)
    awaited = [known[number] for number in missing if replenishing.is_open(core, number)]
    if awaited:
        return f"; {awaited[0]}"
    given_up = [f"; {known[number]}" for number in missing if number in known]
    return f"{''.join(given_up[:1])}; waited for {core.waited_s:.0f} s, {end}"


def missing_sentence(core: Core) -> str:
    """Which nodes are missing, as a sentence."""
    if lost := core.lost_carriers():
        return f"{names(lost)} {'are' if len(lost) > 1 else 'is'} lost and no spare is ready"
    silent = sorted(core.fleet.unreachable)
    if not silent:
        return "; ".join(no_worker(core, number) for number in short(core))
    has = "have" if len(silent) > 1 else "has"
    return f"{names(silent)} {has} not reported for {_silence(core, silent)}"


def _silence(core: Core, nodes: list[int]) -> str:
    longest_s = max(core.clock.now - core.fleet.nodes[number].beat_at for number in nodes)
    return f"{max(0.0, longest_s):.0f} s"


class StopWatch:
    """Measures how long a stop command has made no progress."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._moved_at = 0.0
        self._best = (-1, -1, -1)

    def look(self, core: Core, why: Callable[[], str]) -> list[Action]:
        """Called at each tick; ends a run that does not stop.

        Args:
            why: returns why the run does not step now.
        """
        if not any(command.operation == "stop" for command in core.commands):
            return []
        now = core.clock.now
        progress = (core.step, core.applied, core.members.current["finished"])
        if self._since is None:
            self._since = self._moved_at = now
        # only new bests: a run that recovers repeatedly steps too
        if any(new > best for new, best in zip(progress, self._best, strict=True)):
            self._moved_at = now
            self._best = tuple(map(max, progress, self._best))  # type: ignore[assignment]
        if now - self._moved_at < core.limits.stop_timeout_s:
            return []
        because = why() or "its ranks step no more"
        return core.finish("stopped", f"ended by force after {now - self._since:.0f} s: {because}")
