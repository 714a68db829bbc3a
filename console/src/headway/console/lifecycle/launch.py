"""Starting a run, from top to bottom: ``launch``, then its steps in their order.

One start at a time claims the run's folder, which shows the run from then on; what it holds decides
whether it is a new run or a resumed one. A start that fails leaves no process behind, and a new run
no folder.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.janitor import end_run, sweep
from headway.common.node.run_dir import shm_root, sock_root
from headway.common.output import counted
from headway.common.polling import wait_until
from headway.console.folder import config_origins
from headway.console.folder.claim import check_name, check_resumable, claimed, keep_config
from headway.console.folder.starting import enter_stage
from headway.console.gateway.remote_run import open_run
from headway.console.hints import refuse_elsewhere, run_folders
from headway.console.lifecycle.machines import (
    DRIVER_LOG,
    began_on,
    check_machines,
    driver_words,
    fit_for_machines,
    machines_of,
    nodes_started,
    pods_of,
    prepare,
    resolve_on_machines,
    slurm_defaults,
)
from headway.console.lifecycle.shared_folder import removed_if_new, shared_folder
from headway.console.live.progress import full_rate
from headway.console.machine import preflight
from headway.console.machine.memory import memory_warnings
from headway.console.machine.peak import cached_peak, machine_peak
from headway.console.pods.launching import launch_on_pods
from headway.console.run import Run
from headway.controller.client import reopen
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine
from headway.launch.engines.choose import MachinesConfig
from headway.launch.engines.local import LocalEngine
from headway.launch.lease.choose import lease_of
from headway.launch.nodes import START_LIMIT_S, attach, detach, last_line
from headway.trainer.client import check_first_weights, resolve_auto
from headway.trainer.config import LaunchConfig, RunConfig


def launch(
    runs_dir: Path,
    config: RunConfig,
    *,
    name: str | None,
    base: str,
    folder: Path | None = None,
    engine: str = "",
    measure: bool = False,
    origins: Mapping[str, str],
    report: Callable[[str], None],
) -> Run:
    """Start a run below ``runs_dir``, or resume one; ``Cluster.launch`` explains the arguments.

    A run that began on machines is resumed on them. ``origins``: where the settings that are not
    defaults come from, for ``headway config show``.

    Raises:
        InputError: anything wrong that can be found before step 0. A new run then leaves no folder.
    """
    path = _choose(runs_dir, base, name)
    if (pods := pods_of(path, folder, engine)) is not None:
        on_pods = launch_on_pods(path, config, pods, begun=partial(_note, folder), report=report)
        config_origins.keep(on_pods, origins, config, on_pods.config)
        return on_pods
    if name is not None:  # before anything is prepared for it
        refuse_elsewhere(path)
    preflight.check_torch()
    if folder is None and engine != "slurm":
        folder, engine = began_on(path)
    asked, config = config, preflight.own_corpus_folder(config)
    machines = slurm_defaults(runs_dir) if engine == "slurm" else machines_of(folder)
    config, line = _resolved(config, machines)
    report(line)
    _check(config, runs_dir, report, is_alone=machines is None)
    with claimed(path, report) as (records, resumed):
        run = Run(records.path)
        for line in sweep(sock_root(), shm_root(), spare=run.folder.run_id):
            report(line)
        if resumed:
            check_resumable(run, config)
        elif config.train.init_from:
            check_first_weights(config)
        if not resumed:  # a resumed run keeps its own until nothing can be refused any more
            keep_config(run, config)
        enter_stage(run.path, preflight.corpus_stage(config))
        preflight.prepare_corpus(config, report)
        if measure and machines is None:
            enter_stage(run.path, "measuring this machine's peak")
            measure_peak(config.train.device, report)
        enter_stage(run.path, "starting nodes")
        report(f"{'resuming' if resumed else 'starting'} run {run.name}")
        keep_arenas = folder is None and resumed and has_same_nodes(run, config)
        end_run(run.folder.run_id, keep_arenas=keep_arenas)
        if machines is None:
            preflight.check_metrics_ports(config.launch.metrics_ports)
            preflight.check_network(config.launch.network)
        if run.outcome:
            reopen(run.folder)
        keep_epoch(run)
        for line in keep_config(run, config):
            report(line)
        config_origins.keep(run, origins, asked, config)
        _start_on(run, folder, machines, report)
    return run


def run_name(text: str) -> str:
    """A name for a run after a file or a title: what a folder's name may not hold becomes "-"."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "run"


def _check(
    config: RunConfig, runs_dir: Path, report: Callable[[str], None], *, is_alone: bool
) -> None:
    """What this machine can find before the run has a folder. Raises InputError."""
    preflight.check_sinks(config.launch.sinks)
    preflight.check_own_block(config)
    preflight.check_own_rules(config)
    preflight.check_machine(config, runs_dir, is_alone=is_alone)
    for line in memory_warnings(config):
        report(line)


def _resolved(config: RunConfig, machines: MachinesConfig | None) -> tuple[RunConfig, str]:
    """The configuration without ``auto``, for this machine or others, and a line that says it."""
    if machines is None:
        return resolve_auto(config, ranks=config.parallel.world_size)
    check_machines(machines, config)
    config, line = resolve_on_machines(config, machines)
    return fit_for_machines(config), line


# ---- 1. the folder ------------------------------------------------------------------------
def _note(folder: Path | None, run: Run) -> None:
    """Have the cluster know the run, if it is one's."""
    if folder is not None:
        ClusterFolder(folder).note(run.folder.run_id, run.path)


def _choose(runs_dir: Path, base: str, name: str | None) -> Path:
    """The run's folder: a free one, or that of an unfinished run, which may be live."""
    if name is not None:
        check_name(name)
        return runs_dir / name
    pattern = re.compile(rf"{re.escape(base)}(-\d+)?")
    mine = [folder for folder in run_folders(runs_dir) if pattern.fullmatch(folder.name)]
    if mine and open_run(mine[-1]).outcome != "finished":
        return mine[-1]
    numbers = [int(run.name.rpartition("-")[2]) for run in mine if run.name != base]
    return runs_dir / (base if not mine else f"{base}-{max(numbers, default=1) + 1}")


def keep_epoch(run: Run) -> None:
    """Claim the journal's newest epoch where the files of the lease were lost.

    A driver with a lower epoch could not write.
    """
    epoch, lease = run.fact("epoch"), lease_of(run.folder.control)
    if epoch.isdecimal() and lease.look().claimed < int(epoch):
        lease.claim(int(epoch) - 1)


def has_same_nodes(run: Run, config: RunConfig) -> bool:
    """Whether ranks stay on the nodes that hold their snapshots in shared memory."""
    if not run.folder.config.exists():
        return False
    try:
        old, new = run.config.launch, config.launch
    except HeadwayError:  # written by another version
        return False
    keys = ("nodes", "ranks_per_node", "spares")
    return all(getattr(old, key) == getattr(new, key) for key in keys)


# ---- 2. the peak, for MFU -----------------------------------------------------------------
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


# ---- 3. the processes ---------------------------------------------------------------------
def _cluster_for(run: Run, folder: Path | None, nodes: int) -> ClusterFolder:
    """The given cluster, or a new one of the run's own; the run remembers which."""
    if folder is not None:
        cluster = ClusterFolder(folder)
        if 0 < cluster.nodes < nodes:  # 0: Slurm gives as many as a run asks for
            raise InputError(
                f"the run needs {nodes} nodes, {folder} has {cluster.nodes}",
                remedy="make the cluster larger or set launch.nodes and launch.spares",
            )
    else:
        shutil.rmtree(run.path / "cluster", ignore_errors=True)
        cluster = ClusterFolder.create(
            run.path / "cluster",
            nodes=nodes,
            cluster_id=run.folder.run_id,
            network=run.config.launch.network,
        )
    run.note(cluster=str(cluster.path))
    return cluster


def _start_on(
    run: Run,
    folder: Path | None,
    machines: MachinesConfig | None,
    report: Callable[[str], None],
) -> None:
    """Start the run's nodes here, or on machines."""
    launch = run.config.launch
    cluster = _cluster_for(run, folder, launch.nodes + launch.spares)
    if machines is None:
        # the rate at which MFU would be 1, for the metrics that the driver exports
        run.note(full_tokens_per_s=full_rate(run.config, run.peak))
        start(run, cluster, launch, report)
    else:
        start_on_machines(run, cluster, machines, report)


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
        report(f"{counted(launch.nodes, 'node')} and {counted(launch.spares, 'spare')} are up")
        _wait_for_driver(run, lambda: last_line(run.folder.logs / DRIVER_LOG))
    except BaseException:  # Ctrl-C too: no part of a launch that failed may keep running
        detach(engine, cluster, run.folder.run_id)
        raise


def start_on_machines(
    run: Run, cluster: ClusterFolder, machines: MachinesConfig, report: Callable[[str], None]
) -> None:
    """Have the machines join the run and wait for its driver.

    Raises:
        HeadwayError: a machine or the driver did not start; those that were tried are ended again.
    """
    cluster.note(run.folder.run_id, run.path)
    with removed_if_new(shared_folder(run, machines)):
        bundle = prepare(run, cluster, machines, report)
        with nodes_started(bundle, run.folder, report) as engine:
            _wait_for_driver(run, lambda: driver_words(engine))


def _wait_for_driver(run: Run, exit_record: Callable[[], str]) -> None:
    def answers() -> bool:
        with contextlib.suppress(DeadlineError):
            run.status(timeout_s=1.0)
            return True
        return False

    if not wait_until(answers, START_LIMIT_S):
        raise HeadwayError(
            f"the driver of {run.name} did not start within {START_LIMIT_S:.0f} s",
            remedy=exit_record(),
        )
