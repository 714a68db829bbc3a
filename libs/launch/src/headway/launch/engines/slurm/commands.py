"""Runs Slurm's commands and parses their output."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.common.errors import HeadwayError
from headway.launch.engines.remote import reach
from headway.launch.engines.remote.reach import UnreachableError

LIMIT_S = 20.0
"""Time limit of one command; without a controller they fail by themselves after a few seconds."""
_NO_CONTROLLER = re.compile(
    r"contact slurm controller|Socket timed out|Connection (refused|timed out)|Zero Bytes"
    r"|Unexpected message|communication failure",
    re.IGNORECASE,
)
_OWN_VARIABLE = re.compile(
    r"(SLURM|SBATCH|SRUN|SQUEUE|SCANCEL|SCONTROL|SINFO|PMI|HEADWAY_(RUN_ID|NODE|ROLE|BEAT_FD))"
)


class RefusedError(HeadwayError):
    """Slurm has answered, and does not do it."""


@dataclass(frozen=True)
class Job:
    """A job that waits or runs."""

    id: str
    name: str
    state: str
    """The state in squeue's words, such as ``PENDING`` and ``RUNNING``."""
    nodes: str
    """Its machines in Slurm's own short form; empty while it waits."""
    reason: str
    """Why it waits."""


@dataclass(frozen=True)
class Step:
    """A running step."""

    id: str
    name: str
    nodes: str


def command(words: Sequence[str], cwd: str | None = None) -> str:
    """Run one of them, in the folder ``cwd`` if it is given; returns its output.

    Raises:
        UnreachableError: the controller does not answer. DeadlineError: Slurm is not installed.
        RefusedError: it refuses.
    """
    found = reach.run(words, name="Slurm", limit_s=LIMIT_S, env=environment(words[0]), cwd=cwd)
    if found.returncode:
        raise trouble(words[0], found.stderr or found.stdout)
    return found.stdout


def trouble(program: str, text: str) -> HeadwayError:
    """What a failed command reported, as an error."""
    line = reach.last_line(text) or f"{program} failed"
    if _NO_CONTROLLER.search(text):
        return UnreachableError(f"Slurm does not respond: {line}", remedy="see `scontrol ping`")
    remedy = "see `sinfo` and `squeue --me`"
    if program == "sbatch":
        remedy = "see `sinfo`, the options in slurm.toml and the SBATCH_* variables"
    return RefusedError(f"Slurm refuses: {line}", remedy=remedy)


def environment(program: str) -> dict[str, str]:
    """The environment of this process without what Slurm or an init has set for its own step.

    A driver runs inside a step, whose variables would change what its own steps get.
    """
    is_kept = re.compile("SLURM_CONF$|SBATCH_" if program == "sbatch" else "SLURM_CONF$").match
    return {
        name: value
        for name, value in os.environ.items()
        if not _OWN_VARIABLE.match(name) or is_kept(name)
    }


def submit(name: str, nodes: int, options: Sequence[str], script: Sequence[str]) -> str:
    """Queue a job of whole machines, one task on each; returns its number.

    Args:
        name: of the job.
        nodes: how many machines.
        options: further words of sbatch.
        script: words of the batch script, which runs on the first machine.

    Raises:
        RefusedError, DeadlineError: as ``command``.
        UnreachableError, HeadwayError: it may be queued all the same; its number is not known.
    """
    line = " ".join(script)
    words = [
        "sbatch", "--parsable", f"--job-name={name}", f"--nodes={nodes}", "--ntasks-per-node=1",
        "--exclusive", "--no-requeue", "--output=/dev/null", *options, f"--wrap=exec {line}",
    ]  # fmt: skip
    number = reach.last_line(command(words)).split(";")[0]
    if not number.isdecimal():
        raise HeadwayError(
            f"sbatch printed {number!r} instead of a job number",
            remedy=f"cancel what it may have queued: scancel --name={name}",
        )
    return number


def jobs(names: Sequence[str] = ()) -> list[Job]:
    """Jobs of this user, all or with one of these names. Raises as ``command``."""
    words = ["squeue", "--me", "--noheader", *([f"--name={','.join(names)}"] if names else [])]
    rows = command([*words, "--format=%i|%j|%T|%N|%r"]).splitlines()
    return [Job(*row.split("|", 4)) for row in rows if row.count("|") >= 4]


def steps(job: str) -> dict[str, Step]:
    """Name -> step of a running job, without its batch script. Raises as ``command``."""
    text = command(["squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i|%j|%N"])
    found = [Step(*row.split("|")) for row in text.splitlines() if row.count("|") == 2]
    return {step.name: step for step in found}


def hosts_of(nodes: str) -> tuple[str, ...]:
    """The machines of Slurm's short form, in its order. Raises as ``command``."""
    return tuple(command(["scontrol", "show", "hostnames", nodes]).split()) if nodes else ()


def batch_host(job: str) -> str:
    """The machine of a job's batch script; empty if the job has none. Raises as ``command``."""
    text = command(["scontrol", "show", "job", "--oneliner", job])
    return next(iter(re.findall(r"\bBatchHost=(\S+)", text)), "")


def most_nodes(job: str) -> int | None:
    """Return how many machines the partition of a job gives at most.

    Those that are down are included; None if it is not known. Raises as ``command``.
    """
    names = command(["squeue", "--noheader", f"--jobs={job}", "--format=%P"]).strip().split(",")
    text = command(["scontrol", "show", "partition", "--oneliner"])
    found = re.findall(r"PartitionName=(\S+) .*?MaxNodes=(\S+) .*?TotalNodes=(\d+)", text)
    limits = [
        min(int(total), int(most)) if most.isdecimal() else int(total)
        for name, most, total in found
        if name in names
    ]
    return max(limits, default=None)


def addresses_of(hosts: Sequence[str]) -> list[str]:
    """What Slurm reaches the machines by: names or addresses. Raises as ``command``."""
    text = command(["scontrol", "show", "node", "--oneliner", ",".join(hosts)])
    return re.findall(r"\bNodeAddr=(\S+)", text)


def switches_of(hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the switches above each machine, the top one first.

    A block of the block plugin counts as a leaf switch, and an aggregated block as one above it.
    There are none where Slurm knows no topology. Raises as ``command``.
    """
    lines = command(["scontrol", "show", "topology"]).splitlines()
    rows = [row for row in map(_switch, lines) if row is not None]
    above: dict[str, list[str]] = {host: [] for host in hosts}
    for _, name, nodes in sorted(rows, key=lambda row: row[0], reverse=True):
        for host in hosts_of(nodes):
            if host in above:
                above[host].append(name)
    return [tuple(above[host]) for host in hosts]


def _switch(line: str) -> tuple[tuple[int, int], str, str] | None:
    """Height, name and machines of a switch or block; None for another line."""
    if found := re.match(r"SwitchName=(\S+) Level=(\d+) .*?Nodes=(\S+)", line):
        return (2, int(found[2])), found[1], found[3]
    if found := re.match(r"AggregatedBlock=(\S+) .*?Nodes=(\S+) BlockSize=(\d+)", line):
        return (1, int(found[3])), found[1], found[2]
    if found := re.match(r"BlockName=(\S+) .*?Nodes=(\S+)", line):
        return (0, 0), found[1], found[2]
    return None


def machines() -> list[str]:
    """The names of all machines that Slurm knows. Raises as ``command``."""
    return re.findall(
        r"\bNodeName=(\S+)", command(["scontrol", "show", "node", "--all", "--oneliner"])
    )


def cancel(job: str, *, with_kill: bool = False) -> None:
    """End a job or step, or with ``--name=NAME`` all jobs of that name.

    Does nothing if it has ended. Raises as ``command``.
    """
    words = ["scancel", *(["--signal=KILL"] if with_kill else []), job]
    try:
        command(words)
    except RefusedError as error:
        if "nvalid job" not in error.message:
            raise
