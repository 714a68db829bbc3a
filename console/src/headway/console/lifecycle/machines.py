"""Starting a run on machines that join it: what they share, what they get, and their start."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headway.common.config import to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import make_private_folder
from headway.common.node.run_dir import RunDir
from headway.console.lifecycle.pods import needs_of
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines import (
    Hardware,
    MachinesConfig,
    check_number,
    config_of,
    facts_of,
    hardware_of,
    of_bundle,
    provide,
)
from headway.launch.joining import records, tokens
from headway.launch.joining.bundle import Bundle
from headway.launch.joining.corpus import listing_digest
from headway.launch.lease import FileLease
from headway.launch.leases import lease_of
from headway.launch.machines.engine import MachinesEngine
from headway.launch.slurm.config import SlurmConfig, SlurmRun
from headway.trainer.client import resolve_auto
from headway.trainer.config import RunConfig

LINKED = ("control", "checkpoints")
"""Folders of a run that all machines see."""


def machines_of(folder: Path | None) -> MachinesConfig | None:
    """The machines of a cluster's folder; None where its nodes are emulated here."""
    facts = ClusterFolder(folder).engine if folder is not None else {}
    return config_of(facts) if facts else None


def slurm_defaults(runs_dir: Path) -> SlurmConfig:
    """Slurm without a file: machines that see the folder of runs, and this Python."""
    return SlurmConfig(shared=str(runs_dir.resolve() / ".shared"), python=sys.executable)


def resolve_on_machines(config: RunConfig, machines: MachinesConfig) -> tuple[RunConfig, str]:
    """``resolve_auto`` where this machine carries no rank: ``auto`` is decided by the hardware of
    the machines; what a configuration asks for, each machine checks when it joins.

    Raises:
        InputError: as ``resolve_auto``. HeadwayError: as ``hardware_of``.
    """
    ranks, train = config.launch.ranks_per_node, config.train
    if "auto" in (train.device, train.dtype):
        there = hardware_of(machines, ranks)
    else:
        there = Hardware(0)
    gpus = ranks if train.device == "gpu" else there.gpus
    return resolve_auto(config, ranks=ranks, gpus=gpus, cpuinfo=there.cpuinfo)


def check_machines(machines: MachinesConfig, config: RunConfig) -> None:
    """What can be known of them before anything is prepared for the run.

    Raises:
        InputError: there are too few, or the shared folder cannot be made.
    """
    check_number(machines, config.launch.nodes + config.launch.spares)
    shared = Path(machines.shared)
    there = next(path for path in (shared, *shared.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise _unusable_shared(shared, "is not a folder" if not there.is_dir() else "no permission")


def fit_for_machines(config: RunConfig, machines: MachinesConfig) -> RunConfig:
    """The configuration as every machine can read it: the corpus by its whole path.

    Raises:
        InputError: they could not reach each other.
    """
    if not config.launch.interface and not isinstance(machines, SlurmConfig):
        raise InputError(
            "launch.interface is not set, so machines cannot reach each other",
            remedy='name an interface or network, such as launch.interface="10.0.0.0/16"',
        )
    path = str(Path(config.data.path).resolve())
    return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path))


def prepare(
    run: Run, cluster: ClusterFolder, machines: MachinesConfig, report: Callable[[str], None]
) -> Bundle:
    """Get the machines, and make the folders that they see and the bundle that each of them gets.

    What was taken for the run is given back where this fails.

    Raises:
        InputError: the shared folder cannot be used, the run began on one machine, there are too
            few machines, or a driver leads the run after all.
        HeadwayError: the machines cannot be had.
    """
    folder, config = run.folder, run.config
    shared = shared_folder(run, machines)
    for name in LINKED:
        _check_link(folder.path / name, shared / name)
    for name in LINKED:
        try:
            make_private_folder(shared / name)
        except OSError as error:
            raise _unusable_shared(shared / name, error.strerror) from error
        _link(folder.path / name, shared / name)
    _take_records(shared / "records", run, report)
    forget_driver(folder)  # the run is not live, so it has ended
    nodes = config.launch.nodes + config.launch.spares
    former = Bundle.load(folder.bundle) if folder.bundle.exists() else None
    fingerprint = listing_digest(Path(config.data.path))
    control, needs = shared / "control", needs_of(config)
    bundle = Bundle(
        run_id=folder.run_id,
        start=secrets.token_hex(4),
        name=run.name,
        nodes=nodes,
        config="",
        network=config.launch.network,
        engine={},
        shared=str(shared),
        secret=former.secret if former is not None else tokens.new_secret(),
        console_key=cluster.key_of("console").public.decode(),
        corpus=config.data.path,
        fingerprint=fingerprint,
        gpus=needs.gpus,
        shm_bytes=needs.shm_bytes,
    )
    provided = provide(machines, nodes, run_id=folder.run_id, control=control, report=report)
    bundle = _with_machines(bundle, config, provided)
    try:
        if lease_of(folder.control).look().holder is not None:
            raise InputError(
                f"another driver took over run {run.name} while machines were being allocated",
                remedy=f"see {run.hint('status')}",
            )
        bundle.save(folder.bundle)
    except BaseException:  # Ctrl-C too
        _report_trouble(of_bundle(bundle).release, report)
        raise
    return bundle


def _with_machines(bundle: Bundle, config: RunConfig, provided: MachinesConfig) -> Bundle:
    if not config.launch.interface and isinstance(provided, SlurmRun):
        launch = dataclasses.replace(config.launch, interface=provided.network)
        config = dataclasses.replace(config, launch=launch)
    return dataclasses.replace(
        bundle,
        config=to_toml(config),
        network=config.launch.network,
        engine=facts_of(provided),
    )


def forget_driver(folder: RunDir) -> None:
    """Remove the record of a driver that has certainly ended; one that lives writes it again."""
    (folder.control / "driver.json").unlink(missing_ok=True)


def shared_folder(run: Run, machines: MachinesConfig) -> Path:
    """The folder of this run that all machines see."""
    return Path(machines.shared) / f"{run.name}-{run.folder.run_id}"


def _unusable_shared(path: Path, why: str | None) -> InputError:
    return InputError(
        f"cannot make {path}: {why}",
        remedy="`shared` in the cluster's file must be a folder that this machine sees too",
    )


def _take_records(kept: Path, run: Run, report: Callable[[str], None]) -> None:
    """Move the logs that nodes kept at their end into the run's folder: the next nodes keep
    theirs at the same place."""
    for file in sorted(kept.glob("n*.txt")):
        try:
            records.unpack(file.read_text(), run.path)
        except (HeadwayError, OSError) as error:
            report(f"the logs in {file} are lost: {error}")
    shutil.rmtree(kept, ignore_errors=True)


@contextlib.contextmanager
def removed_if_new(shared: Path) -> Iterator[None]:
    """Remove a run's shared folder if the body, which makes it, fails, by Ctrl-C too. What a driver
    has written is kept."""
    is_new = not shared.exists()
    try:
        yield
    except BaseException:
        if is_new and FileLease(shared / "control").look().holder is None:
            shutil.rmtree(shared, ignore_errors=True)
        raise


def _check_link(link: Path, target: Path) -> None:
    """Raises InputError where the run has files of its own, or those of another shared folder."""
    if link.is_symlink():
        if (there := link.readlink()) != target:
            raise InputError(
                f"the folder {link.name} of the run is {there}, not {target}",
                remedy="resume it with the `shared` folder that it began with",
            )
    elif link.exists() and any(link.iterdir()):
        raise InputError(
            f"the run began on one machine, not on several ({link} holds files)",
            remedy="start a new run, or fork this one",
        )


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        if link.exists():
            link.rmdir()
        link.symlink_to(target)


@contextlib.contextmanager
def nodes_started(
    bundle: Bundle, folder: RunDir, report: Callable[[str], None]
) -> Iterator[MachinesEngine]:
    """Node 0, which hosts the first driver, then the others, which join; where a start or the body
    fails, the nodes whose start was tried are ended again, and no others.

    Raises:
        HeadwayError: one did not start.
    """
    engine, tried = of_bundle(bundle), range(0)
    try:
        report(f"starting {bundle.nodes} machines, {engine.name_of(0)} first")
        tried = range(1)
        engine.start_first()
        tried = range(bundle.nodes)
        engine.start_all(tried[1:])
        yield engine
    except BaseException:  # Ctrl-C too
        _report_trouble(lambda: _end_tried(engine, folder, tried, report), report)
        raise


def _end_tried(
    engine: MachinesEngine, folder: RunDir, nodes: Iterable[int], report: Callable[[str], None]
) -> None:
    for line in end_nodes(engine, folder, nodes):
        report(f"not everything has ended: {line}")


def end_nodes(
    engine: MachinesEngine, folder: RunDir, nodes: Iterable[int] | None = None
) -> list[str]:
    """End nodes of a run, all by default; returns a line for each that may still run.

    Raises:
        HeadwayError: the machines cannot be given back.
    """
    left = engine.stop(nodes)
    if not left:
        forget_driver(folder)
    return left


def _report_trouble(work: Callable[[], None], report: Callable[[str], None]) -> None:
    """Clean up after a failure, which is what the user has to see."""
    try:
        work()
    except HeadwayError as error:
        report(f"some processes may still be running: {error.message}")
