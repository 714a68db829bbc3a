"""Launch runs and find them again: what a notebook and ``headway run`` start from."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.common.config import load, to_toml
from headway.common.errors import InputError
from headway.common.node.files import replace_file, replace_json
from headway.common.node.janitor import end_run, sweep
from headway.common.node.run_dir import shm_root, sock_root
from headway.console.launch import check_resumable, claimed, measure_peak, start
from headway.console.preflight import check_machine, check_torch, prepare_corpus
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.trainer.client import reopen, settled
from headway.trainer.config import RunConfig


def _say_nothing(line: str) -> None:
    del line


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
        return [
            Run(path)
            for path in sorted(found, key=lambda path: (path / "run.json").stat().st_mtime)
        ]

    def run(self, name: str | None = None) -> Run:
        """A run by name; without one the newest.

        Raises:
            InputError: there is none.
        """
        if name is not None:
            return Run(self.runs_dir / name)
        runs = self.runs()
        if not runs:
            raise InputError(
                f"no run in {self.runs_dir}",
                remedy="start one with `headway run examples/tiny.toml`",
            )
        return runs[-1]

    def launch(
        self,
        config: str | Path | RunConfig,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        base: str | None = None,
        measure: bool = False,
        tell: Callable[[str], None] = _say_nothing,
    ) -> Run:
        """Start a run, or resume the unfinished one of the same name; returns as soon as its driver answers.

        Args:
            config: a TOML file or a ready configuration.
            overrides: ``table.key=value``.
            name: an explicit name must be free, or that of an unfinished run.
            base: where no name is given: the run's name, numbered when taken; else after the file.
            measure: find out this machine's peak first, if it never was measured.
            tell: called with one line per stage of the start.

        Raises:
            InputError: anything wrong that can be found before step 0. A new run then leaves no folder behind.
        """
        resolved = (
            config if isinstance(config, RunConfig) else load(RunConfig, [Path(config)], overrides)
        )
        check_torch()
        resolved, settled_line = settled(resolved, ranks=resolved.parallel.world_size)
        tell(settled_line)
        base = base or ("run" if isinstance(config, RunConfig) else Path(config).stem)
        check_machine(resolved, self.runs_dir)
        prepare_corpus(resolved, tell)
        for line in sweep(sock_root(), shm_root()):
            tell(line)
        with claimed(self._choose(base, name)) as (run, resumed):
            if resumed:
                check_resumable(run, resolved)
            if measure:
                measure_peak(resolved.train.device, tell)
            tell(f"{'resuming' if resumed else 'starting'} run {run.name}")
            end_run(run.folder.run_id)
            if run.outcome:
                reopen(run.folder.database)
            replace_file(run.folder.config, to_toml(resolved))
            cluster = self._cluster_for(run, resolved.launch.nodes + resolved.launch.spares)
            start(run, cluster, resolved.launch, tell)
        return run

    # ---- before step 0 ------------------------------------------------------------------------
    def _choose(self, base: str, name: str | None) -> Path:
        """The run's folder: a free one, or that of an unfinished run, which may be live."""
        if name is not None:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                raise InputError(
                    f"run name {name!r} cannot be a folder's name",
                    remedy="use letters, digits, '-', '_', '.'",
                )
            return self.runs_dir / name
        mine = [run for run in self.runs() if re.fullmatch(rf"{re.escape(base)}(-\d+)?", run.name)]
        if mine and mine[-1].outcome != "finished":
            return mine[-1].path
        numbers = [int(run.name.rpartition("-")[2]) for run in mine if run.name != base]
        return self.runs_dir / (base if not mine else f"{base}-{max(numbers, default=1) + 1}")

    # ---- nodes --------------------------------------------------------------------------------
    def _cluster_for(self, run: Run, nodes: int) -> ClusterFolder:
        if self.folder is not None:
            cluster = ClusterFolder(self.folder)
            if cluster.nodes < nodes:
                raise InputError(
                    f"the run needs {nodes} nodes, {self.folder} has {cluster.nodes}",
                    remedy="make the cluster larger or set launch.nodes and launch.spares",
                )
        else:
            shutil.rmtree(run.path / "cluster", ignore_errors=True)
            cluster = ClusterFolder.create(
                run.path / "cluster", nodes=nodes, cluster_id=run.folder.run_id
            )
        record = json.loads(run.folder.run_json.read_text())
        record["cluster"] = str(cluster.path)
        replace_json(run.folder.run_json, record)
        return cluster
