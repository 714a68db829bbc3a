"""Reads the file that describes the machines of a cluster, with errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from headway.common.config import load
from headway.common.errors import ConfigError

C = TypeVar("C")


def read_config(cls: type[C], path: Path) -> C:
    """The file as a ``cls``.

    Raises:
        ConfigError: it cannot be read, or a key in it is unknown, missing or wrong.
    """
    if not path.exists():
        raise ConfigError(
            f"there is no file {path}",
            remedy="docs/howto/ssh.md, slurm.md and kubernetes.md show what to write",
        )
    try:
        return load(cls, files=[path])
    except ConfigError as error:
        if str(path) in error.message:
            raise
        raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None


def check_absolute(**paths: str) -> None:
    """Raises ConfigError if the value of a key is not an absolute path."""
    for key, path in paths.items():
        if not Path(path).is_absolute():
            raise ConfigError(
                f"{key}={path!r} is not an absolute path", remedy="write one that starts with /"
            )


def check_python(python: str) -> None:
    """Raises ConfigError if it cannot be run: no shell on the machines expands ``~``."""
    if not python or python.startswith("~"):
        raise ConfigError(
            f"{python=} cannot be used",
            remedy="write its absolute path, or a name that is on the PATH of each machine",
        )
