"""Snapshots in memory that the nodes make durable on their own.

They do so when an end is announced, and the ranks do not step and so make no checkpoint.
"""

from __future__ import annotations

from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import SaveSnapshots
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Send
from headway.controller.decisions.replacing import giving_way

STILL_S = 1.5
"""Ranks that have reported no step for so long do not step; beats are 0.5 s apart."""
STILL_STEPS = 3
"""``STILL_S`` in steps as long as the newest."""
AGAIN_S = 0.5
LONGEST_AGAIN_S = 30.0
"""Pause before the order is repeated: doubles from the first to the longest. A store that has
nothing new to write ignores it."""
ENDS = ("stop", "checkpoint")
"""Commands that say that the state must not be lost."""


class Saves:
    """Orders the stores of all nodes to write the newest snapshot, while that is needed."""

    def __init__(self) -> None:
        self._at = (-1, -1)
        self._asked_at, self._pause_s = 0.0, AGAIN_S

    def look(self, core: Core) -> list[Action]:
        """Called at each tick of a run that is not over."""
        if not is_still(core) or not _is_end_announced(core):
            self._at = (-1, -1)
            return []
        now, at = core.clock.now, (core.generation, core.step)
        is_new = at != self._at
        if not is_new and now - self._asked_at < self._pause_s:
            return []
        self._pause_s = AGAIN_S if is_new else min(2 * self._pause_s, LONGEST_AGAIN_S)
        self._at, self._asked_at = at, now
        order = SaveSnapshots(run_id=core.run_id, epoch=core.epoch)
        carriers = sorted(set(core.fleet.rank_nodes.values()))
        sends: list[Action] = [Send(node, order) for node in carriers]
        return [*([Log("saving_from_memory", {"step": core.step})] if is_new else []), *sends]


def is_still(core: Core) -> bool:
    """Whether the ranks do not step now.

    They are paused, evaluate or compile, or a generation is being left or begun.
    """
    if core.phase != "running" or core.members.num_paused:
        return True
    return core.clock.now - core.progress_at > max(STILL_S, STILL_STEPS * core.step_s)


def step_in_memory(core: Core) -> int:
    """The newest step that every rank may hold in memory, or has restored.

    With snapshots at measured distances it is taken to be the newest one: if they hold an older
    one, a drain that waits for it continues when the ranks step again.
    """
    every = core.snapshot_every
    return max(core.restore.step, (core.step - 1) // every * every)


def _is_end_announced(core: Core) -> bool:
    if any(core.fleet.nodes[node].ranks for node, *_ in core.drains) or giving_way(core):
        return True
    done = max(core.applied, core.answered)  # a member that was a standby has applied none
    return any(one.operation in ENDS for one in core.commands[done:])
