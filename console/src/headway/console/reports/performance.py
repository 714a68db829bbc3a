"""Where a run's time went, as tables and drawings: ``run.performance()`` of a notebook.

The figures are computed in ``analysis``; here they get labels and units.
"""

from __future__ import annotations

from functools import cached_property

import polars as pl
from headway.common.errors import InputError
from headway.common.output import counted
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.actions import FRAMES, label, step_actions
from headway.console.analysis.bubble import bubbles, schedule_of
from headway.console.analysis.by_action import action_times, heat_map
from headway.console.analysis.causes import lost_time, model_flops_share
from headway.console.analysis.episodes import Episodes
from headway.console.analysis.events import in_steps, load_events
from headway.console.analysis.overlap import communication
from headway.console.analysis.slowest import slow_steps, step_time_quantiles
from headway.console.analysis.time_ledger import ledger, pauses
from headway.console.display.charts import Bar, Drawing, bars_in_rows
from headway.console.display.formatting import count, digits, milliseconds, share
from headway.console.display.html import facts_html
from headway.console.display.table import Column, Shown
from headway.console.folder.records import RunRecords
from headway.trainer.config.memory import model_shape

CLOCK = (
    "Times are what each rank's process saw. Ranks that share cores make each other's actions "
    "longer; on a GPU an action is its launch, and waits hold the rest."
)
_OTHER, _MESSAGES, _WAITING = "optimizer, data, snapshot", "communication", "waiting"
_PICTURE = "Hover over a bar to see its action and duration. The norm counts as communication."
_GROUPS = {
    Kind.FORWARD.name: "forward",
    Kind.BACKWARD.name: "backward",
    Kind.BACKWARD_INPUT.name: "backward",
    Kind.BACKWARD_WEIGHT.name: "weight gradient",
    Kind.OPTIMIZER.name: _OTHER,
    Kind.DATA.name: _OTHER,
    Kind.SNAPSHOT.name: _OTHER,
}
_KINDS = ["forward", "backward", "weight gradient", _OTHER, _MESSAGES, _WAITING]


class Performance:
    """The records of a run as they are now; make a new one to see more of a live run.

    Args:
        first_step: steps before it are left out.
        last_step: the last step shown; None means to the end.

    Raises:
        InputError: none of these steps is recorded. CorruptError: a saved window is unreadable.
    """

    def __init__(
        self, run: RunRecords, *, first_step: int = 0, last_step: int | None = None
    ) -> None:
        self._run, self.config = run, run.config
        last = pl.lit(True) if last_step is None else pl.col("step") <= last_step
        self._chosen = (pl.col("step") >= first_step) & last
        self._grid = self.config.parallel.grid
        is_whole = first_step <= 0 and last_step is None
        chosen = in_steps(first_step, last_step) | pl.col("kind").is_in([Kind[n] for n in FRAMES])
        # the frames of all steps say what a usual one takes, and which were done again
        self._events = load_events(run.path, where=None if is_whole else chosen)
        if self.ledger.is_empty():
            raise InputError(
                f"run {run.name} has no records of completed steps here",
                remedy="wait for one, or choose other steps or another run (`headway runs`)",
            )

    # ---- frames -------------------------------------------------------------------------------
    @cached_property
    def actions_frame(self) -> pl.DataFrame:
        """Every action inside a step, as ``analysis.step_actions``."""
        return step_actions(self._events.filter(self._chosen), self._grid)

    @cached_property
    def ledger(self) -> pl.DataFrame:
        """Seconds of each rank and step by what they went into, as ``analysis.ledger``."""
        journal = self._run.records.events()
        last_s = max((event.monotonic_s for event in journal), default=0.0)
        recovered = [
            (one.begun_s - (one.detect_s or 0.0), one.ended_s or last_s)
            for one in Episodes(journal).all()
        ]
        return ledger(
            self._events,
            self._grid,
            recoveries=recovered,
            pauses=pauses(journal, last_s),
        ).filter(self._chosen)

    @cached_property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation over all recorded time, losses included; None without a peak."""
        peak, config = self._run.peak, self.config
        if peak is None or not peak.is_idle or config.model.architecture.own_block is not None:
            return None
        tokens = self._mean_batch(self.ledger) * config.model.seq_len
        return model_flops_share(
            self.ledger,
            flops_per_step=float(model_shape(config).flops_per_token * tokens),
            peak_flops=peak.of_run(config.train.dtype, config.parallel.world_size),
        )

    # ---- what a notebook shows ----------------------------------------------------------------
    def __repr__(self) -> str:
        return "\n".join(f"{key}: {value}" for key, value in self._facts())

    def _repr_html_(self) -> str:
        return facts_html(f"performance of run {self._run.name}", self._facts())

    def lost_time(self) -> Shown:
        """All ranks' time by cause, as shares of the total."""
        replayed = self._bubbles["bubble"][1]
        frame = lost_time(
            self.ledger, mfu=self.mfu, bubble=self._bubbles["bubble"][0], replayed=replayed
        )
        columns = [
            Column("cause", "cause"),
            Column("share", "share of all ranks' time", share, "bar"),
            Column("per_rank_s", "s per rank", digits),
            Column("meaning", "what it is"),
        ]
        whole = share(float(frame["share"].sum()))
        note = (
            f"The shares add up to {whole}. From the start of each rank's "
            "first recorded step to the end of its last; what came before and after is left out."
        )
        return Shown(frame, "Where the time went", columns, note)

    def bubble(self) -> Shown:
        """The pipeline bubble in theory, with the stages' own times, and as measured."""
        busy = pl.col("bubble") / (1 + pl.col("bubble"))
        frame = self._bubbles.with_columns(busy.alias("of_all"))
        columns = [
            Column("case", "bubble"),
            Column("bubble", "idle over compute time", share, "bar"),
            Column("of_all", "idle share of the pipeline's time", share),
            Column("source", "source"),
        ]
        parallel, number = self.config.parallel, self.config.num_micro_batches
        title = f"Pipeline bubble: p = {parallel.pp}, m = {number}, v = {parallel.num_chunks}"
        note = (
            "From the first to the last computation of a pipeline's step. The second row above the "
            "first: unequal stages. The third above the second: messages and stalls."
        )
        return Shown(frame, title, columns, note)

    def communication(self) -> Shown:
        """How much of each kind of communication compute hides."""
        columns = [
            Column("communication", "communication"),
            Column("num_per_step", "per rank and step", digits),
            Column("mib_per_step", "MiB per rank and step", digits),
            Column("open_s", "under way at most, ms per step", milliseconds),
            Column("exposed_s", "issued or waited for, ms per step", milliseconds, "bar"),
            Column("hidden", "hidden at most", share),
        ]
        note = (
            "Under way from when both sides had begun until the result was taken: its arrival is "
            "not recorded. Waiting for a late peer does not count as communication. Collectives "
            "of tensor parallelism are inside of forward and backward."
        )
        return Shown(communication(self.actions_frame), "Communication", columns, note)

    def actions(self) -> Shown:
        """Time of each action by pipeline stage."""
        columns = [
            Column("pp_rank", "stage", count),
            Column("label", "action"),
            Column("num_per_step", "times per step", digits),
            Column("p50_s", "ms per step, median", milliseconds, "bar"),
            Column("p99_s", "ms per step, p99", milliseconds),
            Column("share", "share of the stage's recorded time", share),
        ]
        return Shown(action_times(self.actions_frame), "Actions by stage", columns, CLOCK)

    def heat_map(self) -> Shown:
        """Time of each action on each rank."""
        frame = heat_map(self.actions_frame)
        where = [self._grid.coordinates(rank).pp for rank in frame["rank"]]
        frame = frame.insert_column(1, pl.Series("stage", where, pl.Int64))
        columns = [Column("rank", "rank", count), Column("stage", "stage", count)]
        columns += [Column(name, name, milliseconds, "shade") for name in frame.columns[2:]]
        return Shown(frame, "Rank by action, ms per step (median)", columns, CLOCK)

    def step_times(self) -> Shown:
        """Median and high quantiles of the wall time of a step."""
        frame = step_time_quantiles(self.ledger)
        columns = [
            Column("num_steps", "steps", count),
            *(
                Column(f"{name}_s", f"{name}, ms", milliseconds)
                for name in ("p50", "p90", "p99", "highest")
            ),
        ]
        note = "From the end of the step before, so evaluations, pauses and recoveries count."
        return Shown(frame, "Time of a step", columns, note)

    def slow_steps(self, number: int = 8) -> Shown:
        """The slowest steps with what they spent more on than a usual one."""
        columns = [
            Column("step", "step", count),
            Column("total_s", "ms", milliseconds, "bar"),
            Column("beyond_s", "beyond the median, ms", milliseconds),
            Column("cause", "most of it"),
            Column("rank", "on rank", count),
            Column("cause_s", "there, ms", milliseconds),
        ]
        frame = slow_steps(self.ledger, number)
        return Shown(
            frame, "Slowest steps", columns, "The rank is blank where the cause affects all ranks."
        )

    def picture(self, step: int | None = None) -> Drawing:
        """What every rank did in one step, by default in one of median length.

        Raises:
            InputError: ``step`` is not recorded.
        """
        chosen = self._usual_step() if step is None else step
        shown = self.actions_frame.filter(pl.col("step") == chosen)
        shown = shown.filter(pl.col("generation") == pl.col("generation").max())
        if shown.is_empty():
            raise InputError(f"step {chosen} is not recorded", remedy="see `slow_steps()`")
        origin = int(shown["start_ns"].min() or 0)  # type: ignore[arg-type]
        ranks = sorted(set(shown["rank"]))
        bars = [
            Bar(
                ranks.index(row["rank"]),
                (row["start_ns"] - origin) * 1e-6,
                (row["end_ns"] - origin) * 1e-6,
                _WAITING if row["waiting"] else _GROUPS.get(row["action"], _MESSAGES),
                f"{row['label']} {row['own_ns'] * 1e-6:.2f} ms",
            )
            for row in shown.with_columns(label()).iter_rows(named=True)
        ]
        names, title = [f"rank {rank}" for rank in ranks], f"Step {chosen} of every rank"
        return bars_in_rows(title, names, bars, kinds=_KINDS, x="ms", note=_PICTURE)

    # ---- inside -------------------------------------------------------------------------------
    @cached_property
    def _bubbles(self) -> pl.DataFrame:
        return bubbles(self.actions_frame, schedule_of(self.config))

    def _mean_batch(self, rows: pl.DataFrame) -> float:
        """Sequences per step, over the steps of ``rows`` that count."""
        steps = rows.filter("is_kept")["step"].to_list()
        sizes = self.config.batch_ramp.sizes(max(steps, default=0) + 1)
        total: int = sum(sizes[step] for step in steps)
        return total / max(1, len(steps))

    def _usual_step(self) -> int:
        totals = self.ledger.filter("is_kept").group_by("step").agg(pl.col("total").mean())
        ordered = totals.sort("total", "step")["step"]
        return int(ordered[len(ordered) // 2])

    def _facts(self) -> list[tuple[str, str]]:
        parallel, train = self.config.parallel, self.config.train
        rows = self.ledger
        steps = rows.filter("is_kept").select("generation", "step").n_unique()
        whole_s = float(rows["total"].sum()) / rows["rank"].n_unique()
        tokens = steps * self._mean_batch(rows) * self.config.model.seq_len
        peak = self._run.peak
        times = step_time_quantiles(rows).row(0, named=True)
        p50, p99 = milliseconds(times["p50_s"]), milliseconds(times["p99_s"])
        grid = f"pp {parallel.pp} x dp {parallel.dp} x tp {parallel.tp}"
        chunks = f"{counted(parallel.num_chunks, 'chunk')} per rank"
        of = f"{steps:,} of {self._run.completed_steps:,} completed steps"
        facts = [
            ("grid", f"{parallel.world_size} ranks: {grid}, {chunks}"),
            ("schedule", f"{parallel.schedule}, {self.config.num_micro_batches} micro-batches"),
            ("recorded", f"{of}, {digits(whole_s)} s"),
            ("step time", f"median {p50} ms, p99 {p99} ms"),
            ("rate", f"{tokens / whole_s:,.0f} tokens/s over all of that time"),
        ]
        if self.config.model.architecture.own_block is not None:
            return [*facts, ("MFU", "unknown: the FLOPs of your own layers are not counted")]
        if self.mfu is None or peak is None:
            return [*facts, ("MFU", "unknown: the peak was not measured on an idle machine")]
        flops = peak.of_run(train.dtype, parallel.world_size)
        text = f"{share(self.mfu)} of {flops / 1e9:,.0f} GFLOP/s ({train.dtype}, measured), over "
        facts.append(("MFU", text + "all of that time"))
        model = model_shape(self.config)
        if model.flops_per_token != model.full_flops_per_token:
            fraction = model.full_flops_per_token / model.flops_per_token
            facts.append(("MFU as if without windows", share(self.mfu * fraction)))
        return facts
