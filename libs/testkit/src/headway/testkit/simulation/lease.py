"""The driver's lease, as every node of a simulated run sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.common.node.process import ProcessId
from headway.launch.lease.base import Holder, LeaseView


@dataclass
class Lease:
    """Claimed by executors, renewed by drivers."""

    view: LeaseView = field(default_factory=LeaseView)

    def claim(self, after: int) -> int | None:
        """Returns the epoch that was won; None when another executor was faster."""
        if self.view.claimed != after:
            return None
        self.view = LeaseView(after + 1, self.view.holder)
        return after + 1

    def renew(self, epoch: int, node: int, process: ProcessId) -> bool:
        """Returns False when a newer epoch was claimed."""
        holder = self.view.holder
        if self.view.claimed > epoch:
            return False
        beat = holder.beat + 1 if holder is not None and holder.epoch == epoch else 0
        made = Holder(epoch, node, process.pid, process.start_ticks, "tcp://x", "k", beat)
        self.view = LeaseView(self.view.claimed, made)
        return True
