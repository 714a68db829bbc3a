"""Checks early that a machine has the run's corpus, so that no rank fails later."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.files import files_below
from headway.launch.joining.bundle import Bundle


def listing_digest(folder: Path) -> str:
    """SHA-256 over names and sizes of all files below a folder.

    Cheap at any size. The ranks compare the content's own fingerprint when they open it.

    Raises:
        InputError: there is no such folder. OSError: it cannot be read.
    """
    if not folder.is_dir():
        raise InputError(
            f"this machine has no corpus in {folder}",
            remedy="copy it there, or set data.path to a folder that all machines see",
        )
    lines = [
        f"{path.relative_to(folder)} {path.stat().st_size}\n"
        for path in sorted(files_below(folder))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check(bundle: Bundle) -> None:
    """
    Raises:
        InputError: the folder is absent, or its files differ from the run's.
        OSError: it cannot be read.
    """
    folder = Path(bundle.corpus)
    if bundle.fingerprint and listing_digest(folder) != bundle.fingerprint:
        raise InputError(
            f"{folder} on this machine differs from the run's corpus",
            remedy="copy the same prepared corpus to each machine, or use a shared folder",
        )
