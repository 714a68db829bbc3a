"""``hosts.toml``: the machines of a cluster, and how a command is run on one of them.

shared = "/mnt/shared/headway"      # a folder that all machines see, for checkpoints
python = "/opt/headway/bin/python"  # on each machine, Headway installed

[[hosts]]
name = "gpu-01"
[[hosts]]
name = "gpu-02"
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from headway.common.errors import ConfigError
from headway.common.plan.topology import Chain
from headway.launch.engines.remote import hooks, topology_file
from headway.launch.engines.remote.config_file import check_absolute, check_python
from headway.launch.join.scratch import DEFAULT

SSH = (
    "ssh",
    "-o", "BatchMode=yes",
    "-o", "ConnectTimeout=5",
    "-o", "ServerAliveInterval=2",
    "-o", "ServerAliveCountMax=3",
    "{name}",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*")


@dataclass(frozen=True)
class Host:
    """One machine."""

    name: str
    """The name that the command that reaches the host knows it by."""


@dataclass(frozen=True)
class HostsConfig:
    """The file ``hosts.toml``."""

    shared: str
    """A folder that every machine sees at this path, with room for the checkpoints."""
    hosts: tuple[Host, ...]
    """Spares included; node K is the K-th of them."""
    python: str = "python3"
    """Python of the installation, on each machine."""
    reach: tuple[str, ...] = SSH
    """Command that runs its arguments on the machine ``{name}``, passing on standard input, output
    and the exit code. It must work on every node too, because each may have to host the driver."""
    fence: tuple[str, ...] = ()
    """Command that powers off an unreachable machine, such as
    ``["ipmitool", "-H", "{name}-bmc", "power", "off"]``; its exit code 0 confirms it."""
    drain: tuple[str, ...] = ()
    """Command that takes a machine out of service after a verdict has condemned it, with
    ``{name}`` and ``{reason}``; it is run once."""
    scratch: str = DEFAULT
    """Folder on each machine's own disk, for logs and keys; ``{uid}`` is the user's number there.
    It must belong to that user or to root."""
    topology: tuple[str, ...] = ()
    """Command that prints the switches above each machine in the form of ``topology.toml``, run
    when a run starts."""
    replace: tuple[str, ...] = ()
    """Command that brings another machine of the name ``{name}`` when one is lost for good, as by
    stopping and starting an instance, with ``{reason}``. Its exit code 0 says that the one before
    is gone and that the machine starts. It may run on every node, and twice for one loss."""

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if not names:
            raise ConfigError("hosts is empty", remedy="add a [[hosts]] table for each machine")
        for name in names:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"hosts: {name!r} is not a valid host name", remedy="write a host name"
                )
        if twice := {name for name, number in Counter(names).items() if number > 1}:
            raise ConfigError(
                f"hosts: {', '.join(sorted(twice))} is listed twice",
                remedy="list each machine once",
            )
        check_absolute(shared=self.shared, scratch=self.scratch)
        check_python(self.python)
        for key in ("reach", "fence", "drain", "replace"):
            hooks.check(key, getattr(self, key))

    def first(self, count: int) -> Self:
        """Return the configuration with the first ``count`` machines only."""
        return dataclasses.replace(self, hosts=self.hosts[:count])


@dataclass(frozen=True)
class HostsRun(HostsConfig):
    """The configuration with the machines' places in the network."""

    chains: dict[str, Chain] = field(default_factory=dict)
    """Those of ``topology.toml``, by machine."""
    switches: tuple[Chain, ...] = ()
    """Those above each machine of a run, the top one first; empty where none are known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [host.name for host in self.hosts]
        topology_file.check_known(self.chains, names, "hosts.toml")

    def first(self, count: int) -> Self:
        """Return the configuration with the first ``count`` machines and their places only."""
        names = {host.name for host in self.hosts[:count]}
        kept = {name: chain for name, chain in self.chains.items() if name in names}
        return dataclasses.replace(self, hosts=self.hosts[:count], chains=kept)

    def provided(self, count: int, report: Callable[[str], None]) -> HostsRun:
        """Return what a run on the first ``count`` machines keeps.

        Raises:
            ConfigError, DeadlineError: the topology cannot be used.
        """
        chains = topology_file.ask(self.topology, report) if self.topology else self.chains
        names = [host.name for host in self.hosts]
        switches = topology_file.above(names[:count], chains, report)
        return dataclasses.replace(self, hosts=self.hosts[:count], chains={}, switches=switches)
