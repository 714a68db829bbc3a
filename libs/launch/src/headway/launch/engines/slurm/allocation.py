"""An allocation for a new run, and the jobs of a run in general."""

from __future__ import annotations

import contextlib
import ipaddress
import shlex
import socket
import time
from collections.abc import Callable, Sequence

from headway.common.errors import DeadlineError, HeadwayError
from headway.common.plan.topology import Chain
from headway.launch.engines.remote import topology_file
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.slurm import commands
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun

POLL_S = 2.0


def job_name(run_id: str) -> str:
    """Return the name of a run's allocation."""
    return f"headway-{run_id}"


def submit(config: SlurmConfig, name: str, nodes: int, control: str, *words: str) -> str:
    """Queue a job and return its number.

    Its batch script, ``hold``, ends it when no driver leads the run.
    """
    keeps = ["--no-kill"] if nodes > 1 else []  # a job of one machine ends with it
    options = [*keeps, f"--signal=USR1@{config.notice_s}", *config.options]
    script = [config.python, "-m", "headway.launch.engines.slurm.hold", control, *words]
    return commands.submit(name, nodes, options, [shlex.quote(word) for word in script])


def allocate(
    config: SlurmConfig, run_id: str, control: str, nodes: int, report: Callable[[str], None]
) -> SlurmRun:
    """Queue the allocation of a run and wait until it runs.

    Raises:
        HeadwayError: Slurm refuses it, cannot give so many machines, or it ended before it ran;
            nothing stays queued. ConfigError: its topology cannot be used.
    """
    name = job_name(run_id)
    chains = config.chains if isinstance(config, SlurmRun) else {}
    _check_known(chains)  # before it waits in the queue
    try:
        number = submit(config, name, nodes, control)
    except (commands.RefusedError, DeadlineError):  # nothing is queued
        raise
    except BaseException:  # it may be queued all the same; Ctrl-C too
        _cancel(f"--name={name}", report)
        raise
    try:
        job = _running(name, number, nodes, report)
        hosts = commands.hosts_of(job.nodes)
        network, switches = network_of(hosts), _switches_of(config, hosts, chains, report)
        given = {"job": number, "hosts": hosts, "network": network, "switches": switches}
        return SlurmRun(**(vars(config) | given | {"chains": {}}))
    except BaseException:
        _cancel(number, report)
        raise


def _running(name: str, number: str, nodes: int, report: Callable[[str], None]) -> commands.Job:
    """The job once it runs; reports what it waits for."""
    said = ""
    while True:
        found = [job for job in _jobs_while_down(name) if job.id == number]
        if not found:
            raise HeadwayError(
                f"Slurm job {number} ended before it started",
                remedy=f"see `sacct -j {number}` or `scontrol show job {number}`",
            )
        [job] = found
        if job.state == "RUNNING":
            return job
        if job.reason != said and job.reason not in ("None", ""):
            said = job.reason
            report(f"waiting for Slurm's job {number} ({nodes} machines): {said}")
        if said == "PartitionNodeLimit":
            _check_partition(number, nodes)
        time.sleep(POLL_S if said else POLL_S / 10)


def _check_partition(number: str, nodes: int) -> None:
    """Slurm gives the same reason where too few machines are up, for which waiting helps."""
    most = None
    with contextlib.suppress(UnreachableError):
        most = commands.most_nodes(number)
    if most is not None and most < nodes:
        raise HeadwayError(
            f"the run needs {nodes} machines, Slurm's partition gives a job at most {most}",
            remedy="set launch.nodes and launch.spares, or another partition by SBATCH_PARTITION",
        )


def _cancel(queued: str, report: Callable[[str], None]) -> None:
    try:
        commands.cancel(queued)
    except HeadwayError as error:
        report(f"a job may still be queued ({error}): end it by `scancel {queued}`")


def _check_known(chains: topology_file.Chains) -> None:
    if chains:
        topology_file.check_known(chains, commands.machines(), "Slurm's cluster")


def _switches_of(
    config: SlurmConfig,
    hosts: Sequence[str],
    chains: topology_file.Chains,
    report: Callable[[str], None],
) -> tuple[Chain, ...]:
    """The switches above each machine: from ``topology.toml``, the command, or else from Slurm."""
    if config.topology:
        chains = topology_file.ask(config.topology, report)
        _check_known(chains)
    elif not chains:
        try:
            chains = dict(zip(hosts, commands.switches_of(hosts), strict=True))
        except HeadwayError:  # where ranks are only matters for speed
            return ()
    return topology_file.above(hosts, chains, report)


def network_of(hosts: Sequence[str]) -> str:
    """The smallest network, of at least 256 addresses, with every machine as Slurm reaches it.

    Raises:
        HeadwayError: a machine's name is unknown here.
    """
    numbers = []
    for address in commands.addresses_of(hosts):
        try:
            numbers.append(int(ipaddress.IPv4Address(socket.gethostbyname(address))))
        except OSError as error:
            raise HeadwayError(
                f"cannot resolve {address}: {error.strerror}",
                remedy='set the network, such as launch.interface="10.0.0.0/16"',
            ) from error
    differing = max(one ^ numbers[0] for one in numbers).bit_length()
    prefix = 32 - max(differing, 8)
    return str(ipaddress.IPv4Network((numbers[0], prefix), strict=False))


def _jobs_while_down(name: str) -> list[commands.Job]:
    """The jobs of that name, asked again while the controller is away."""
    while True:
        try:
            return commands.jobs([name])
        except UnreachableError:
            time.sleep(POLL_S)
