"""Starting a run on machines that join it: what they share, what they get, and their start."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headway.common.config import to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import RunDir
from headway.console.folder.claim import StillRunningError, has_led
from headway.console.hints import PODS
from headway.console.lifecycle.shared_folder import check_possible, make_shared, shared_folder
from headway.console.pods.manifests import compiles_on, needs_of
from headway.console.pods.run import PodsRun
from headway.console.run import Run
from headway.dataloader import Dataset
from headway.launch.cluster import ClusterFolder
from headway.launch.engines import choose
from headway.launch.engines.choose import MachinesConfig
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.remote.engine import MachinesEngine
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.corpus import Corpus, digest_of
from headway.launch.lease.choose import lease_of
from headway.launch.nodes import last_line_in
from headway.trainer.client import resolve_auto
from headway.trainer.config import RunConfig

DRIVER_LOG = "n0-driver.log"
"""Log of a run's first driver."""
KUBERNETES_FILE = "kubernetes.toml"
"""What ``headway run --engine kubernetes`` reads, in the working folder."""


def machines_of(folder: Path | None) -> MachinesConfig | None:
    """The machines of a cluster's folder; None where its nodes are emulated here."""
    facts = ClusterFolder(folder).engine if folder is not None else {}
    return choose.config_of(facts) if facts else None


def began_on(path: Path) -> tuple[Path | None, str]:
    """Folder of the cluster and engine of a run on machines, as ``launch`` takes them.

    For any other run, or where there is none, no folder and no engine.
    """
    run = RunDir(path)
    if not run.bundle.exists():
        return None, ""
    cluster = Run(path).cluster_folder
    return (None, "slurm") if path.resolve() in cluster.resolve().parents else (cluster, "")


def pods_of(path: Path, folder: Path | None, engine: str) -> KubernetesConfig | None:
    """What the pods of the run at ``path`` are made of; None where it is not on Kubernetes.

    Args:
        path: folder of the run, which may have begun on pods.
        folder: of the cluster, if one was named.
        engine: that was asked for.

    Raises:
        ConfigError: ``kubernetes.toml`` of the working folder cannot be read.
    """
    if folder is not None:
        found = machines_of(folder)
        return found if isinstance(found, KubernetesConfig) else None
    if engine == "kubernetes":
        return read_config(KubernetesConfig, Path(KUBERNETES_FILE))
    return PodsRun(path).pods if (path / PODS).exists() else None


def provided(config: MachinesConfig) -> str:
    """Return in words what gives each run its machines, where a cluster has none of its own."""
    if isinstance(config, KubernetesConfig):
        return "Kubernetes provides the pods of each run"
    return "Slurm provides the machines of each run"


def slurm_defaults(runs_dir: Path) -> SlurmConfig:
    """Slurm without a file: machines that see the folder of runs, and this Python."""
    return SlurmConfig(shared=str(runs_dir.resolve() / ".shared"), python=sys.executable)


def resolve_on_machines(config: RunConfig, machines: MachinesConfig) -> tuple[RunConfig, str]:
    """Resolve ``auto`` where this machine carries no rank.

    It does what ``resolve_auto`` does, but ``auto`` is decided by what the machines have; what a
    configuration asks for, each machine checks when it joins.

    Raises:
        InputError: as ``resolve_auto``. HeadwayError: as ``hardware_of`` and ``compiler_lack``.
    """
    ranks, train = config.launch.ranks_per_node, config.train
    if "auto" in (train.device, train.dtype):
        there = choose.hardware_of(machines, ranks)
    else:
        there = choose.Hardware(0)
    gpus = ranks if train.device == "gpu" else there.gpus

    def find_lack(on_gpu: bool) -> str:
        if train.compile == "auto" and on_gpu:
            return choose.compiler_lack(machines, config.launch.nodes + config.launch.spares)
        return ""

    return resolve_auto(config, ranks=ranks, gpus=gpus, cpuinfo=there.cpuinfo, find_lack=find_lack)


def check_machines(machines: MachinesConfig, config: RunConfig) -> None:
    """What can be known of them before anything is prepared for the run.

    Raises:
        InputError: there are too few, they could not reach each other, or the shared folder cannot
            be made. HeadwayError: one is not reached.
    """
    nodes = config.launch.nodes + config.launch.spares
    choose.check_number(machines, nodes)
    if not config.launch.interface and not isinstance(machines, SlurmConfig):
        raise InputError(
            "launch.interface is not set, so machines cannot reach each other",
            remedy='name an interface or network, such as launch.interface="10.0.0.0/16"',
        )
    if config.launch.sinks:
        raise InputError(
            f"launch.sinks={list(config.launch.sinks)}: files would be written on the disk of the "
            "driver's machine, and removed at the end of the run",
            remedy="leave it out and use `headway export`",
        )
    check_possible(Path(machines.shared))
    choose.check_reached(machines, nodes)


def fit_for_machines(config: RunConfig) -> RunConfig:
    """The configuration as every machine can read it: the corpus by its whole path."""
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
    make_shared(shared, run, report)
    forget_driver(folder)  # the run is not live, so it has ended
    nodes = config.launch.nodes + config.launch.spares
    # all that can fail comes before machines are taken
    is_known = folder.bundle.exists()
    secret = Bundle.load(folder.bundle).secret if is_known else tokens.new_secret()
    console_key = cluster.key_of("console").public.decode()
    path, needs = Path(config.data.path), needs_of(config)
    corpus = Corpus(str(path), digest_of(path), Dataset(path).recipe)
    provided = choose.provide(
        machines, nodes, run_id=folder.run_id, control=shared / "control", report=report
    )
    if not config.launch.interface and isinstance(provided, SlurmRun):
        launch = dataclasses.replace(config.launch, interface=provided.network)
        config = dataclasses.replace(config, launch=launch)
    bundle = Bundle(
        run_id=folder.run_id,
        start=secrets.token_hex(4),
        name=run.name,
        nodes=nodes,
        config=to_toml(config),
        network=config.launch.network,
        engine=choose.facts_of(provided),
        shared=str(shared),
        secret=secret,
        console_key=console_key,
        corpus=corpus,
        gpus=needs.gpus,
        shm_bytes=needs.shm_bytes,
        compiles_on=compiles_on(config),
    )
    try:
        if lease_of(folder.control).look().holder is not None:
            raise InputError(
                f"another driver took over run {run.name} while machines were being allocated",
                remedy=f"see {run.hint('status')}",
            )
        bundle.save(folder.bundle)
    except BaseException:  # Ctrl-C too
        _report_trouble(choose.of_bundle(bundle).release, report)
        raise
    return bundle


def forget_driver(folder: RunDir) -> None:
    """Remove the record of a driver that has certainly ended; one that lives writes it again."""
    (folder.control / "driver.json").unlink(missing_ok=True)


@contextlib.contextmanager
def nodes_started(
    bundle: Bundle, folder: RunDir, report: Callable[[str], None]
) -> Iterator[MachinesEngine]:
    """Start node 0, which hosts the first driver, then the others, which join.

    Where a start or the body fails, the nodes whose start was tried are ended again, and no others.

    Raises:
        StillRunningError: node 0 had started, and a node may still run.
        HeadwayError: one did not start.
    """
    engine, tried, may_be_led = choose.of_bundle(bundle), range(0), False
    try:
        if bundle.corpus.recipe:  # once a driver runs, a machine must start soon or is given up
            report("looking for the corpus on the machines; one that lacks it prepares it")
            engine.prepare_all()
        report(f"starting {bundle.nodes} machines, {engine.name_of(0)} first")
        tried = range(1)
        engine.start_first()
        may_be_led = True
        tried = range(bundle.nodes)
        with _explained(engine, folder):
            engine.start_all(tried[1:])
        yield engine
    except BaseException as error:  # Ctrl-C too
        left = _end_tried(engine, folder, tried)
        if left and may_be_led:
            why = error.message if isinstance(error, HeadwayError) else "it was interrupted"
            raise StillRunningError(
                f"the start failed ({why}), and not everything has ended: {'; '.join(left)}",
                remedy=f"end it later with `headway stop {folder.name} --now`",
            ) from error
        for line in left:
            report(f"not everything has ended: {line}")
        raise


@contextlib.contextmanager
def _explained(engine: MachinesEngine, folder: RunDir) -> Iterator[None]:
    """Where the others cannot join since the driver does not start, its error is the cause."""
    try:
        yield
    except HeadwayError as error:
        words = "" if has_led(folder.control) else driver_words(engine)
        if "ends with: error: " not in words:
            raise
        raise HeadwayError(f"the driver of {folder.name} did not start", remedy=words) from error


def driver_words(engine: MachinesEngine) -> str:
    """The last line that the first driver has written, on its machine."""
    try:
        return last_line_in(engine.logs(0), DRIVER_LOG)
    except HeadwayError as error:
        return f"its log is on {engine.name_of(0)}: {error.message}"


def _end_tried(engine: MachinesEngine, folder: RunDir, nodes: Iterable[int]) -> list[str]:
    try:
        return end_nodes(engine, folder, nodes)
    except HeadwayError as error:
        return [error.message]
    except KeyboardInterrupt:
        return ["ending it was interrupted"]


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
