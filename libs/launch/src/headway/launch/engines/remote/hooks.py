"""User-defined commands that act on a machine; ``{name}`` stands for its name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from headway.common.errors import ConfigError, DeadlineError, HeadwayError
from headway.launch.engines.remote import reach


def check(key: str, words: Sequence[str]) -> None:
    """Raises ConfigError unless the command, if there is one, says which machine is meant."""
    if words and not any("{name}" in word for word in words):
        raise ConfigError(
            f"{key} does not contain {{name}}",
            remedy="write {name} where the machine's name belongs in the command",
        )


def cut_off(fence: Sequence[str], name: str, *, limit_s: float) -> bool:
    """Run a fence command, if there is one; its exit code 0 confirms."""
    if not fence:
        return False
    try:
        return not reach.run(named(fence, name), name=name, limit_s=limit_s).returncode
    except HeadwayError:
        return False


def drain(command: Sequence[str], name: str, reason: str, *, limit_s: float) -> None:
    """Run a drain command, if there is one, with ``{reason}`` as one line.

    Raises:
        HeadwayError: it cannot be run, runs too long, or fails.
    """
    if not command:
        return
    found = reach.run(_with_reason(command, name, reason), name=name, limit_s=limit_s)
    if found.returncode:
        raise reach.refusal(name, found.returncode, found.stderr, found.stdout)


def replace(command: Sequence[str], name: str, reason: str, *, limit_s: float) -> None:
    """Run a replace command, with ``{reason}`` as one line; all that it started ends at the limit.

    What it leaves running in the background does not hold up its end.

    Raises:
        HeadwayError: it cannot be run, runs too long, or fails.
    """
    words = _with_reason(command, name, reason)
    with tempfile.TemporaryFile() as printed:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise DeadlineError(
                f"{words[0]} cannot be run: {error.strerror}",
                remedy="install it, or name another command as `replace` in the cluster's file",
            ) from error
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise HeadwayError(
                f"{name}: the replace command ran longer than {limit_s:.0f} s and was ended",
                remedy="run it by hand",
            ) from None
        if code:
            printed.seek(0)
            raise reach.refusal(name, code, printed.read().decode(errors="replace"))


def _with_reason(command: Sequence[str], name: str, reason: str) -> list[str]:
    line = " ".join(reason.split())
    return [word.replace("{reason}", line) for word in named(command, name)]


def named(words: Sequence[str], name: str) -> list[str]:
    """The words with the machine's name."""
    return [word.replace("{name}", name) for word in words]
