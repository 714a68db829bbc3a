"""User-defined commands that act on a machine; ``{name}`` stands for its name."""

from __future__ import annotations

from collections.abc import Sequence

from headway.common.errors import ConfigError, HeadwayError
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
    line = " ".join(reason.split())
    words = [word.replace("{reason}", line) for word in named(command, name)]
    found = reach.run(words, name=name, limit_s=limit_s)
    if found.returncode:
        raise reach.refusal(name, found.returncode, found.stderr, found.stdout)


def named(words: Sequence[str], name: str) -> list[str]:
    """The words with the machine's name."""
    return [word.replace("{name}", name) for word in words]
