"""``headway cluster check|status|left|logs|reach``: look at machines and nodes; start nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import counted, emit
from headway.common.printable import printable

if TYPE_CHECKING:
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.choose import MachinesConfig
    from headway.launch.engines.remote.survey import Surveyed

DRIFTED = 2
"""Exit code of ``status``, as of ``terraform plan -detailed-exitcode``."""
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write what Terraform compares: each machine's facts."),
]
AnyNode = Annotated[
    int | None, typer.Option("--node", metavar="NODE", help="Its node; all by default.", min=0)
]


def register(cluster: typer.Typer) -> None:
    """Add the commands to the group ``headway cluster``."""
    page(
        cluster,
        examples=(
            "headway cluster check --hosts hosts.toml",
            "headway cluster check --slurm slurm.toml --nodes 4",
        ),
        json="list: name, trouble, installed, gpus, shm_bytes, clock_off_s",
    )(check)
    page(
        cluster,
        examples=("headway cluster status clusters/gpus",),
        json="one object: cluster, nodes, drift, runs, machines",
    )(status)
    page(
        cluster,
        examples=("headway cluster left clusters/gpus",),
        json="list: left",
    )(left)
    page(
        cluster,
        examples=("headway cluster logs clusters/local --node 1",),
        json="list: node, run, text",
    )(logs)
    page(
        cluster,
        examples=(
            "headway cluster reach clusters/gpus --node 1",
            "headway cluster reach clusters/gpus --node 1 nvidia-smi",
        ),
        json="list of words",
    )(reach)


def check(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder of a cluster of machines.")
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check the machines of this file instead.")
    ] = None,
    slurm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check machines of Slurm instead.")
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(metavar="N", help="The first N of the file, or any N of Slurm.", min=0),
    ] = 0,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Check that machines can take part in a run.

    Each must be reached, have this commit of Headway, the same torch and number of GPUs as the
    others, a clock that agrees, 1 GiB of /dev/shm, a machine-id of its own, and see the shared
    folder: it reads a random number that this machine has written there, and writes it back.

    There is one line for each machine that fails, and the exit code is 1 then. Nothing is started
    and nothing stays. Without --nodes, of Slurm only its answer is checked.
    """
    from headway.console.lifecycle import cluster_state
    from headway.launch.engines.choose import limited
    from headway.launch.engines.survey import survey

    config, number = limited(_machines(folder, hosts, slurm), nodes)
    found = survey(config, number)
    bad = [one for one in found if one.troubles]
    if save is not None and not bad:
        cluster_state.keep(found, save)
    for one in bad:
        typer.echo(printable(one.line()), err=True)
    emit(cluster_state.as_json(found), as_json, [] if bad else [_line(found)])
    if bad:
        raise typer.Exit(1)


def _machines(folder: Path | None, hosts: Path | None, slurm: Path | None) -> MachinesConfig:
    """What the one that is given says. Raises InputError unless exactly one is."""
    from headway.console.lifecycle.machine_files import read_machines
    from headway.console.lifecycle.machines import machines_of

    if [folder, hosts, slurm].count(None) != 2:
        raise InputError(
            "exactly one of DIR, --hosts and --slurm is needed",
            remedy="name a cluster's folder, or the file that describes its machines",
        )
    config = read_machines(hosts, slurm) if folder is None else machines_of(folder)
    if config is None:
        raise InputError(
            f"the nodes of {folder} are processes on this machine, so there are none to check",
            remedy="`headway doctor` checks this machine, `headway cluster status` its nodes",
        )
    return config


def _line(found: list[Surveyed]) -> str:
    if not found:
        return "Slurm answers; machines are checked when they join a run"
    facts = [one.answer.facts for one in found if one.answer is not None]
    return (
        f"{counted(len(found), 'machine')} in order: Headway {facts[0].version}, "
        f"torch {facts[0].torch}, {facts[0].gpus} GPUs each"
    )


def _cluster(folder: Path) -> ClusterFolder:
    """The cluster in a folder. Raises InputError if it holds none."""
    from headway.launch.cluster import ClusterFolder

    found = ClusterFolder(folder)
    _ = found.id
    return found


def status(folder: Folder, save: Save = None, as_json: AsJson = False) -> None:
    """Show what differs from what was created, and the runs.

    The exit code is 2 if something does: a node that has died or was given up by its run, or a
    machine that does not answer or fails `headway cluster check`.
    """
    from headway.console.lifecycle import cluster_state

    found = cluster_state.state_of(_cluster(folder))
    if save is not None and found.machines:
        cluster_state.keep(found.machines, save)
    data = {
        "cluster": found.cluster,
        "nodes": found.nodes,
        "drift": found.drift,
        "runs": found.runs,
        "machines": cluster_state.as_json(found.machines),
    }
    emit(data, as_json, found.lines)
    if found.drift:
        raise typer.Exit(DRIFTED)


def left(folder: Folder, as_json: AsJson = False) -> None:
    """List what ended runs have left on machines.

    That is processes, shared memory, sockets, and jobs of Slurm. The exit code is 1 if there is
    something, or if a machine does not answer.
    """
    from headway.console.lifecycle import cluster_state

    found = cluster_state.left_of(_cluster(folder))
    emit([{"left": line} for line in found], as_json, found or ["nothing is left"])
    if found:
        raise typer.Exit(1)


def logs(folder: Folder, node: AnyNode = None, as_json: AsJson = False) -> None:
    """Show the newest lines of each log of a cluster's nodes.

    On this machine they are the logs of init and executor; on other machines, all logs of the nodes
    of live runs. `headway logs` shows the logs of one run.
    """
    from headway.console.lifecycle import cluster_state

    found = cluster_state.logs_of(_cluster(folder), None if node is None else [node])
    emit(found, as_json, [one.text for one in found])


def reach(
    folder: Folder,
    node: Annotated[int, typer.Option("--node", metavar="NODE", help="Number of a node.", min=0)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Command to run there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the command that opens a shell on a node's machine.

    With words, it is the one that runs them there. `make ssh` runs what is printed.
    """
    from headway.console.lifecycle import cluster_state

    found = cluster_state.reach(_cluster(folder), node, words or [])
    emit(found, as_json, [shlex.join(found)])
