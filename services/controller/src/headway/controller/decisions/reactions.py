"""What each event means: facts are taken in, and what follows at once is returned."""

from __future__ import annotations

from headway.common.decide import Action, Failed, Log
from headway.common.wire.messages.driver import NodeBeat, Seals, WorkerGone
from headway.common.wire.messages.executor import LeftGeneration
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions import spikes
from headway.controller.decisions.admission import node_checks
from headway.controller.decisions.admission.returning import returned
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    BeginGeneration,
    CheckCheckpoint,
    ReleaseNode,
    Remember,
    ReplaceMachine,
    RestartNode,
)
from headway.controller.decisions.fleet import names
from headway.controller.decisions.machines import replenishing
from headway.controller.decisions.node import Node
from headway.controller.decisions.phases.choosing import begun

_HAPPENED = {"error": "failed", "transport": "failed", "peer": "lost a peer"}
"""What a rank did that left its generation for this reason."""


def on_beat(core: Core, beat: NodeBeat) -> tuple[int | None, list[Action]]:
    """Take in a node's beat and return what follows from it.

    Returns the node when something of it has changed that phases look at, and what follows at once.
    """
    if beat.run_id and beat.run_id != core.run_id:
        return None, []
    received = core.fleet.receive(beat, core.clock.now)
    if received is None:
        return None, []
    node = received.node
    actions: list[Action] = []
    if node.step > core.max_step and node.ranks and node.generation == core.generation:
        core.step_s = (core.clock.now - core.progress_at) / (node.step - core.max_step)
        core.max_step, core.progress_at = node.step, core.clock.now
    core.on_order.pop(node.number, None)
    if received.was_silent:
        core.effects.forget(RestartNode, node.number)
    if received.returned:
        actions += returned(core, node)
    elif received.is_restarted and node.status != "lost":
        fields = {"node": node.number, "reason": beat.restarted_for}
        is_training = core.phase == "running"
        actions.append(Log("executor_restarted", {**fields, "is_training": is_training}))
    if received.is_checked:
        actions += node_checks.take(core, node)
    for change in received.changes:
        rank = core.members.rank_of.get(change.worker)
        if rank is None:
            continue
        if change.new is None and rank not in core.members.vacant:
            actions += core.lost_worker(change.worker, "its node does not report it any more")
        else:
            core.members.update(rank, core.fleet.living(change.worker))
            if change.new is not None:
                core.note_restored(rank, change.new)
    has_changed = (
        received.changes or received.was_silent or received.returned or core.fleet.unreachable
    )
    return (node.number if has_changed else None), actions


def on_gone(core: Core, gone: WorkerGone) -> list[Action]:
    """A worker's process has ended."""
    node, view = core.fleet.nodes.get(gone.node), core.fleet.worker(gone.worker)
    if node is None or core.fleet.home.get(gone.worker, gone.node) != gone.node:
        return []
    if view is not None and view.pid != gone.pid:
        return []  # of an earlier process
    was_living = core.fleet.living(gone.worker) is not None
    core.fleet.remove_dead(gone.node, gone.worker, gone.pid)
    return core.lost_worker(gone.worker, gone.reason) if was_living else []


def on_left(core: Core, left: LeftGeneration) -> list[Action]:
    """A worker left its generation."""
    if left.generation != core.generation or core.members.workers.get(left.rank) != left.worker:
        return []
    if core.view(left.rank) is None:
        return []
    core.fleet.mark_left(left.worker)
    core.members.update(left.rank, core.view(left.rank))
    if left.is_fatal:
        return core.finish("failed", f"rank {left.rank}: {left.detail}")
    if left.spike_end:
        return spikes.found(core, left)
    is_counted = _note_cause(core, left)
    if core.phase not in ("joining", "running"):
        return [_failure(core, left, is_counted)] if left.reason == "error" else []
    happened = _HAPPENED.get(left.reason, left.reason)
    return core.fence(
        f"rank {left.rank} {happened}: {left.detail}",
        is_symptom=left.reason in ("peer", "transport"),
        is_counted=is_counted,
    )


def _failure(core: Core, left: LeftGeneration, is_counted: bool) -> Log:
    """What a rank reports that failed while its generation was left already."""
    if is_counted:
        fields = {"worker": left.worker, "rank": left.rank, "reason": left.detail}
        return Log("worker_failed", fields)
    what = "snapshot" if left.bad_snapshot else "checkpoint"
    node = core.fleet.rank_nodes[left.rank]
    return Log(f"{what}_damaged", {"node": node, "rank": left.rank, "reason": left.detail})


def _note_cause(core: Core, left: LeftGeneration) -> bool:
    """Note why a rank left; False when a bad copy of the state was the cause, and not the code."""
    core.is_memory_stale = True
    is_bad_checkpoint = left.bad_checkpoint and core.restore.source == "durable"
    is_bad_snapshot = left.bad_snapshot and core.restore.source == "arena"
    if is_bad_checkpoint:
        part = left.rank if left.bad_part < 0 else left.bad_part
        is_bad_checkpoint = core.copies.unreadable(core.generation, core.restore, left.rank, part)
    if is_bad_snapshot:
        core.copies.bad_snapshot(left.rank, core.restore.step)
    if is_bad_checkpoint or is_bad_snapshot:
        core.crash_loop.bad_copy()
        return False
    if left.reason == "error":
        core.crash_loop.blame(left.detail, f"rank {left.rank} failed: {left.detail}")
        core.count_failure(left.rank, left.detail, is_error=True)
    if left.reason == "transport":
        core.crash_loop.suspect(left.detail, f"rank {left.rank} failed: {left.detail}")
    return True


def on_seals(core: Core, seals: Seals) -> list[Action]:
    """A node reports which snapshots it holds, and which arenas are damaged."""
    if seals.node not in core.copies.unread:
        return []
    core.copies.take(seals)
    return [
        Log("snapshot_damaged", {"node": seals.node, "rank": rank, "reason": reason})
        for rank, reason in sorted(seals.damaged.items())
    ]


def on_rebooted(core: Core, number: int) -> list[Action]:
    """A spare that is ready is faster; the machine becomes one once it has an idle worker."""
    node = core.fleet.nodes.get(number)
    if node is not None and not node.ranks and node.status != "lost":
        core.fleet.checks.forget(node)  # its memory and its disk may be others
    if node is None or not node.ranks or core.fleet.spare_for(number) is None:
        return []
    return core.lose_node(number, "its machine was rebooted or replaced", exclusion="trouble")


def on_done(core: Core, action: Action, note: str = "") -> list[Action]:
    """An action took effect."""
    is_newest = core.effects.settle(action)
    match action:
        case BeginGeneration() if is_newest:
            return begun(core, action)
        case CheckCheckpoint() if core.unchecked and core.unchecked.count == action.step:
            return roll_back(core)
        case ReleaseNode():
            core.fleet.nodes[action.node].is_released = core.is_memory_stale = True
        case RestartNode():
            core.on_order.pop(action.node, None)  # it was delivered
        case ReplaceMachine():
            return replenishing.on_delivered(core, action, note)
        case _:
            pass
    return []


def on_failed(core: Core, failed: Failed) -> list[Action]:
    """An action did not take effect; what needs it asks for it again."""
    action = failed.action
    if isinstance(action, ReplaceMachine):
        return replenishing.on_failed(core, action, failed.error)
    core.effects.settle(action, failed.error or "it failed")
    fields = {"action": type(action).__name__, "reason": failed.error}
    log: list[Action] = [Log("action_failed", fields)]
    if isinstance(action, RestartNode):
        _note_order(core, failed, action.node)
    match action:
        case RestartNode() if failed.is_final and core.fleet.nodes[action.node].is_missed:
            log += core.lose_node(action.node, failed.error, exclusion="gone")
        case ReleaseNode() if failed.is_final:
            core.fleet.nodes[action.node].is_released = core.is_memory_stale = True
        case CheckCheckpoint() if core.unchecked and core.unchecked.count == action.step:
            if not failed.is_final:
                return []  # it is read again, or still being read
            step = take_rollback(core).count
            return [Log("rollback_failed", {"step": step, "reason": failed.error})]
        case AwaitCheckpoint():
            return []  # not yet
        case Remember():
            return []  # on a full disk, a line for each would only make it worse
        case _:
            pass
    return log


def _note_order(core: Core, failed: Failed, node: int) -> None:
    """Note whether the engine has a machine on order for the node."""
    core.on_order.pop(node, None)
    if failed.is_on_order:
        core.on_order[node] = failed.error
        replenishing.on_queued(core, node)


def eviction_refusal(core: Core, node: int) -> str:
    """Why the node cannot be evicted now; empty when it can."""
    fleet = core.fleet
    if node not in fleet.nodes or fleet.nodes[node].exclusion in ("evicted", "gone"):
        return f"node {node} is not in the run"
    if fleet.nodes[node].exclusion == "ordered":
        return f"another machine is on order for node {node}"
    if fleet.nodes[node].ranks and fleet.spare_for(node) is None:
        return f"no spare is ready for node {node}"
    waiting = [lost for lost in core.lost_carriers() if lost != node]
    free = [n.number for n in fleet.nodes.values() if not n.ranks and n.status != "lost"]
    if node in free and len(free) <= len(waiting):
        return f"node {node} is to take over the ranks of {names(waiting)}"
    return ""


def evict(core: Core, node: int) -> list[Action]:
    """Take the node out of the run for good, unless it carries ranks and no spare is ready."""
    if refusal := eviction_refusal(core, node):
        return [Log("eviction_refused", {"node": node, "reason": refusal})]
    core.fleet.nodes[node].is_released = False
    core.machines.orders.pop(node, None)
    core.effects.forget(ReleaseNode, node)
    log = Log("evicted", {"node": node})
    return [log, *core.lose_node(node, "evicted", exclusion="evicted"), *release(core)]


def check_rollback(core: Core) -> list[Action]:
    """Have the checkpoint of a rollback read, while the run trains on."""
    if core.unchecked is not None and core.effects.due(CheckCheckpoint):
        return core.effects.ask(CheckCheckpoint(core.unchecked.count))
    return []


def take_rollback(core: Core) -> Steer:
    """The rollback that was looked at; it is not looked at again."""
    assert core.unchecked is not None
    steer, core.unchecked = core.unchecked, None
    core.rollbacks, core.is_memory_stale = steer.sequence, True
    core.effects.forget(CheckCheckpoint)
    return steer


def roll_back(core: Core) -> list[Action]:
    """The checkpoint is sound: leave the generation; the next one begins there."""
    step = take_rollback(core).count
    if step >= core.step:
        reason = f"the run is at step {core.step}"
        return [Log("rollback_failed", {"step": step, "reason": reason})]
    core.rollback = (step, core.generation)
    spikes.forget_after(core, step)
    log = Log("rollback", {"step": step, "from_step": core.step})
    reason = f"the run is rolled back to step {step} on request"
    return [log, *core.interrupted(reason, is_counted=False)]


def is_taken_out(core: Core, node: Node) -> bool:
    """Whether nothing of the run may stay on the node's machine."""
    is_condemned = node.exclusion == "verdict" and core.replaces != "nothing"
    return is_condemned or node.exclusion == "evicted"


def release(core: Core) -> list[Action]:
    """Have the machines of nodes that were taken out given back, until that is done.

    Those are evicted ones and, where the engine brings another machine, condemned ones.
    """
    return [
        action
        for node in map(core.fleet.nodes.__getitem__, core.fleet.excluded)
        if is_taken_out(core, node)
        and not node.is_released
        and core.effects.due(ReleaseNode, node.number)
        for action in core.effects.ask(ReleaseNode(node.number))
    ]
