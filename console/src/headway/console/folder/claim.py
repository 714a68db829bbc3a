"""A run's folder at its start: claimed, named, and given its configuration.

One start at a time claims the folder; what it holds decides whether the run is new or resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from headway.common.config import diff, to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import replace_file
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.folder.records import RunRecords
from headway.console.hints import hint, refuse_elsewhere
from headway.trainer.config import RunConfig

KEPT_ON_RESUME = (
    "parallel.tp",
    "parallel.pp",
    "parallel.dp",
    "parallel.vp",
    "train.seed",
    "train.init_from",
    "train.dtype",
    "train.global_batch_size",
    "train.batch_ramp",
    "train.micro_batch_size",
    "data.path",
    "data.seed",
)
"""Keys that a resumed run keeps beside its model: shape of its state, order of its data."""


def check_name(name: str) -> None:
    """Raises InputError unless ``name`` can be the name of a run."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(
            f"run name {name!r} cannot be a folder's name",
            remedy="use up to 100 letters, digits, '-', '_', '.'",
        )


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[tuple[RunRecords, bool]]:
    """The run at ``path``, locked against a second start, and whether it existed before.

    A new run's folder is removed when the body fails, by Ctrl-C too.

    Raises:
        InputError: the run is live, is being started or has finished, or ``path`` is not a run.
    """
    with _locked(path):
        refuse_elsewhere(path)
        if (path / "run.json").exists():
            run = RunRecords(path)
            if run.live:
                _refuse(run.path, "live")
            if run.outcome == "finished":
                raise InputError(
                    f"run name {path.name!r} is taken by a finished run",
                    remedy="choose another --name",
                )
            yield run, True
            return
        if any(path.iterdir()):
            raise InputError(
                f"{path} already exists and is not a run folder",
                remedy="choose another --name",
            )
        try:
            yield RunRecords(RunDir.create(path, run_id=new_run_id()).path), False
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock on the folder itself; the kernel releases it with this process, nothing is left."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"cannot create {path}: {error.strerror}",
            remedy="check the disk and its rights",
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse(path, "being started by another command")
        if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):
            # The start that held the lock has just failed and removed the folder.
            _refuse(path, "being started by another command")
        yield
    finally:
        os.close(fd)


def _refuse(path: Path, state: str) -> NoReturn:
    remedy = f"watch it with {hint('watch', path)} or give another --name"
    raise InputError(f"run {path.name} is {state}", remedy=remedy)


def check_resumable(run: RunRecords, config: RunConfig) -> None:
    """Raises InputError when an unfinished run's checkpoints do not fit the new configuration."""
    if not run.folder.config.exists():
        return
    try:
        old = run.config
        # two ways to write one model are the same model
        model = diff(old.model.architecture, config.model.architecture)
        changed = diff(old, config)
    except HeadwayError:  # written by another version: the new configuration takes its place
        return
    resolved = {f"model.{key}": values for key, values in model.items()}
    # what the user wrote first, then what follows from it
    fixed = {key: values for key, values in changed.items() if key in resolved}
    fixed |= resolved
    fixed |= {key: values for key, values in changed.items() if key.startswith(KEPT_ON_RESUME)}
    if fixed:
        key, (before, now) = next(iter(fixed.items()))
        raise InputError(
            f"run {run.name} is unfinished and has {key}={before!r}, not {now!r}",
            remedy="give the new run a --name, or resume with the same value",
        )


def keep_config(run: RunRecords, config: RunConfig) -> list[str]:
    """Write the configuration; another one that is there stays as ``config-N.toml``.

    Returns what changed, as lines to print.
    """
    path, text = run.folder.config, to_toml(config)
    lines: list[str] = []
    if path.exists() and (old := path.read_text()) != text:
        number = 1
        while (kept := path.with_name(f"config-{number}.toml")).exists():
            number += 1
        replace_file(kept, old)
        try:
            changed = diff(run.config, config)
        except HeadwayError:  # written by another version
            changed = {}
        values = [f"{key} {_shown(a)} -> {_shown(b)}" for key, (a, b) in changed.items()]
        what = f"resuming with {', '.join(values)}" if values else "resuming with another config"
        lines.append(f"{what}; the configuration before is in {kept.name}")
    replace_file(path, text)
    return lines


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
