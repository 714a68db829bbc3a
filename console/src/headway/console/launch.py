"""Starting a run, from top to bottom: ``launch``, then its steps in their order.

One start at a time claims the run's folder; what the folder holds decides whether it is a new run
or a resumed one. A start that fails leaves no process behind, and a new run no folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from headway.common.config import diff, to_toml
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.files import replace_file, replace_json
from headway.common.node.janitor import end_run, sweep
from headway.common.node.run_dir import RunDir, new_run_id, shm_root, sock_root
from headway.common.polling import wait_until
from headway.console import config_origins
from headway.console.hints import hint
from headway.console.peak import cached_peak, machine_peak
from headway.console.preflight import (
    check_machine,
    check_metrics_ports,
    check_sinks,
    check_torch,
    own_corpus_folder,
    prepare_corpus,
)
from headway.console.progress import full_rate
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine
from headway.launch.local import LocalEngine
from headway.launch.nodes import START_LIMIT_S, attach, detach, last_line
from headway.trainer.client import reopen, settled
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


def launch(
    runs_dir: Path,
    config: RunConfig,
    *,
    name: str | None,
    base: str,
    folder: Path | None = None,
    measure: bool = False,
    origins: Mapping[str, str],
    report: Callable[[str], None],
) -> Run:
    """Start a run below ``runs_dir``, or resume one; ``Cluster.launch`` explains the arguments.

    ``origins``: where the settings that are not defaults come from, for ``headway config show``.

    Raises:
        InputError: anything wrong that can be found before step 0. A new run then leaves no folder.
    """
    check_torch()
    asked = config
    config, line = settled(own_corpus_folder(config), ranks=config.parallel.world_size)
    report(line)
    check_sinks(config.launch.sinks)
    check_machine(config, runs_dir)
    prepare_corpus(config, report)
    with claimed(_choose(runs_dir, base, name)) as (run, resumed):
        for line in sweep(sock_root(), shm_root(), spare=run.folder.run_id):
            report(line)
        if resumed:
            check_resumable(run, config)
        if measure:
            measure_peak(config.train.device, report)
        report(f"{'resuming' if resumed else 'starting'} run {run.name}")
        end_run(
            run.folder.run_id,
            keep_arenas=folder is None and resumed and has_same_nodes(run, config),
        )
        check_metrics_ports(config.launch.metrics_ports)
        if run.outcome:
            reopen(run.folder.database)
        for line in keep_config(run, config):
            report(line)
        config_origins.keep(run, origins, asked, config)
        cluster = _cluster_for(run, folder, config.launch.nodes + config.launch.spares)
        start(run, cluster, config.launch, report)
    return run


def runs_below(runs_dir: Path) -> list[Run]:
    """Every run in ``runs_dir``, the oldest first."""
    found = [path.parent for path in runs_dir.glob("*/run.json")]
    return [Run(path) for path in sorted(found, key=lambda p: (p / "run.json").stat().st_mtime)]


def run_name(text: str) -> str:
    """A name for a run after a file or a title: what a folder's name may not hold becomes "-"."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "run"


# ---- 1. the folder ------------------------------------------------------------------------
def _choose(runs_dir: Path, base: str, name: str | None) -> Path:
    """The run's folder: a free one, or that of an unfinished run, which may be live."""
    if name is not None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise InputError(
                f"run name {name!r} cannot be a folder's name",
                remedy="use letters, digits, '-', '_', '.'",
            )
        return runs_dir / name
    mine = [
        run for run in runs_below(runs_dir) if re.fullmatch(rf"{re.escape(base)}(-\d+)?", run.name)
    ]
    if mine and mine[-1].outcome != "finished":
        return mine[-1].path
    numbers = [int(run.name.rpartition("-")[2]) for run in mine if run.name != base]
    return runs_dir / (base if not mine else f"{base}-{max(numbers, default=1) + 1}")


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


def keep_config(run: Run, config: RunConfig) -> list[str]:
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


def has_same_nodes(run: Run, config: RunConfig) -> bool:
    """Whether ranks stay on the nodes that hold their snapshots in shared memory."""
    if not run.folder.config.exists():
        return False
    try:
        old, new = run.config.launch, config.launch
    except HeadwayError:  # written by another version
        return False
    return (old.nodes, old.ranks_per_node, old.spares) == (
        new.nodes,
        new.ranks_per_node,
        new.spares,
    )


# ---- 3. the peak, for MFU -----------------------------------------------------------------
def measure_peak(device: str, report: Callable[[str], None]) -> None:
    """Measure this machine's peak unless it is known; a failure only costs the run its MFU."""
    known = cached_peak(device)
    if known is None or not known.is_idle:
        busy = " again: it was busy the last time" * (known is not None)
        report(f"measuring this machine's peak for MFU{busy}")
        try:
            measured = machine_peak(device)
        except HeadwayError as error:
            report(str(error))
            return
        if not measured.is_idle:
            report(
                "the machine is busy: MFU is left out until its peak has been measured while idle"
            )


# ---- 4. the processes ---------------------------------------------------------------------
def _cluster_for(run: Run, folder: Path | None, nodes: int) -> ClusterFolder:
    """The given cluster, or a new one of the run's own; the run remembers which."""
    if folder is not None:
        cluster = ClusterFolder(folder)
        if cluster.nodes < nodes:
            raise InputError(
                f"the run needs {nodes} nodes, {folder} has {cluster.nodes}",
                remedy="make the cluster larger or set launch.nodes and launch.spares",
            )
    else:
        shutil.rmtree(run.path / "cluster", ignore_errors=True)
        cluster = ClusterFolder.create(
            run.path / "cluster", nodes=nodes, cluster_id=run.folder.run_id
        )
    record = json.loads(run.folder.run_json.read_text())
    record["cluster"] = str(cluster.path)
    record["full_tokens_per_s"] = full_rate(run.config, run.peak)
    replace_json(run.folder.run_json, record)
    return cluster


def start(
    run: Run,
    cluster: ClusterFolder,
    launch: LaunchConfig,
    report: Callable[[str], None],
) -> None:
    """Start the nodes, attach the run to each and wait for its driver.

    Raises:
        HeadwayError: a node or the driver did not start; the nodes are ended again.
    """
    engine: Engine = LocalEngine(cluster)
    (run.path / "driver.json").unlink(missing_ok=True)
    run.folder.metrics_targets.unlink(missing_ok=True)  # the driver writes it, if it exports any
    try:
        attach(engine, cluster, run.path, launch.nodes + launch.spares)
        report(f"{_counted(launch.nodes, 'node')} and {_counted(launch.spares, 'spare')} are up")
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
            remedy=last_line(run.folder.logs / "n0-driver.log"),
        )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
