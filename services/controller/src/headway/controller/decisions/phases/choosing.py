"""The phases reading, choosing and beginning: where the next generation starts.

They choose the copy of the state from which it starts, and its number.
"""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import ReadSeals
from headway.common.wire.messages.worker import Restore
from headway.controller.decisions import spikes
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import BeginGeneration, DurableFound, FindDurable, Send
from headway.controller.decisions.fleet import names
from headway.controller.decisions.phases.base import Phase, seconds

STARTED_OVER = "no node has a usable snapshot, and the run has no complete checkpoint yet"


class Reading(Phase):
    """The snapshots of all ranks are read from their arenas."""

    name = "reading"

    def look(self, core: Core, node: int | None) -> list[Action]:
        if core.members.vacant or core.fleet.unreachable:
            core.enter("gathering")
            return []
        if core.copies.unread:
            order = ReadSeals(run_id=core.run_id, epoch=core.epoch, generation=core.generation)
            asked = core.copies.unread if node is None else {node} & core.copies.unread.keys()
            return [Send(n, order) for n in asked if core.orders.due("seals", n)]
        core.enter("choosing")
        core.effects.forget(FindDurable)
        return []

    def limit_s(self, core: Core) -> float:
        return core.limits.read_timeout_s

    def overdue(self, core: Core) -> list[Action]:
        """Give up on nodes that do not answer: they count as having no snapshots."""
        for number in list(core.copies.unread):
            core.copies.give_up(number)
        return []

    def why(self, core: Core) -> str:
        return f"waiting for the snapshots of {names(core.copies.unread)} for {seconds(core)}"


class Choosing(Phase):
    """The newest complete checkpoint is looked for, and the restore point is chosen."""

    name = "choosing"

    def look(self, core: Core, _node: int | None) -> list[Action]:
        if core.members.vacant:
            core.enter("gathering")
            return []
        if core.effects.due(FindDurable):
            bad = tuple(sorted(core.copies.bad_checkpoints))
            return core.effects.ask(FindDurable(bad, core.marked, core.rollback_step))
        return []

    def limit_s(self, core: Core) -> float:
        """Shorter where the arenas hold a good copy: then the folder can only hold an older one."""
        limits = core.limits
        return limits.read_timeout_s if _in_arenas(core) else limits.choose_timeout_s

    def overdue(self, core: Core) -> list[Action]:
        """Snapshots will do; but a run never starts over beside checkpoints that may be good."""
        if core.rollback:
            return _give_up_rollback(core, _trouble(core))
        if core.spike:
            return [*spikes.give_up(core, _trouble(core)), *self.overdue(core)]
        if _in_arenas(core):
            return decide(core, None)
        detail = (
            "no node has a usable snapshot and the checkpoints cannot be read: "
            f"{_trouble(core)}; repair the checkpoints folder, then `headway run` resumes"
        )
        return core.finish("failed", detail)

    def why(self, core: Core) -> str:
        return f"looking for the newest checkpoint for {seconds(core)}: {_trouble(core)}"


class Beginning(Phase):
    """The generation's number must be on the disk before it is sent to any worker."""

    name = "beginning"

    def look(self, core: Core, _node: int | None) -> list[Action]:
        if core.members.vacant:
            core.enter("gathering")
            return []
        if core.clock.now < core.begins_at or not core.effects.due(BeginGeneration):
            return []
        # one that failed may yet be on the disk, so each try has its own number
        core.numbered = max(core.numbered, core.fleet.newest) + 1
        return core.effects.ask(
            BeginGeneration(core.numbered, dict(core.fleet.rank_nodes), core.restore.step)
        )

    def limit_s(self, core: Core) -> float:
        return core.limits.choose_timeout_s

    def why(self, core: Core) -> str:
        if core.clock.now < core.begins_at:
            return f"waiting before the next attempt: {core.crash_loop.repeated}"
        error = core.effects.error(BeginGeneration) or "no answer yet"
        number = core.numbered
        return f"the journal has not recorded generation {number} for {seconds(core)}: {error}"


def found(core: Core, event: DurableFound) -> list[Action]:
    """Take in what the checkpoints folder holds."""
    checkpoint, trouble = event.checkpoint, event.trouble
    if checkpoint is not None and checkpoint[0] in core.copies.bad_checkpoints:
        return []  # the answer to an earlier question; this one is asked again when it stays open
    if core.gave_up_at is not None and event.only < 0 and not trouble:
        core.final_checkpoint = _sentence(checkpoint)
    if event.only != core.rollback_step:
        return []  # an earlier question, too
    core.effects.settled(FindDurable, trouble or None)
    if core.phase != "choosing":
        return []
    if core.rollback and checkpoint is None and not trouble:
        return _give_up_rollback(core, f"there is no checkpoint of step {event.only}")
    if trouble and (core.rollback or core.spike or not _in_arenas(core)):
        return []
    return decide(core, checkpoint)


def _give_up_rollback(core: Core, why: str) -> list[Action]:
    """The run continues from its newest state, as after any other interruption."""
    log = Log("rollback_failed", {"step": core.rollback_step, "reason": why})
    core.end_rollback()
    core.effects.forget(FindDurable)
    return [log]


def decide(core: Core, checkpoint: tuple[int, str] | None) -> list[Action]:
    """Choose the restore point; end the run when the same failure led back to it too often.

    A run whose checkpoints are all damaged ends too: to start over would delete them.
    """
    actions: list[Action] = []
    if core.rollback and checkpoint is not None:
        core.restore = Restore(source="durable", step=checkpoint[0], folder=checkpoint[1])
    elif core.spike:
        core.restore, actions = spikes.go_back(core, checkpoint)
        if reason := spikes.refusal(core):
            return [*actions, *core.finish("failed", reason)]
    else:
        core.restore = core.copies.choose(core.fleet.rank_nodes, checkpoint)
    core.restore = spikes.skipping(core, core.restore)
    core.restore = core.copies.with_reader(core.restore, core.fleet.rank_nodes)
    core.is_memory_stale = True
    if core.restore.source == "init" and core.copies.bad_checkpoints:
        steps = ", ".join(map(str, sorted(core.copies.bad_checkpoints)))
        detail = (
            f"no node has a usable snapshot and every checkpoint is damaged (step {steps}); "
            "repair them, then `headway run` resumes, or start a new run"
        )
        return core.finish("failed", detail)
    if loop := core.crash_loop.count(core.restore.step):
        return [*actions, *core.finish("failed", loop)]
    core.enter("beginning")
    core.effects.forget(BeginGeneration)
    pause_s, reason = core.crash_loop.pause_s, core.crash_loop.repeated
    core.begins_at = core.clock.now + pause_s
    if pause_s:
        actions.append(Log("pause_before_retry", {"pause_s": pause_s, "reason": reason}))
    return actions


def begun(core: Core, action: BeginGeneration) -> list[Action]:
    """The number is on the disk: from now on it is the generation."""
    if core.phase != "beginning" or action.generation != core.numbered:
        return []
    before, core.marked = core.generation, action.generation
    core.generation = core.members.generation = action.generation
    for rank in core.members.workers:
        core.members.update(rank, core.view(rank))
    core.store = None
    core.copies.restarted(core.restore.step)
    core.is_memory_stale = True
    core.max_step, core.progress_at = core.restore.step, core.clock.now
    core.enter("joining")
    fields = {
        "generation": core.generation,
        "source": core.restore.source,
        "step": core.restore.step,
    }
    actions: list[Action] = [Log("generation", fields)]
    if core.restore.source == "init" and before >= 0:
        actions.append(Log("started_over", {"generation": core.generation, "reason": STARTED_OVER}))
    return actions


def _sentence(checkpoint: tuple[int, str] | None) -> str:
    if checkpoint is None:
        return "there is no checkpoint yet"
    return f"the newest checkpoint is of step {checkpoint[0]}"


def _in_arenas(core: Core) -> bool:
    return core.copies.choose(core.fleet.rank_nodes, None).source == "arena"


def _trouble(core: Core) -> str:
    return core.effects.error(FindDurable) or "the checkpoints folder does not answer"
