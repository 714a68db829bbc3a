"""A run's folder at its start: claimed, named, and given its configuration.

One start at a time claims the folder; what it holds decides whether the run is new or resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
from headway.common.config import diff, to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import PRIVATE, replace_file
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.folder.outputs import newest_checkpoint
from headway.console.folder.records import RunRecords
from headway.console.folder.run_list import age
from headway.console.folder.starting import STARTING, Starter, starter_of
from headway.console.hints import hint, refuse_elsewhere
from headway.launch.lease.choose import lease_of
from headway.trainer.config import RunConfig

KEPT_ON_RESUME = (
    "parallel.tp",
    "parallel.pp",
    "parallel.dp",
    "parallel.vp",
    "parallel.buckets",
    "train.seed",
    "train.init_from",
    "train.dtype",
    "train.global_batch_size",
    "train.batch_ramp",
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


class StillRunningError(HeadwayError):
    """A start failed, and what it has started could not be ended: the run's folder is needed."""


@contextlib.contextmanager
def claimed(path: Path, report: Callable[[str], None]) -> Iterator[tuple[RunRecords, bool]]:
    """The run at ``path``, claimed against a second start, and whether it existed before.

    A run on machines that nobody leads now is watched first, since another driver may take over.
    The folder of a new run, or of one whose first start was killed before it led to a driver, is
    removed when the body fails, by Ctrl-C too, unless something still runs.

    Raises:
        InputError: the run is live, is being started or has finished, or ``path`` is not a run.
    """
    with held(path) as starter:
        refuse_elsewhere(path)
        if (path / "run.json").exists():
            run = RunRecords(path)
            if run.settle(report):
                _refuse(run.path, "live")
            if run.outcome == "finished":
                raise InputError(
                    f"run name {path.name!r} is taken by a finished run",
                    remedy="choose another --name",
                )
            if not starter.is_new or _has_state(run):
                yield run, True
                return
            run.folder.config.unlink(missing_ok=True)
        elif any(entry.name != STARTING for entry in path.iterdir()):
            raise InputError(
                f"{path} already exists and is not a run folder",
                remedy="choose another --name",
            )
        try:
            if not (path / "run.json").exists():
                RunDir.create(path, run_id=new_run_id())
            yield RunRecords(path), False
        except StillRunningError:
            raise
        except BaseException:
            folder = RunDir(path)
            # as after a second Ctrl-C, while nodes were being ended
            if not folder.bundle.exists() or not has_led(folder.control):
                shutil.rmtree(path, ignore_errors=True)
            raise


def _has_state(run: RunRecords) -> bool:
    """Whether a run may have led to anything: a driver, a checkpoint, or nodes on machines."""
    return run.has_begun or run.folder.bundle.exists() or newest_checkpoint(run) is not None


def has_led(control: Path) -> bool:
    """Whether a run on machines has, or may have, had a driver, which may still lead it."""
    try:
        return lease_of(control).look().holder is not None
    except (OSError, HeadwayError):
        return True


@contextlib.contextmanager
def held(path: Path) -> Iterator[Starter]:
    """Hold the folder at ``path`` against other starts, on this and other machines.

    Raises:
        InputError: it is being started already.
    """
    with _locked(path), _marked(path) as starter:
        yield starter


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on the folder itself against other processes of this machine.

    The kernel releases it with this process. Network file systems do not pass it on to other
    machines.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
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


@contextlib.contextmanager
def _marked(path: Path) -> Iterator[Starter]:
    """Mark the folder with a file that only one process on any machine can make.

    With the lock held, one that names this machine is that of a dead process, and is taken over.
    """
    mark, left = path / STARTING, starter_of(path)
    if left is not None and left.is_here:
        mark.unlink(missing_ok=True)
    # what a start was killed with is as new as before
    was_new = left is not None and left.is_here and left.is_new
    starter = Starter.here(is_new=was_new or not (path / "run.json").exists())
    try:
        made = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    except FileExistsError:
        _refuse_marked(path)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        try:
            with os.fdopen(made, "wb") as file:
                file.write(msgspec.json.encode(starter))
        except OSError as error:
            raise _unusable(path, error) from error
        yield starter
    finally:
        found = starter_of(path)
        if found in (None, Starter()) or found.is_same_start(starter):  # else another machine's
            mark.unlink(missing_ok=True)


def _refuse_marked(path: Path) -> NoReturn:
    starter = starter_of(path) or Starter()
    since = age(max(0.0, time.time() - (starter.unix_s or time.time())))
    raise InputError(
        f"run {path.name} is being started on {starter.host} "
        f"(process {starter.pid or 'unknown'}, begun {since})",
        remedy=f"wait for it or end it there; if that process has ended, remove {path / STARTING}",
    )


def _unusable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot create {path}: {error.strerror}", remedy="check the disk and its rights"
    )


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
    if old.parallel.is_v != config.parallel.is_v:  # the same chunks are on other ranks
        fixed["parallel.schedule"] = changed["parallel.schedule"]
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
