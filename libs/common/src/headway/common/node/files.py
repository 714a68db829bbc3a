"""Files that are replaced as a whole: a reader finds the old content or the new one, never a part.

This holds over the death of a process. It is not a promise about power loss, for which the
checkpoint store has a file layer of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Nobody but the user reads it: it may name an endpoint, a key, a run id or a configuration."""


def replace_file(path: Path, data: bytes | str, *, mode: int = PRIVATE) -> None:
    """Give ``path`` new content, through a scratch file beside it that no other writer shares.

    Only a process killed in the middle leaves the scratch file, ``.NAME.PID.RANDOM``.

    Args:
        path: its folder exists.
        data: text is written as UTF-8.
        mode: rights of the file, less the process's umask; 0o666 for what others may read.

    Raises:
        OSError: the file cannot be written. ``path`` then is what it was.
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


def replace_json(path: Path, data: Any, *, mode: int = PRIVATE) -> None:
    """Give ``path`` new content as ``replace_file`` does: ``data`` as indented JSON."""
    replace_file(path, json.dumps(data, indent=1) + "\n", mode=mode)


def make_private_folder(path: Path) -> None:
    """Make ``path`` with its parents, or take it as it is; only the user may look into it, 0700.

    Raises:
        OSError: it cannot be made. One of somebody else's keeps its rights.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    with contextlib.suppress(PermissionError):
        path.chmod(PRIVATE_FOLDER)
