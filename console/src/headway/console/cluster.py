"""Launch runs and find them again: what a notebook and ``headway run`` start from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headway.common.config import load
from headway.common.errors import InputError
from headway.console.display.html import table_html
from headway.console.folder import run_list
from headway.console.folder.config_origins import given
from headway.console.gateway.access import Access
from headway.console.gateway.remote_run import attach, open_run
from headway.console.hints import run_folders
from headway.console.lifecycle.launch import launch, run_name
from headway.console.run import Run
from headway.trainer.config import RunConfig

if TYPE_CHECKING:
    from headway.console.display.charts import Drawing
    from headway.console.live.summary import Summary
    from headway.console.widgets import RunConsole


class Cluster:
    """The runs below one folder, and the nodes to start new ones on.

    Without ``folder`` each run gets nodes of its own on this machine, which end with it; with the
    folder of a cluster that ``make up`` started, runs are attached to its executors. With
    ``engine="slurm"`` and no folder each run gets the machines of a job of its own, with
    ``engine="kubernetes"`` the pods that ``kubernetes.toml`` in the working folder describes.
    """

    def __init__(
        self,
        runs: str | Path = "runs",
        *,
        folder: str | Path | None = None,
        engine: Literal["local", "slurm", "kubernetes"] = "local",
    ) -> None:
        self.runs_dir = Path(runs).resolve()
        self.folder = Path(folder).resolve() if folder is not None else None
        self.engine = engine

    @classmethod
    def connect(cls, access: str | Path | Access, runs: str | Path = "runs") -> Cluster:
        """The runs of another machine, by way of its gateway.

        Args:
            access: the key file that ``headway gateway`` wrote, or what it holds: the gateway's
                address and the keys.
            runs: folder for what is copied of them.

        Raises:
            InputError: the file cannot be read, or a folder of a run's name is a run of this
                machine.
            DeadlineError: the gateway does not answer.
        """
        found = access if isinstance(access, Access) else Access.load(Path(access))
        attach(found, Path(runs))
        return cls(runs)

    def __repr__(self) -> str:
        return f"Cluster({str(self.runs_dir)!r}, {len(self.runs())} runs)"

    def _repr_html_(self) -> str:
        return table_html(run_list.HEADER, run_list.rows(run_list.entries(self.runs())))

    def runs(self) -> list[Run]:
        """Every run, the oldest first."""
        return [open_run(folder) for folder in run_folders(self.runs_dir)]

    def run(self, name: str | None = None) -> Run:
        """A run by name; without one the newest that was started.

        Raises:
            InputError: there is none.
        """
        runs = self.runs()
        if name is not None:
            if (self.runs_dir / name / "run.json").exists():
                return open_run(self.runs_dir / name)
            raise InputError(
                f"{self.runs_dir} holds no run {name!r}", remedy=_suggestion(name, runs)
            )
        if not runs:
            raise InputError(
                f"no run in {self.runs_dir}",
                remedy="start one with `headway run examples/tiny.toml`",
            )
        begun = (run for run in reversed(runs) if run.has_begun or run.starter is not None)
        return next(begun, runs[-1])

    def launch(
        self,
        config: str | Path | RunConfig,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        base: str | None = None,
        measure: bool = False,
        report: Callable[[str], None] = lambda _line: None,
    ) -> Run:
        """Start a run, or resume the unfinished one of that name; returns when its driver answers.

        Args:
            config: a TOML file or a ready configuration.
            overrides: ``table.key=value``.
            name: an explicit name must be free, or that of an unfinished run.
            base: where no name is given: the run's name, numbered when taken; else after the file.
            measure: find out this machine's peak first, if it never was measured.
            report: called with one line per stage of the start.

        Raises:
            InputError: anything wrong that can be found before step 0. A new run then leaves no
                folder behind.
        """
        if isinstance(config, RunConfig):
            resolved, default, origins = config, "run", {}
        else:
            file = Path(config)
            resolved, default = load(RunConfig, [file], overrides), run_name(file.stem)
            origins = given(file, overrides)
        return launch(
            self.runs_dir,
            resolved,
            name=name,
            base=base or default,
            folder=self.folder,
            engine=self.engine,
            measure=measure,
            origins=origins,
            report=report,
        )

    # ---- in a notebook ------------------------------------------------------------------------
    def console(self, run: Run) -> RunConsole:
        """The live console of a run: charts, what every rank does, and buttons that steer it."""
        from headway.console.widgets import RunConsole

        return RunConsole(run)

    def summary(self, run: Run, *, write_trace: bool = False) -> Summary:
        """What a run, live or ended, has to show; ``write_trace`` also writes its trace."""
        from headway.console.live.summary import summarise

        return summarise(run, write_trace=write_trace)

    def losses(self, *names: str) -> Drawing:
        """The training losses of runs on the steps they have in common; of all runs by default.

        Raises:
            InputError: no run has such a name.
        """
        from headway.console.reports.losses import losses

        return losses([self.run(name) for name in names] or self.runs())


def _suggestion(name: str, runs: Sequence[Run]) -> str:
    """What may have been meant by the name of a run that is not there."""
    if not runs:
        return "start one with `headway run examples/tiny.toml`"
    close = difflib.get_close_matches(name, [run.name for run in runs], n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"see `headway runs`; the newest is {runs[-1].name}"
