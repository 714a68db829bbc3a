"""Starting a run on machines that join it: what they share, what they get, and their start."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from headway.common.config import to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import make_private_folder
from headway.console.lifecycle.pods import needs_of
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines import MachinesConfig, config_of, facts_of, of_bundle, provide
from headway.launch.joining import tokens
from headway.launch.joining.bundle import Bundle
from headway.launch.joining.corpus import listing_digest
from headway.launch.slurm.config import SlurmConfig, SlurmRun
from headway.trainer.client import resolve_auto
from headway.trainer.config import RunConfig


def machines_of(folder: Path | None) -> MachinesConfig | None:
    """The machines of a cluster's folder; None where its nodes are emulated here."""
    facts = ClusterFolder(folder).engine if folder is not None else {}
    return config_of(facts) if facts else None


def slurm_defaults(runs_dir: Path) -> SlurmConfig:
    """Slurm without a file: machines that see the folder of runs, and this Python."""
    return SlurmConfig(shared=str(runs_dir.resolve() / ".shared"), python=sys.executable)


def resolve_on_machines(config: RunConfig) -> tuple[RunConfig, str]:
    """``resolve_auto`` where this machine carries no rank: ``auto`` takes GPUs if this machine has
    enough of them for one node; what a configuration asks for, each machine checks when it joins.

    Raises:
        InputError: as ``resolve_auto``.
    """
    ranks = config.launch.ranks_per_node
    return resolve_auto(config, ranks=ranks, gpus=ranks if config.train.device == "gpu" else None)


def fit_for_machines(config: RunConfig, machines: MachinesConfig) -> RunConfig:
    """The configuration as every machine can read it: the corpus by its whole path.

    Raises:
        InputError: they could not reach each other.
    """
    if not config.launch.interface and not isinstance(machines, SlurmConfig):
        raise InputError(
            "launch.interface is not set, and machines cannot reach each other over loopback",
            remedy='name an interface or network, such as launch.interface="10.0.0.0/16"',
        )
    path = str(Path(config.data.path).resolve())
    return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path))


def prepare(
    run: Run, cluster: ClusterFolder, machines: MachinesConfig, report: Callable[[str], None]
) -> Bundle:
    """Get the machines, and make the folders that they see and the bundle that each of them gets.

    Raises:
        InputError: the shared folder cannot be used, the run began on one machine, or there are too
            few machines.
        HeadwayError: the machines cannot be had.
    """
    folder, config = run.folder, run.config
    shared = Path(machines.shared) / f"{run.name}-{folder.run_id}"
    shutil.rmtree(shared / "records", ignore_errors=True)  # of the run's last machines
    for name in ("control", "checkpoints"):
        try:
            make_private_folder(shared / name)
        except OSError as error:
            raise InputError(
                f"cannot make {shared / name}: {error.strerror}",
                remedy="`shared` in the cluster's file must be a folder that this machine sees too",
            ) from error
        _link(folder.path / name, shared / name)
    (folder.control / "driver.json").unlink(missing_ok=True)  # of a driver that has ended
    nodes = config.launch.nodes + config.launch.spares
    former = Bundle.load(folder.bundle) if folder.bundle.exists() else None
    fingerprint = listing_digest(Path(config.data.path))
    control, needs = shared / "control", needs_of(config)
    provided = provide(machines, nodes, run_id=folder.run_id, control=control, report=report)
    if not config.launch.interface and isinstance(provided, SlurmRun):
        launch = dataclasses.replace(config.launch, interface=provided.network)
        config = dataclasses.replace(config, launch=launch)
    bundle = Bundle(
        run_id=folder.run_id,
        name=run.name,
        nodes=nodes,
        config=to_toml(config),
        network=config.launch.network,
        engine=facts_of(provided),
        shared=str(shared),
        secret=former.secret if former is not None else tokens.new_secret(),
        console_key=cluster.key_of("console").public.decode(),
        corpus=config.data.path,
        fingerprint=fingerprint,
        gpus=needs.gpus,
        shm_bytes=needs.shm_bytes,
    )
    bundle.save(folder.bundle)
    return bundle


def _link(link: Path, target: Path) -> None:
    if link.is_symlink():
        return
    if link.exists():
        try:
            link.rmdir()
        except OSError:
            raise InputError(
                f"{link} holds files of a run that began on one machine",
                remedy="start a new run, or fork this one",
            ) from None
    link.symlink_to(target)


def start_nodes(bundle: Bundle, report: Callable[[str], None]) -> None:
    """Start node 0, which hosts the first driver, then the others, which join.

    Raises:
        HeadwayError: one did not start. Call ``end_nodes`` then.
    """
    engine = of_bundle(bundle)
    report(f"starting {bundle.nodes} machines, {engine.name_of(0)} first")
    engine.start_first()
    engine.start_all(range(1, bundle.nodes))


def end_nodes(bundle: Bundle, report: Callable[[str], None]) -> None:
    """End everything of the run on every machine that is reached."""
    try:
        of_bundle(bundle).stop()
    except HeadwayError as error:
        report(f"not everything has ended: {error.message}")
