"""Reads what describes a cluster's machines: hosts.toml, slurm.toml or kubernetes.toml."""

from __future__ import annotations

from pathlib import Path

from headway.console.pods.kubeconfig import with_whole_path
from headway.launch.engines.choose import MachinesConfig
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.remote.topology_file import read_next_to
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
from headway.launch.engines.ssh.config import HostsConfig, HostsRun


def read_machines(
    hosts: Path | None, slurm: Path | None, kubernetes: Path | None = None
) -> MachinesConfig:
    """What the one file that is given says, and a ``topology.toml`` next to it.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if hosts is not None:
        listed = read_config(HostsConfig, hosts)
        return HostsRun(**vars(listed), chains=read_next_to(hosts, listed.topology))
    if slurm is not None:
        given = read_config(SlurmConfig, slurm)
        return SlurmRun(**vars(given), chains=read_next_to(slurm, given.topology))
    assert kubernetes is not None
    return with_whole_path(read_config(KubernetesConfig, kubernetes))
