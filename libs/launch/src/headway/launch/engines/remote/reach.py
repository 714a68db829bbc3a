"""Runs commands that reach other machines, such as ssh and srun, and turns failures into errors."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from headway.common.errors import DeadlineError, HeadwayError, InputError

MODULE = ("-m", "headway.launch.machine")


class UnreachableError(HeadwayError):
    """The machine did not respond; its state is unknown."""


class OnOrder(UnreachableError):
    """There is no machine for the node yet; one was asked for, as with a queued job."""


def run(
    words: Sequence[str],
    *,
    name: str,
    stdin: str = "",
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        words: program and arguments.
        name: of the machine, for messages.
        stdin: what it reads.
        limit_s: it is killed after this long.
        env: its environment; this process's by default.
        cwd: folder in which it runs; this process's by default.

    Raises:
        UnreachableError: it runs longer. DeadlineError: there is no such program.
    """
    try:
        return subprocess.run(
            list(words),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=env,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            f"{name} did not respond within {limit_s:.0f} s", remedy="check that it is up"
        ) from None
    except OSError as error:
        raise DeadlineError(
            f"{words[0]} cannot be run: {error.strerror}",
            remedy="install it, or name another command in the cluster's file",
        ) from error


def refusal(name: str, code: int, stderr: str, stdout: str = "") -> HeadwayError:
    """The error for a failed verb: the last line that it printed."""
    line = last_line(stderr) or last_line(stdout) or "no output"
    kind = InputError if code == InputError.exit_code else HeadwayError
    # the line may already end with a remedy, see ``HeadwayError.__str__``
    remedy = "" if "; " in line else "`headway logs` shows more"
    return kind(f"{name}: {line.removeprefix('error: ')}", remedy=remedy)


def last_line(text: str) -> str:
    """Empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
