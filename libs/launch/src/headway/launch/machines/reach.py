"""Runs Headway's part for machines on one of them, by another command that reaches it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from headway.common.errors import DeadlineError, HeadwayError, InputError

MODULE = ("-m", "headway.launch.joining")


class UnreachableError(HeadwayError):
    """Nothing is known of the machine."""


def run(
    words: Sequence[str],
    *,
    name: str,
    stdin: str = "",
    limit_s: float,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        words: program and arguments.
        name: of the machine, for messages.
        stdin: what it reads.
        limit_s: it is killed after this long.
        env: its environment; this process's by default.

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
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            f"{name} did not answer within {limit_s:.0f} s", remedy="see that it is up"
        ) from None
    except OSError as error:
        raise DeadlineError(
            f"{words[0]} cannot be run: {error.strerror}",
            remedy="install it, or name another command in the cluster's file",
        ) from error


def refusal(name: str, code: int, stderr: str, stdout: str = "") -> HeadwayError:
    """What the module reported with another exit code than 0, as an error: its last line."""
    line = last_line(stderr) or last_line(stdout) or "no output"
    kind = InputError if code == InputError.exit_code else HeadwayError
    # what the line itself gives as a remedy is part of it already
    remedy = "" if "(" in line else "`headway logs` shows more"
    return kind(f"{name}: {line.removeprefix('error: ')}", remedy=remedy)


def last_line(text: str) -> str:
    """Empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
