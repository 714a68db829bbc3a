"""The table ``[launch]``: where the ranks run, and where their metrics go."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from headway.common.config_checks import at_least
from headway.common.errors import ConfigError
from headway.common.wire.addresses import Network
from headway.trainer.config.ports import MetricsPorts

SINKS = ("tensorboard", "wandb")
"""What ``launch.sinks`` and ``headway export --to`` may name."""


@dataclass(frozen=True)
class LaunchConfig:
    """Where the ranks run, and where their metrics go."""

    nodes: int = 1
    """Nodes that train: emulated on this machine, or machines of ``--cluster`` or Slurm."""
    ranks_per_node: int = 1
    """Worker processes on each node."""
    spares: int = 0
    """Idle nodes that replace a lost one."""
    standbys: int = 1
    """Warm standby workers kept on each node."""
    threads_per_rank: int = 1
    """OpenMP threads of one worker."""
    interface: str = ""
    """Where the services of the run listen: the name of a network interface (``"eth0"``), a network
    (``"10.0.0.0/16"``) in which each machine has an address, or an address; ``""`` is loopback."""
    fabric: str = ""
    """``interface`` for the traffic of the ranks (gloo and NCCL); ``""`` is what that names."""
    ports: str = ""
    """The ports of the services and of the store in which ranks meet, such as ``"20000-20999"``;
    ``""`` takes any free ones. gloo and NCCL choose their own."""
    sinks: tuple[str, ...] = ()
    """Where the run exports its metrics while it is live: ``["tensorboard"]``, ``["wandb"]`` or
    both. A process of its own writes them to ``sinks/`` in the run's folder; training does not
    depend on it."""
    log_mib: int = 64
    """Size of a process's log file, in MiB, from which the process begins a new one; 0 means never.
    Of each log one older file is kept, ``NAME.log.1``."""
    metrics_port: int = 0
    """First of the loopback ports on which the services of the run serve Prometheus metrics; 0
    turns them off. The driver has this port, the monitor the next one, and node ``n`` the four
    from ``metrics_port + 2 + 4 * n`` on: executor, dataloader, ckpt_store, agent."""

    def __post_init__(self) -> None:
        at_least(self, "launch", 1, "nodes", "ranks_per_node", "threads_per_rank")
        at_least(self, "launch", 0, "spares", "standbys", "log_mib")
        Network(self.interface, self.fabric, self.ports)
        for name in self.sinks:
            check_sink(name)
        if len(set(self.sinks)) < len(self.sinks):
            raise ConfigError(
                f"launch.sinks={list(self.sinks)} names a sink twice", remedy="name each once"
            )
        if self.metrics_ports is not None:
            self.metrics_ports.check()

    @property
    def network(self) -> Network:
        """Where the processes of the run listen."""
        return Network(self.interface, self.fabric, self.ports)

    @property
    def metrics_ports(self) -> MetricsPorts | None:
        """The ports of all services of the run, None where metrics are off."""
        if not self.metrics_port:
            return None
        return MetricsPorts(self.metrics_port, self.nodes + self.spares)


def check_sink(name: str) -> None:
    """Raises ConfigError unless ``name`` is a sink, with the nearest name as the remedy."""
    if name not in SINKS:
        near = difflib.get_close_matches(name, SINKS, n=1, cutoff=0.4)
        remedy = f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(SINKS)}"
        raise ConfigError(f"there is no sink {name!r}", remedy=remedy)
