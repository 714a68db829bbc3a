"""Who may start this run? One at a time; the folder of a new run goes again when its start fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.run import Run, hint


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[tuple[Run, bool]]:
    """The run at ``path``, and whether it was there already, while nobody else can start it.

    A new run's folder is removed when the body fails, by Ctrl-C too.

    Raises:
        InputError: the run is live, is being started or has finished, or something else lies at ``path``.
    """
    with _locked(path):
        if (path / "run.json").exists():
            run = Run(path)
            _refuse_live(run)
            if run.outcome == "finished":
                raise InputError(f"run name {path.name!r} is taken by a finished run", remedy="choose another --name")
            yield run, True
            return
        if any(path.iterdir()):
            raise InputError(f"{path} holds other things than a run", remedy="choose another --name")
        try:
            yield Run(RunDir.create(path, run_id=new_run_id()).path), False
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock on the folder itself, which the kernel lets go with this process; nothing has to be cleared away."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot create {path}: {error.strerror}", remedy="check the disk and its rights") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse(path, "being started by another command")
        if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):  # that start has just failed
            _refuse(path, "being started by another command")
        yield
    finally:
        os.close(fd)


def _refuse_live(run: Run) -> None:
    if run.live:
        _refuse(run.path, "live")


def _refuse(path: Path, state: str) -> NoReturn:
    remedy = f"watch it with {hint('watch', path)} or give another --name"
    raise InputError(f"run {path.name} is {state}", remedy=remedy)
