"""What a device has finished of the collectives that were queued on it, without waiting for any."""

from __future__ import annotations

from typing import Protocol

from headway.common.node.group_table import NO_LINE, GroupLine


class DeviceWork(Protocol):
    """``torch.distributed.Work`` over NCCL is one."""

    def is_completed(self) -> bool:
        """Whether the device has finished it, or it was aborted; never waits."""


class DeviceWorks:
    """The newest work of each line of one generation.

    Only the newest one is kept, since a work keeps its tensors: once it is done, so are all before
    it. Where it is not, ``DeviceRecorder`` counts those that its records have waited for.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[GroupLine, int, DeviceWork]] = {}

    def add(self, line: GroupLine, work: DeviceWork) -> None:
        """Note that ``work`` was queued; on the thread that computes."""
        if line is not NO_LINE:
            self._newest[line.line] = (line, line.entered, work)

    def advance(self) -> None:
        """Count what the device has finished; on another thread."""
        for number, (line, entered, work) in list(self._newest.items()):
            if work.is_completed():
                line.reach(entered)
                if self._newest.get(number) == (line, entered, work):
                    self._newest.pop(number, None)
