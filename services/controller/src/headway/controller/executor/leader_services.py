"""What a node keeps beside its other services while it leads the run: driver, monitor and sinks."""

from __future__ import annotations

from collections.abc import Sequence

from headway.common.decide import Action, Log
from headway.common.node.process import ProcessId
from headway.controller.executor.election import LeaseCandidate
from headway.controller.executor.services import Service, Services
from headway.trainer.config import RunConfig

LEADER_SERVICES = ("driver", "monitor")  # and a sink for each exporter
SINK = "sink-"
"""Before the name of a sink: its exporter as a service."""


def leader_services(config: RunConfig) -> tuple[str, ...]:
    """What the node that leads keeps beside its other services."""
    return (*LEADER_SERVICES, *(f"{SINK}{name}" for name in config.launch.sinks))


class LeaderServices:
    """Kept and retired as the lease demands. Times are those of the executor's own clock.

    Args:
        names: as ``leader_services``.
        services: all services of the node.
        leading: decides when to lead.
    """

    def __init__(self, names: Sequence[str], services: Services, leading: LeaseCandidate) -> None:
        self.names, self._services, self._leading = names, services, leading

    def keep(self, name: str, epoch: int, process: ProcessId | None, now: float) -> Service:
        """Keep a service from now on; ``process`` is the one that already runs."""
        is_reporting = name != "driver" and not name.startswith(SINK)
        service = self._services.keep(name, now, process, is_reporting=is_reporting)
        if name == "driver":
            service.epoch = service.started_epoch = epoch
            service.may_start = process is not None
        return service

    def claimed(self, epoch: int | None, now: float) -> list[Action]:
        """Take in the answer to a claim: the epoch that was won, None when another was faster."""
        self._leading.claimed(epoch)
        if epoch is None:
            return self._leave(now)
        for name in self.names:
            service = self.keep(name, epoch, None, now)
            if name == "driver":
                service.epoch, service.may_start = epoch, True
                if service.status == "asked":  # for an epoch that is over
                    service.status = "down"
        actions: list[Action] = [Log("this node leads the run", {"epoch": epoch})]
        if self._services.process("driver") is not None:
            actions += self._services.blame("driver", "it did not renew its lease", now)
        return actions

    def due(self, now: float, *, silent_s: float, is_readable: bool) -> list[Action]:
        """Claim the lease, or leave it to the node that leads, when it is time to.

        Args:
            silent_s: how long the drivers were silent.
            is_readable: whether the newest look at the lease could read it.
        """
        driver = self._services.kept.get("driver")
        standing = self._leading.next(
            now,
            own=_own_driver(driver, now),
            failures=driver.backoff.failures if driver is not None else 0,
            silent_s=silent_s,
            is_readable=is_readable,
        )
        if standing.leave:
            return [Log("another node leads the run"), *self._leave(now)]
        return [standing.claim] if standing.claim is not None else []

    def _leave(self, now: float) -> list[Action]:
        return [action for name in self.names for action in self._services.retire(name, now)]


def _own_driver(driver: Service | None, now: float) -> str:
    if driver is None:
        return ""
    if driver.status != "down" or driver.may_start:
        return "up"
    return "down" if driver.backoff.is_over(now) else "waiting"
