"""``train.on_spike = "rollback"``: to the newest checkpoint, whose data continue behind the spike.

Restored again, that checkpoint passes over the same samples, so what came of a spike does not
depend on the failures after it. A newer checkpoint has its samples behind it anyway.
"""

from __future__ import annotations

import msgspec
from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import LeftGeneration
from headway.common.wire.messages.worker import Restore
from headway.controller.decisions.core import Core


def found(core: Core, left: LeftGeneration) -> list[Action]:
    """A rank met a spike; all ranks meet the same one, and leave."""
    core.spike, core.is_memory_stale = max(core.spike, left.spike_end), True
    if core.phase not in ("joining", "running"):
        return []
    log = Log("spike", {"step": core.step, "reason": left.detail})
    return [log, *core.fence(left.detail, is_counted=False)]


def go_back(core: Core, checkpoint: tuple[int, str] | None) -> tuple[Restore, list[Action]]:
    """Return the restore point after a spike, and what to log about it.

    Without a checkpoint it is the beginning of the run.
    """
    restore = Restore(source="init", step=0)
    if checkpoint is not None:
        restore = Restore(source="durable", step=checkpoint[0], folder=checkpoint[1])
    samples, count = core.passes.get(restore.step, (0, 0))
    if samples == core.spike:  # once more: no step was made since
        return restore, []
    core.passes[restore.step] = (core.spike, count + 1)
    core.is_memory_stale = True
    fields = {"step": restore.step, "samples": core.spike, "count": count + 1}
    return restore, [Log("spike_rollback", fields)]


def end(core: Core) -> None:
    """Record that the run steps behind the spike.

    Snapshots from before it are gone, so that a failure from now on leads to the newest state
    again.
    """
    if core.spike:
        core.spike, core.is_memory_stale = 0, True


def give_up(core: Core, why: str) -> list[Action]:
    """Record that no checkpoint can be looked for after a spike.

    The newest state then meets the spike again. That makes no progress, so the brake counts it.
    """
    core.spike, core.is_memory_stale = 0, True
    core.crash_loop.blame("spike", f"no checkpoint to go back to after a spike: {why}")
    return [Log("spike_rollback_failed", {"reason": why})]


def refusal(core: Core) -> str:
    """Why the run ends instead of going back once more; empty when it continues."""
    limit = core.limits.max_spike_rollbacks
    _, count = core.passes.get(core.restore.step, (0, 0))
    if core.restore.source == "arena" or count <= limit:
        return ""
    return (
        f"{count} spikes after step {core.restore.step} with no checkpoint between them, "
        f"recovery.max_spike_rollbacks={limit}; lower optim.lr, raise train.spike_factor, or fork "
        "an earlier checkpoint"
    )


def skipping(core: Core, restore: Restore) -> Restore:
    """The restore point with the samples that are passed over from it."""
    samples, _ = core.passes.get(restore.step, (0, 0))
    if not samples or restore.source == "arena":  # a snapshot knows its position
        return restore
    return msgspec.structs.replace(restore, skip_to=samples)  # type: ignore[type-var]


def forget_after(core: Core, step: int) -> None:
    """The user went back to ``step``: what was met after it may not come again."""
    core.spike = 0
    core.passes = {at: passed for at, passed in core.passes.items() if at <= step}
