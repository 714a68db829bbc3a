"""The steps of a launch in their order; ``Cluster.launch`` takes them one after the other.

One start at a time claims the run's folder; what the folder holds decides whether it is a new run
or a resumed one. A start that fails leaves no process behind, and a new run no folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from headway.common.config import diff
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.hints import hint
from headway.console.peak import cached_peak, machine_peak
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine
from headway.launch.local import LocalEngine
from headway.launch.nodes import START_LIMIT_S, attach, detach, last_words, wait_until
from headway.trainer.config import LaunchConfig, RunConfig

KEPT_ON_RESUME = (
    "model.",
    "parallel.tp",
    "parallel.pp",
    "parallel.dp",
    "parallel.vp",
    "train.seed",
    "train.dtype",
    "train.global_batch_size",
    "train.micro_batch_size",
    "data.path",
    "data.seed",
)
"""Prefixes of the keys that a resumed run keeps: shape of its state, order of its data."""


# ---- 1. the folder ------------------------------------------------------------------------
@contextlib.contextmanager
def claimed(path: Path) -> Iterator[tuple[Run, bool]]:
    """The run at ``path``, locked against a second start, and whether it existed before.

    A new run's folder is removed when the body fails, by Ctrl-C too.

    Raises:
        InputError: the run is live, is being started or has finished, or ``path`` is not a run.
    """
    with _locked(path):
        if (path / "run.json").exists():
            run = Run(path)
            _refuse_live(run)
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
            yield Run(RunDir.create(path, run_id=new_run_id()).path), False
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


def _refuse_live(run: Run) -> None:
    if run.live:
        _refuse(run.path, "live")


def _refuse(path: Path, state: str) -> NoReturn:
    remedy = f"watch it with {hint('watch', path)} or give another --name"
    raise InputError(f"run {path.name} is {state}", remedy=remedy)


# ---- 2. does the old state fit? -----------------------------------------------------------
def check_resumable(run: Run, config: RunConfig) -> None:
    """Raises InputError when an unfinished run's checkpoints do not fit the new configuration."""
    if not run.folder.config.exists():
        return
    try:
        changed = diff(run.config, config)
    except HeadwayError:  # written by another version: the new configuration takes its place
        return
    fixed = {key: values for key, values in changed.items() if key.startswith(KEPT_ON_RESUME)}
    if fixed:
        key, (old, new) = next(iter(fixed.items()))
        raise InputError(
            f"run {run.name} is unfinished and has {key}={old!r}, not {new!r}",
            remedy="give the new run a --name, or resume with the same value",
        )


# ---- 3. the peak, for MFU -----------------------------------------------------------------
def measure_peak(device: str, tell: Callable[[str], None]) -> None:
    known = cached_peak(device)
    if known is None or not known.is_idle:
        tell("measuring this machine's peak")
        try:
            machine_peak(device)
        except HeadwayError as error:
            tell(str(error))


# ---- 4. the processes ---------------------------------------------------------------------
def start(
    run: Run,
    cluster: ClusterFolder,
    launch: LaunchConfig,
    tell: Callable[[str], None],
) -> None:
    """Start the nodes, attach the run to each and wait for its driver.

    Raises:
        HeadwayError: a node or the driver did not start; the nodes are ended again.
    """
    engine: Engine = LocalEngine(cluster)
    for stale in ("driver.json", "monitor.json"):
        (run.path / stale).unlink(missing_ok=True)
    try:
        attach(engine, cluster, run.path, launch.nodes + launch.spares)
        tell(f"{_counted(launch.nodes, 'node')} and {_counted(launch.spares, 'spare')} are up")
        _wait_for_driver(run)
    except BaseException:  # Ctrl-C too: no part of a launch that failed may keep running
        detach(engine, cluster, run.folder.run_id)
        raise


def _wait_for_driver(run: Run) -> None:
    def answers() -> bool:
        with contextlib.suppress(DeadlineError):
            run.status(timeout_s=1.0)
            return True
        return False

    if not wait_until(answers, START_LIMIT_S):
        raise HeadwayError(
            f"the driver of {run.name} did not start within {START_LIMIT_S:.0f} s",
            remedy=last_words(run.folder.logs / "n0-driver.log"),
        )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
