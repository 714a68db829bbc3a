"""One simulated node, whose driver is played."""

from __future__ import annotations

import random
from typing import Any

from headway.common.wire.messages.executor import DriverBeat
from headway.launch.lease.base import Holder, LeaseView
from headway.testkit.simulation.lease import Lease
from headway.testkit.simulation.node import RUN_ID, Node
from headway.trainer.config import LaunchConfig, ParallelConfig, RunConfig

TICK_S = 0.25


class LoneNode(Node):
    """Node 1 of two, with two ranks and a standby; a driver on node 0 beats by default.

    Args:
        seed: decides what is random.
        disturbances: as the switches of ``Node``.
    """

    driver_beats = True
    active = True
    """The driver wants ranks on this node."""

    def __init__(self, seed: int = 0, **disturbances: Any) -> None:
        config = RunConfig(
            parallel=ParallelConfig(dp=4), launch=LaunchConfig(nodes=2, ranks_per_node=2)
        )
        lease = Lease(LeaseView(1, Holder(1, 0, 9, 9, "tcp://x", "k")))
        super().__init__(1, config, lease, random.Random(seed))
        self.watch_executor()
        assert self.executor is not None
        self.executor.since = -1.0  # it serves at once
        for name, value in disturbances.items():
            setattr(self, name, value)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until and not self.outcome:
            self.pass_time(TICK_S)
            self.tick(self.now)
            self._play_driver()

    def pass_time(self, seconds: float) -> None:
        """Time passes and the node does not run: what was sent meanwhile waits."""
        self.now += seconds
        holder = self.lease.view.holder
        if holder is not None and self.driver_beats:
            beat = int(self.now / TICK_S)
            made = Holder(holder.epoch, holder.node, 9, 9, "tcp://x", "k", beat)
            self.lease.view = LeaseView(max(self.lease.view.claimed, holder.epoch), made)

    def _play_driver(self) -> None:
        holder = self.lease.view.holder
        if self.driver_beats:
            beat = DriverBeat(
                epoch=holder.epoch if holder is not None else 0,
                refill=True,
                active=self.active,
                known_version=self.guardian.version,
                run_id=RUN_ID,
            )
            self.on_order(beat)

    def restart_executor(self) -> None:
        """The executor dies, and its init starts another one."""
        if self.executor is not None:
            self.executor.kill()
            self.watch_executor()
