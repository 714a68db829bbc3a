"""What is asked of the machines of a cluster, whichever engine has them."""

from __future__ import annotations

from collections.abc import Iterable

from headway.common.errors import InputError
from headway.launch.engines.choose import MachinesConfig
from headway.launch.engines.remote.survey import Surveyed
from headway.launch.engines.slurm import survey as slurm
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.ssh import survey as ssh
from headway.launch.engines.ssh.config import HostsConfig


def survey(config: MachinesConfig, nodes: int = 0) -> list[Surveyed]:
    """Ask machines what they have: all that are listed, or ``nodes`` that Slurm chooses.

    By 0 only whether Slurm answers is checked.

    Raises:
        InputError: this machine cannot write in the shared folder, or there are no machines yet.
        HeadwayError: Slurm does not give them.
    """
    if isinstance(config, SlurmConfig):
        slurm.check_answers()
        return slurm.survey(config, nodes) if nodes else []
    if isinstance(config, HostsConfig):
        return ssh.survey(config)
    raise InputError(
        "pods cannot be asked before they exist", remedy="see docs/howto/kubernetes.md"
    )


def left(config: MachinesConfig, run_ids: Iterable[str]) -> list[str]:
    """A line for each thing that is left of these runs on a machine, or may be.

    Raises:
        HeadwayError: Slurm does not answer.
    """
    if isinstance(config, SlurmConfig):
        return slurm.left_of(run_ids)
    return ssh.left_on(config, run_ids) if isinstance(config, HostsConfig) else []
