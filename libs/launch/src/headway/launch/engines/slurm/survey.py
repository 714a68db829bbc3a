"""Asks machines of Slurm what they are and have, by a step on each; and what Slurm knows of them.

Slurm's machines belong to a run only while it has an allocation, so a check has to get some first.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.polling import wait_until
from headway.launch.engines.remote import reach
from headway.launch.engines.remote.judge import Answer, Trouble
from headway.launch.engines.remote.survey import Surveyed, surveyed
from headway.launch.engines.slurm import commands
from headway.launch.engines.slurm.allocation import job_name
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.join import facts

QUEUED_S = 60.0
"""How long a check waits for machines."""
INSPECT_S = 60.0
"""How long these may take to answer."""
COMPLETING_S = 60.0
"""How long Slurm may take to end the processes of a job: KillWait is 30 s by default."""
CHECK_MIN = 5
"""Time limit of the job, in minutes."""
_SAME_FOR_SRUN = ("PARTITION", "ACCOUNT", "QOS", "RESERVATION", "CONSTRAINT")
"""sbatch reads SBATCH_PARTITION and so on, srun SLURM_PARTITION."""
_FAILED = re.compile(r"srun: error: ([^\s:]+): task (\d+): (.+)")
_LABELLED = re.compile(r" *(\d+): (.*)")
_OUT = re.compile(r"down|drain|fail|not_resp|no_respond|unk", re.IGNORECASE)
"""States of a machine that gets no work; compact states have signs such as ``down*``."""


def check_answers() -> None:
    """Raises HeadwayError unless Slurm is installed here and its controller answers."""
    commands.command(["sinfo", "--noheader", "--format=%P"])


def survey(config: SlurmConfig, nodes: int) -> list[Surveyed]:
    """Ask as many machines as ``nodes``, those that Slurm gives within a minute.

    Raises:
        HeadwayError: Slurm does not give them, or this machine cannot write in the shared folder.
    """
    with facts.tested(Path(config.shared)) as folder:
        name, asked_unix_s = f"headway-check-{secrets.token_hex(4)}", time.time()
        words = [
            "srun", "--quiet", "--label", f"--job-name={name}", *config.options,
            f"--nodes={nodes}", "--ntasks-per-node=1", f"--immediate={QUEUED_S:.0f}",
            f"--time={CHECK_MIN}", config.python, *reach.MODULE, "inspect", "--look", str(folder),
        ]  # fmt: skip
        try:
            limit_s = QUEUED_S + INSPECT_S
            done = reach.run(words, name="Slurm", limit_s=limit_s, env=_environment())
        except BaseException:  # srun is killed, and its job may be queued all the same
            commands.cancel(f"--name={name}")
            raise
        answered_unix_s = time.time()
        failed = _failures(done.stderr)
        found: dict[str, Answer | Trouble] = {}
        for text in done.stdout.splitlines():
            if line := _LABELLED.fullmatch(text):
                one = facts.parse(line[2])
                is_shared = facts.is_answered(folder, one)
                found[one.host] = Answer(one, asked_unix_s, answered_unix_s, is_shared)
        found |= {host: Trouble(why, "") for host, why in failed.items() if host not in found}
    if not found:
        raise _refusal(done.stderr, nodes)
    return surveyed(dict(sorted(found.items())), config.shared)


def _environment() -> dict[str, str]:
    names = {f"SLURM_{key}": os.environ.get(f"SBATCH_{key}", "") for key in _SAME_FOR_SRUN}
    return commands.environment("srun") | {key: value for key, value in names.items() if value}


def _failures(stderr: str) -> dict[str, str]:
    """Machine -> what its task has printed last, else how Slurm says that it ended."""
    said = [found for line in stderr.splitlines() if (found := _LABELLED.fullmatch(line))]
    last = {found[1]: found[2] for found in said}
    rows = [found for line in stderr.splitlines() if (found := _FAILED.match(line))]
    return {host: last.get(task, why).removeprefix("error: ") for host, task, why in
            (row.groups() for row in rows)}  # fmt: skip


def _refusal(stderr: str, nodes: int) -> HeadwayError:
    error = commands.trouble("srun", stderr)
    return HeadwayError(
        f"{nodes} machines cannot be checked: {error.message}",
        remedy="ask for as many as are idle (`sinfo`), or leave out NODES: then each machine is "
        "checked when it joins a run",
    )


def out_of_service(hosts: Iterable[str]) -> list[str]:
    """A line for each of these machines that Slurm gives no work, with its state and the reason.

    Raises:
        HeadwayError: Slurm does not answer.
    """
    names = ",".join(hosts)
    if not names:
        return []
    text = commands.command(
        ["sinfo", "--Node", "--noheader", f"--nodes={names}", "--format=%N|%T|%E"]
    )
    rows = {tuple(line.split("|", 2)) for line in text.splitlines() if line.count("|") >= 2}
    return [
        f"{name}: Slurm has it as {state}" + ("" if reason == "none" else f": {reason}")
        for name, state, reason in sorted(rows)
        if _OUT.search(state)
    ]


def left_of(run_ids: Iterable[str]) -> list[str]:
    """A line for each job of these runs that waits or runs, but for those that clean machines.

    A job that is being completed is waited for.

    Raises:
        HeadwayError: Slurm does not answer.
    """
    names = tuple(job_name(run_id) for run_id in run_ids)
    found: list[commands.Job] = []

    def has_settled() -> bool:
        jobs = commands.jobs() if names else []
        found[:] = [
            job for job in jobs if job.name.startswith(names) and not job.name.endswith("-sweep")
        ]
        return all(job.state != "COMPLETING" for job in found)

    wait_until(has_settled, COMPLETING_S, every_s=0.5)
    return [f"job {job.id} ({job.name}) is {job.state}" for job in found]


def on_machine(job: str, host: str, words: Sequence[str] = ()) -> list[str]:
    """The command line that runs words on a machine of an allocation; without any, a shell."""
    started = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0"]
    return [*started, f"--nodelist={host}", *(words or ["--pty", "bash", "-l"])]
