"""Atomic replacement of files: a reader finds the old content or the new one, never a mixture.

This holds when a process dies at any point. It does not cover power loss, for which the checkpoint
store has its own file layer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from headway.common.errors import InputError

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Readable by the user only: the file may hold an endpoint, a key, a run id or a configuration."""


def replace_file(path: Path, data: bytes | str, *, mode: int = PRIVATE) -> None:
    """Replace the content of ``path`` through a scratch file of its own in the same folder.

    Only a process killed in the middle leaves the scratch file, ``.NAME.PID.RANDOM``.

    Args:
        path: its folder exists.
        data: text is written as UTF-8.
        mode: rights of the file, less the process's umask; 0o666 for files that others may read.

    Raises:
        OSError: the file cannot be written; ``path`` is then unchanged.
    """
    content = data.encode() if isinstance(data, str) else data
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def check_private(path: Path, mode: int) -> None:
    """Refuse a file with a secret that others can read or write; ``mode`` is that of the open file.

    Raises:
        InputError: they can.
    """
    if mode & 0o077:
        raise InputError(
            f"{path} has mode {stat.S_IMODE(mode):04o}: other users can read it",
            remedy=f"chmod 600 {path}",
        )


def replace_json(path: Path, data: Any, *, mode: int = PRIVATE) -> None:
    """Replace ``path`` with ``data`` as indented JSON, as ``replace_file`` does."""
    replace_file(path, json.dumps(data, indent=1) + "\n", mode=mode)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, none where there is no such folder.

    Raises:
        OSError: a folder cannot be listed. ``Path.rglob`` would leave out what is in it.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found = [Path(at, name) for at, _, names in os.walk(folder, onerror=fail) for name in names]
    return [path for path in found if path.is_file()]


def make_private_folder(path: Path) -> None:
    """Create ``path`` and its parents if needed; only the user may open it, mode 0700.

    Raises:
        OSError: the folder cannot be created. A folder of another user keeps its rights.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    with contextlib.suppress(PermissionError):
        path.chmod(PRIVATE_FOLDER)
