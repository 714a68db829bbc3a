"""Launch runs and find them again: what a notebook and ``headway run`` start from."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.common.config import load, to_toml
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.janitor import end_run, sweep
from headway.common.node.run_dir import RunDir, new_run_id, shm_root, sock_root
from headway.common.wire.client import Client
from headway.common.wire.messages.executor import Attached, AttachRun
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.local import LocalEngine
from headway.trainer.config import RunConfig

START_LIMIT_S = 60.0
MIN_FREE_BYTES = 2 << 30


class Cluster:
    """The runs below one folder, and the nodes to start new ones on.

    Without ``folder`` each run gets nodes of its own on this machine, which end with it; with the folder of a
    cluster that ``make up`` started, runs are attached to its executors.
    """

    def __init__(self, runs: str | Path = "runs", *, folder: str | Path | None = None) -> None:
        self.runs_dir = Path(runs).resolve()
        self.folder = Path(folder).resolve() if folder is not None else None

    def runs(self) -> list[Run]:
        """Every run, the oldest first."""
        found = [path.parent for path in self.runs_dir.glob("*/run.json")]
        return [Run(path) for path in sorted(found, key=lambda path: (path / "run.json").stat().st_mtime)]

    def run(self, name: str | None = None) -> Run:
        """A run by name; without one the newest.

        Raises:
            InputError: there is none.
        """
        if name is not None:
            return Run(self.runs_dir / name)
        runs = self.runs()
        if not runs:
            raise InputError(f"no run in {self.runs_dir}", remedy="start one with `headway run examples/tiny.toml`")
        return runs[-1]

    def launch(self, config: str | Path | RunConfig, overrides: Sequence[str] = (), *, name: str | None = None,
               tell: Callable[[str], None] = lambda line: None) -> Run:
        """Start a run, or resume the unfinished one of the same name, and return as soon as its driver answers.

        Args:
            config: a TOML file or a ready configuration.
            overrides: ``table.key=value``.
            name: an explicit name must be free, or that of an unfinished run.
            tell: called with one line per stage of the start.

        Raises:
            InputError: anything wrong that can be found before step 0.
        """
        resolved = config if isinstance(config, RunConfig) else load(RunConfig, [Path(config)], overrides)
        base = "run" if isinstance(config, RunConfig) else Path(config).stem
        self._check_machine(resolved)
        prepare_corpus(resolved, tell)
        for line in sweep(sock_root(), shm_root()):
            tell(line)
        run_dir, resumed = self._choose(base, name)
        tell(f"{'resuming' if resumed else 'starting'} run {run_dir.name}")
        end_run(run_dir.run_id)
        draft = run_dir.config.with_suffix(".tmp")
        draft.write_text(to_toml(resolved))
        draft.replace(run_dir.config)
        run = Run(run_dir.path)
        self._start(run, resolved, tell)
        return run

    # ---- before step 0 ------------------------------------------------------------------------
    def _check_machine(self, config: RunConfig) -> None:
        self.runs_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.runs_dir).free
        if free < MIN_FREE_BYTES:
            raise InputError(f"{self.runs_dir} has {free >> 20} MiB free, a run needs {MIN_FREE_BYTES >> 20} MiB",
                             remedy="free some space or pass --runs-dir")
        need = _arena_bytes(config)
        there = shutil.disk_usage("/dev/shm").free
        if there < need:
            raise InputError(f"/dev/shm has {there >> 20} MiB free, the snapshots of this run need {need >> 20} MiB",
                             remedy="enlarge it (mount -o remount,size=... /dev/shm; docker --shm-size)")

    def _choose(self, base: str, name: str | None) -> tuple[RunDir, bool]:
        """The run's folder: new, or that of an unfinished run."""
        if name is not None:
            path = self.runs_dir / name
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                raise InputError(f"run name {name!r} cannot be a folder's name", remedy="use letters, digits, '-', '_', '.'")
            if not (path / "run.json").exists():
                return RunDir.create(path, run_id=new_run_id()), False
            run = Run(path)
            self._refuse_live(run)
            if run.outcome == "finished":
                raise InputError(f"run name {name!r} is taken by a finished run", remedy="choose another --name")
            return run.folder, True
        mine = [run for run in self.runs() if re.fullmatch(rf"{re.escape(base)}(-\d+)?", run.name)]
        if mine and mine[-1].outcome != "finished":
            self._refuse_live(mine[-1])
            return mine[-1].folder, True
        numbers = [int(run.name.rpartition("-")[2]) for run in mine if run.name != base]
        fresh = base if not mine else f"{base}-{max(numbers, default=1) + 1}"
        return RunDir.create(self.runs_dir / fresh, run_id=new_run_id()), False

    @staticmethod
    def _refuse_live(run: Run) -> None:
        if run.live:
            raise InputError(f"run {run.name} is live",
                             remedy=f"watch it with `headway watch {run.name}` or give another --name")

    # ---- nodes --------------------------------------------------------------------------------
    def _start(self, run: Run, config: RunConfig, tell: Callable[[str], None]) -> None:
        nodes = config.launch.nodes + config.launch.spares
        cluster = self._cluster_for(run, nodes)
        engine = LocalEngine(cluster)
        for stale in ("driver.json", "monitor.json"):
            (run.path / stale).unlink(missing_ok=True)
        for node in range(nodes):
            engine.start_node(node)
        for node in range(nodes):
            _attach(cluster, node, run.path)
        tell(f"{config.launch.nodes} nodes and {config.launch.spares} spares are up")
        _wait_for_driver(run)

    def _cluster_for(self, run: Run, nodes: int) -> ClusterFolder:
        if self.folder is not None:
            cluster = ClusterFolder(self.folder)
            if cluster.nodes < nodes:
                raise InputError(f"the run needs {nodes} nodes, {self.folder} has {cluster.nodes}",
                                 remedy="make the cluster larger or set launch.nodes and launch.spares")
        else:
            shutil.rmtree(run.path / "cluster", ignore_errors=True)
            cluster = ClusterFolder.create(run.path / "cluster", nodes=nodes, cluster_id=run.folder.run_id)
        record = json.loads(run.folder.run_json.read_text())
        record["cluster"] = str(cluster.path)
        draft = run.path / ".run.json"
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(run.folder.run_json)
        return cluster


def prepare_corpus(config: RunConfig, tell: Callable[[str], None]) -> None:
    """Make the corpus if it is the default source and absent; a given path must exist.

    Raises:
        InputError: the corpus cannot be made or read; the data service's own line says why.
    """
    if (Path(config.data.path) / "meta.json").exists():
        return
    tell(f"preparing corpus {config.data.source} in {config.data.path}")
    command = [sys.executable, "-m", "headway.dataloader", "prepare", "--source", config.data.source,
               "--out", str(config.data.path), "--vocab-size", str(config.model.vocab_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InputError(lines[-1] if lines else f"corpus preparation failed with code {done.returncode}",
                         remedy="" if lines else "run `headway data prepare` by hand")
    for line in done.stdout.strip().splitlines()[-1:]:
        tell(line)


def _attach(cluster: ClusterFolder, node: int, run_dir: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    keys = cluster.keys
    while time.monotonic() < deadline:
        address = cluster.address(node)
        if address is None or not address.process.alive():
            time.sleep(0.02)
            continue
        with contextlib.suppress(DeadlineError), \
                Client(address.endpoint, keys=keys, server_key=keys.public) as client:
            client.call(AttachRun(run_dir=str(run_dir)), Attached, timeout_s=10.0)
            return
    raise HeadwayError(f"node {node} did not start within {START_LIMIT_S:.0f} s",
                       remedy=f"read {cluster.path / 'logs'}/n{node}-executor.log")


def _wait_for_driver(run: Run) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(DeadlineError):
            run.status(timeout_s=1.0)
            return
        time.sleep(0.05)
    raise HeadwayError(f"the driver of {run.name} did not start within {START_LIMIT_S:.0f} s",
                       remedy=f"read {run.folder.logs}/n0-driver.log")


def _arena_bytes(config: RunConfig) -> int:
    """Three slots of fp32 master and two moments for every rank's shard, all emulated nodes sharing this memory."""
    from headway.common.plan.model_shape import ModelShape

    m = config.model
    shape = ModelShape(m.layers, m.hidden, m.ffn_width, m.vocab_size, m.seq_len)
    return 3 * 3 * 4 * shape.parameters + (256 << 20)
