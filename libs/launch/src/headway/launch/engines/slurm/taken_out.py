"""How machines leave the allocation of a run, and which have left it.

The run's shared folder has a file for each of them, so that every driver knows.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headway.common.node.files import replace_file
from headway.launch.engines.slurm import commands
from headway.launch.engines.slurm.config import SlurmRun

DRAINED = "drained"
NOT_YET = "try again in a bit"
"""Slurm's answer while its accounting has not recorded the last change of the job, after 5 s."""


class TakenOut:
    """The machines of one allocation that its run uses no more.

    Args:
        folder: with their files; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hosts(self) -> frozenset[str]:
        """Names of the machines; empty while the folder cannot be read."""
        with contextlib.suppress(OSError):
            return frozenset(path.name for path in self._folder.iterdir())
        return frozenset()

    def add(self, host: str, *, is_drained: bool) -> None:
        """The machine is not used again. Raises OSError: that cannot be recorded."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / host, DRAINED if is_drained else "")

    def avoided(self, config: SlurmRun) -> SlurmRun:
        """Return the configuration with which a further job gets none of them.

        Slurm gives drained machines to no job, and may give them back once they are repaired.
        """
        hosts = [host for host in sorted(self.hosts()) if self._text(host) != DRAINED]
        if not hosts:
            return config
        given = [one.partition("=")[2] for one in config.options if one.startswith("--exclude=")]
        return replace(config, options=(*config.options, f"--exclude={','.join([*given, *hosts])}"))

    def _text(self, host: str) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / host).read_text()
        return ""


def shrink(job: str, host: str, hosts: Sequence[str]) -> None:
    """Make a running job give one of its machines back, on which no step of it runs.

    Args:
        job: number of the job.
        host: the machine.
        hosts: all machines of the job.

    Raises:
        commands.RefusedError: the machine stays allocated. Slurm never gives the batch host up, and
            without accounting it shrinks a job only once.
        UnreachableError: the controller does not answer.
    """
    if host == commands.batch_host(job):
        raise commands.RefusedError(f"it runs the batch script of job {job}")
    others = ",".join(one for one in hosts if one != host)
    words = ["scontrol", "update", f"JobId={job}", f"NodeList={others}"]
    with tempfile.TemporaryDirectory() as folder:  # scontrol may leave scripts where it is run
        try:
            commands.command(words, cwd=folder)
        except commands.RefusedError as error:
            if NOT_YET not in error.message:
                raise
            commands.command(words, cwd=folder)
