"""Starts a Slurm step that outlives its srun, to run a node.

A step normally ends with the srun that started it, because the shepherd that srun forks ends it.
So both are killed together once the node is up; Slurm then keeps the step, and the node depends on
no other machine.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence

from headway.common.errors import DeadlineError, HeadwayError
from headway.launch.engines.remote import reach
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.slurm import commands

LOOK_S = 0.5


def on(job: str, host: str, name: str) -> list[str]:
    """The words of srun for one task on one machine of a job, beside what runs there already."""
    return [
        "srun", f"--jobid={job}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1",
        f"--nodelist={host}", "--mem=0", "--cpu-bind=none", f"--job-name={name}",
    ]  # fmt: skip


def start(words: Sequence[str], *, name: str, limit_s: float) -> str:
    """Start a step and return its first line of output; it continues without this process.

    Args:
        words: srun and what it runs.
        name: of the machine, for messages.
        limit_s: until its first line.

    Raises:
        UnreachableError: no line comes in time, or the machine or Slurm does not answer.
        HeadwayError: it ended, as its last line says.
        DeadlineError: Slurm is not installed here.
    """
    try:
        srun = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=commands.environment("srun"),
            start_new_session=True,
        )
    except OSError as error:
        raise DeadlineError(
            f"srun cannot be run: {error.strerror}", remedy="install Slurm's client commands"
        ) from error
    try:
        line = _first_line(srun, limit_s)
        if line:
            return line
        if srun.poll() is None:
            raise UnreachableError(
                f"{name} did not answer within {limit_s:.0f} s", remedy="see `squeue --steps`"
            )
        assert srun.stderr is not None
        raise refusal(name, srun.returncode, srun.stderr.read().decode(errors="replace"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(srun.pid, signal.SIGKILL)  # with its shepherd: neither may end the step
        srun.wait()
        for pipe in (srun.stdout, srun.stderr):
            if pipe is not None:
                pipe.close()


def _first_line(srun: subprocess.Popen[bytes], limit_s: float) -> str:
    """Empty once it has ended or the time is over."""
    assert srun.stdout is not None
    output = select.poll()
    output.register(srun.stdout, select.POLLIN)
    deadline, found = time.monotonic() + limit_s, b""
    while time.monotonic() < deadline and not found.endswith(b"\n"):
        if output.poll(LOOK_S * 1000):
            piece = os.read(srun.stdout.fileno(), 4096)
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    srun.wait(max(0.1, deadline - time.monotonic()))
                return ""
            found += piece
    return found.decode(errors="replace").strip()


def refusal(name: str, code: int, stderr: str) -> HeadwayError:
    """The error for a step that did not start: Slurm or the machine did not respond, or refused."""
    ours = [line for line in stderr.splitlines() if line.startswith("error: ")]
    if ours:
        return reach.refusal(name, code, ours[-1])
    if "ommunication" in stderr or "not responding" in stderr:
        first = stderr.strip().splitlines()[0]
        return UnreachableError(f"{name} cannot be reached: {first}", remedy="see `sinfo -R`")
    return commands.trouble("srun", stderr)
