"""A new folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import InputError


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` to write to, renamed to it at the end; removed on an error.

    Raises:
        InputError: ``target`` exists and is not an empty folder, or the disk refuses something.
    """
    target = target.absolute()
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _refuse_content(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        _refuse_content(target)
        draft.rename(target)  # over an empty folder too
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}",
            remedy="check disk space and permissions, or choose another folder",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_content(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"{target} exists and is not an empty folder", remedy="choose another folder"
        )
