"""Runs a command on a machine, by another command that reaches it."""

from __future__ import annotations

import shlex
import subprocess

from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.launch.hosts.config import HostsConfig

SSH_FAILED = 255
"""Exit code of ssh(1) where it could not connect."""


class UnreachableError(HeadwayError):
    """Nothing is known of the machine."""


class Reach:
    """Safe for several threads."""

    def __init__(self, config: HostsConfig) -> None:
        self._config = config

    def python(self, name: str, *words: str, stdin: str = "", limit_s: float) -> str:
        """Run a module of Headway on a machine; returns its output.

        ssh hands its words to a shell on the machine, so they are quoted.

        Raises:
            HeadwayError: it failed; the message is the last line of what it reports.
            UnreachableError: the machine was not reached, or does not answer in time.
        """
        command = [self._config.python, "-m", "headway.launch.joining", *words]
        found = _run(
            [*_named(self._config.reach, name), *map(shlex.quote, command)], stdin, limit_s, name
        )
        if not found.returncode:
            return found.stdout
        line = _last_line(found.stderr) or _last_line(found.stdout)
        if found.returncode == SSH_FAILED:
            raise UnreachableError(
                f"{name} cannot be reached: {line}", remedy="see that it is up and lets you in"
            )
        refused = InputError if found.returncode == InputError.exit_code else HeadwayError
        raise refused(f"{name}: {line.removeprefix('error: ')}", remedy=_remedy(line))

    def cut_off(self, name: str, *, limit_s: float) -> bool:
        """Whether the fence command confirms that the machine does nothing any more."""
        if not self._config.fence:
            return False
        try:
            return not _run(_named(self._config.fence, name), "", limit_s, name).returncode
        except HeadwayError:
            return False


def _named(words: tuple[str, ...], name: str) -> list[str]:
    return [word.replace("{name}", name) for word in words]


def _run(
    words: list[str], stdin: str, limit_s: float, name: str
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=stdin, capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            f"{name} did not answer within {limit_s:.0f} s", remedy="see that it is up"
        ) from None
    except OSError as error:
        raise DeadlineError(
            f"{words[0]} cannot be run: {error.strerror}",
            remedy="install it, or set `reach` in hosts.toml",
        ) from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def _remedy(line: str) -> str:
    """What the line itself gives as a remedy is part of it already."""
    return "" if "(" in line else "`headway logs` shows more"
