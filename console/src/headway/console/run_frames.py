"""A run as data: what it measured, did and wrote, as polars frames; nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.common.config import diff
from headway.console.display.html import facts_html
from headway.console.folder.records import RunRecords

if TYPE_CHECKING:
    import polars as pl
    from headway.console.reports.diagnosis import RunDiagnosis
    from headway.console.reports.performance import Performance
    from headway.console.reports.training_data import TrainingData


class RunFrames(RunRecords):
    """Every method reads anew, so a second call on a live run shows more.

    polars is imported by the first call: commands that only steer need none of it.
    """

    def metrics(self, *, repeated: bool = False) -> pl.DataFrame:
        """One row per completed step: loss (nats per token), grad_norm, lr, tokens, duration_s...

        A step that a recovery repeated counts as its newest generation did it; with ``repeated``
        every attempt has a row. Columns as ``analysis.metrics.METRICS``.
        """
        from headway.console.analysis.metrics import current, load_metrics

        rows = load_metrics(self)
        return rows if repeated else current(rows)

    def evaluations(self) -> pl.DataFrame:
        """One row per validation loss (nats per token), after ``step`` completed steps."""
        from headway.console.analysis.metrics import load_evaluations

        return load_evaluations(self)

    def events(self, *, first_step: int = 0, last_step: int | None = None) -> pl.DataFrame:
        """Flight records: each action of each rank, columns as ``analysis.events.SCHEMA``.

        Those of all recorded steps by default; ``first_step`` and ``last_step`` are included.

        Raises:
            CorruptError: a saved window is unreadable.
        """
        from headway.console.analysis.events import in_steps, load_events

        is_whole = first_step <= 0 and last_step is None
        # those of no step have number -1
        where = None if is_whole else in_steps(first_step if first_step > 0 else -1, last_step)
        return load_events(self.path, where=where)

    def journal(self) -> pl.DataFrame:
        """The driver's journal in order: what happened and what was decided."""
        from headway.console.analysis.episodes import load_journal

        return load_journal(self)

    def recoveries(self) -> pl.DataFrame:
        """One row per recovery: its cause, how long each part took, ``repeated`` steps.

        ``repeated`` counts the completed steps that were done again; times are in seconds.
        """
        import polars as pl
        from headway.console.analysis.episodes import recoveries
        from headway.console.analysis.events import load_events

        rows = recoveries(self.records.events(), load_events(self.path))
        restarts = rows.select("generation", "step").iter_rows()
        repeated = [self.records.repeated(*restart) for restart in restarts]
        return rows.with_columns(pl.Series("repeated", repeated, dtype=pl.Int64))

    def logs(
        self,
        *,
        rank: int | None = None,
        since: float | str | None = None,
        name: str = "",
        level: str = "debug",
    ) -> pl.DataFrame:
        """Log lines of all processes in order of time: timestamp, level, rank, file, event, fields.

        Args:
            rank: lines of this rank only.
            since: the newest so many seconds, or text such as ``"90s"``, ``"5m"``, ``"2h"``.
            name: part of the file's name: driver, n0, n1-zygote...
            level: the lowest level: debug, info, warning, error or critical.

        Raises:
            InputError: ``level`` or ``since`` is unknown, or no file has ``name`` in its name.
        """
        import polars as pl
        from headway.console.folder.logs import COLUMNS, LogReader, as_row

        reader = LogReader(self.log_folders, name=name, rank=rank, level=level, since=since)
        schema = {column: pl.Int64 if column == "rank" else pl.String for column in COLUMNS}
        return pl.DataFrame([as_row(line) for line in reader.read()], schema=schema, orient="row")

    @property
    def log_folders(self) -> list[Path]:
        """Where its processes write their logs."""
        return [self.folder.logs, self.cluster_folder / "logs"]

    def checkpoints(self) -> pl.DataFrame:
        """Complete checkpoints, the oldest first: step, generation, total_bytes, path."""
        import polars as pl
        from headway.console.folder.outputs import checkpoints

        schema = {"step": pl.Int64, "generation": pl.Int64, "total_bytes": pl.Int64}
        return pl.DataFrame(checkpoints(self), schema={**schema, "path": pl.String})

    def samples(self) -> pl.DataFrame:
        """Texts that the model has written, the oldest first: step, prompt, text, generation.

        The last one of a finished run was written at its end.
        """
        import polars as pl
        from headway.console.folder.samples import samples

        schema = {"step": pl.Int64, "prompt": pl.String, "text": pl.String, "generation": pl.Int64}
        return pl.DataFrame(samples(self), schema=schema)

    def trace(self, path: str | Path, *, steps: tuple[int, int | None] = (0, None)) -> Path:
        """Write a trace of all ranks for https://ui.perfetto.dev; returns ``path``.

        Args:
            path: ``.json`` and ``.json.gz`` become Chrome JSON, other names Perfetto's protobuf.
            steps: the first and the last step shown; None means to the end.

        Raises:
            InputError: there is nothing to show, or ``path`` cannot be written.
        """
        from headway.console.trace.export import write_trace

        write_trace(self, Path(path), steps=steps)
        return Path(path)

    def config_diff(self, other: RunRecords) -> pl.DataFrame:
        """The settings in which two runs differ: key, this, other; null where one lacks the key."""
        import polars as pl

        changed = diff(self.config, other.config)
        rows = [(key, _text(mine), _text(theirs)) for key, (mine, theirs) in changed.items()]
        schema = dict.fromkeys(("key", "this", "other"), pl.String)
        return pl.DataFrame(rows, schema=schema, orient="row")

    def performance(self, *, first_step: int = 0, last_step: int | None = None) -> Performance:
        """Where its time went, as tables and drawings; of some steps, both ends included.

        Raises:
            InputError: none of these steps is recorded.
        """
        from headway.console.reports.performance import Performance

        return Performance(self, first_step=first_step, last_step=last_step)

    def diagnosis(self) -> RunDiagnosis:
        """Diagnose who holds it up or is slow, in words and as pictures."""
        from headway.console.reports.diagnosis import RunDiagnosis

        return RunDiagnosis(self)

    def data(self) -> TrainingData:
        """What it reads, as tables and drawings.

        Raises:
            InputError: its corpus is not on this machine.
        """
        from headway.console.reports.training_data import TrainingData

        return TrainingData(self.config, run=self)

    # ---- in a notebook ------------------------------------------------------------------------
    def _repr_html_(self) -> str:
        return facts_html(f"run {self.name}", self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        from headway.console.folder.outputs import newest_checkpoint

        steps = f"{self.completed_steps}/{self.total_steps}"
        facts = [("state", self.state), ("step", steps)]
        if (origin := self.forked_from) is not None:
            facts.append(("forked from", f"{origin['run']} at step {origin['step']}"))
        if newest := self.records.course(1):
            loss = newest[0].loss
            facts.append(("loss", "not finite" if loss is None else f"{loss:.4f}"))
        if (checkpoint := newest_checkpoint(self)) is not None:
            facts.append(("checkpoint", f"step {checkpoint}"))
        facts.append(("folder", str(self.path)))
        if command := self.resume_command(self.state):
            facts.append(("resume", command))
        return facts


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
