"""What a run reads, as tables and drawings: ``run.data()`` of a notebook, or without a run.

The figures are computed in ``analysis``; here they get labels and units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import polars as pl
from headway.common.config import load
from headway.common.errors import InputError
from headway.console.analysis import corpus, sample_order
from headway.console.analysis.actions import step_actions
from headway.console.analysis.events import load_events
from headway.console.analysis.metrics import current, load_evaluations, load_metrics
from headway.console.analysis.time_ledger import ledger
from headway.console.display.charts import Drawing, curves
from headway.console.display.formatting import count, digits, milliseconds, share
from headway.console.display.html import facts_html
from headway.console.display.sample_view import SampleView, view_of
from headway.console.display.table import Column, Shown
from headway.console.folder.outputs import newest_checkpoint
from headway.console.folder.records import RunRecords
from headway.console.machine.preflight import own_corpus_folder, prepare_corpus
from headway.dataloader import Dataset, SampleReader
from headway.trainer.config import RunConfig

MOST_SOURCES = 15
_SPLITS = (
    "A hash of its name decides to which split a document belongs. An end-of-text token follows "
    "each, and is counted."
)


class TrainingData:
    """The corpus that a configuration names, and what a run of it reads, or has read.

    Raises:
        InputError: the corpus is not on this machine. CorruptError: it is damaged.
    """

    def __init__(self, config: RunConfig, run: RunRecords | None = None) -> None:
        self.config, self._run = config, run
        self.dataset = Dataset(config.data.path)

    @classmethod
    def of(
        cls,
        file: str | Path,
        overrides: Sequence[str] = (),
        *,
        report: Callable[[str], None] = print,
    ) -> TrainingData:
        """What a run of this TOML file would read; the corpus is prepared if it is absent.

        Raises:
            InputError: the configuration or the corpus is wrong.
        """
        config = own_corpus_folder(load(RunConfig, [Path(file)], overrides))
        prepare_corpus(config, report)
        return cls(config)

    # ---- the corpus ---------------------------------------------------------------------------
    def __repr__(self) -> str:
        return "\n".join(f"{key}: {value}" for key, value in self._facts())

    def _repr_html_(self) -> str:
        return facts_html("what the model reads", self._facts())

    def splits(self) -> Shown:
        """Documents and tokens of both splits."""
        columns = [
            Column("split", "split"),
            Column("documents", "documents", count),
            Column("tokens", "tokens", count),
            Column("share", "share of all tokens", share, "bar"),
            Column("bytes_per_token", "bytes of text per token", digits),
        ]
        return Shown(corpus.splits(self.dataset), "Splits", columns, _SPLITS)

    def sources(self, split: str = "train") -> Shown:
        """The parts of the source by their share of the tokens."""
        name = self.dataset.meta.source if self.dataset.meta is not None else "unknown"
        keys, lengths = self.dataset.keys(split), corpus.document_lengths(self.dataset, split)
        frame = corpus.sources(keys, lengths, name)
        columns = [
            Column("part", "part of the source"),
            Column("documents", "documents", count),
            Column("tokens", "tokens", count),
            Column("share", "share of tokens", share, "bar"),
        ]
        rest = frame[MOST_SOURCES:]
        note = ""
        if len(rest):
            part = share(float(rest["share"].sum()))
            note = f"{len(rest)} more parts have {part} of the tokens. "
        if keys is None:
            note += (
                "Their names were not kept: `headway data prepare` with the same source adds them."
            )
        return Shown(frame[:MOST_SOURCES], f"Sources of {split}: {name}", columns, note.strip())

    def document_lengths(self, split: str = "train") -> Shown:
        """How long the documents are."""
        lengths = corpus.document_lengths(self.dataset, split)
        span = pl.format("{} to {}", "from_tokens", pl.col("to_tokens") - 1)
        frame = corpus.length_histogram(lengths).with_columns(span.alias("span"))
        columns = [
            Column("span", "tokens per document"),
            Column("documents", "documents", count),
            Column("share", "share of documents", share, "bar"),
            Column("tokens_share", "share of tokens", share, "bar"),
        ]
        quantiles = [pl.Series(lengths).quantile(q, "linear") for q in (0.1, 0.5, 0.9)]
        p10, p50, p90 = (count(value) for value in quantiles)
        note = (
            f"10 % have at most {p10} tokens, half at most {p50}, 90 % at most {p90}. They are "
            f"joined and split every {self.config.model.seq_len} tokens."
        )
        return Shown(frame, f"Length of {split} documents", columns, note)

    def frequent_tokens(self, number: int = 15) -> Shown:
        """The most frequent tokens of the training split."""
        counts, is_whole = self._counts
        tokenizer = None if self.dataset.meta is None else self.dataset.tokenizer
        columns = [
            Column("place", "place", count),
            Column("id", "id", count),
            Column("text", "token"),
            Column("count", "occurrences", count),
            Column("share", "share", share, "bar"),
            Column("cumulative", "share of these and those above", share),
        ]
        used = int((counts > 0).sum())
        note = f"{used:,} of {len(counts):,} tokens occur"
        note += "." if is_whole else f" in the {counts.sum():,} tokens that were counted."
        frame = corpus.frequent_tokens(counts, tokenizer, number)
        return Shown(frame, "Most frequent tokens of train", columns, note)

    # ---- what is read when --------------------------------------------------------------------
    def sample(
        self, rank: int = 0, step: int = 0, number: int = 0, *, with_end: bool = False
    ) -> SampleView:
        """The text of one sample that a rank reads in a step, with the documents it consists of.

        Args:
            number: which of the rank's samples of that step, from 0.
            with_end: the rank's next sample from there on in which a document ends.

        Raises:
            InputError: ``step`` or ``number`` is out of range, or no document ends in an epoch.
            ConfigError: ``rank`` is out of range.
        """
        samples = sample_order.samples_of(self.config, rank=rank, step=step)
        if not 0 <= number < len(samples):
            raise InputError(
                f"rank {rank} reads {len(samples)} samples per step, not one of number {number}",
                remedy=f"use 0 to {len(samples) - 1}",
            )
        if with_end:
            step, number = self._next_end(rank, step, number)
            samples = sample_order.samples_of(self.config, rank=rank, step=step)
        place = self.config.parallel.grid.coordinates(rank)
        epoch, position = divmod(samples[number], self._reader.samples_per_epoch)
        is_outer = place.pp in self.config.parallel.grid.stage_map.ends
        reads = is_outer or self.config.model.every_stage_reads
        title = (
            f"Step {step}, rank {rank} (replica {place.dp}, stage {place.pp}): sample "
            f"{samples[number]:,}, number {position:,} of epoch {epoch}"
        )
        note = "" if reads else "Stages between the first and the last read no data themselves."
        sample, keys = self._reader.read(samples[number]), self.dataset.keys("train")
        return view_of(sample, self.dataset, keys, title, note)

    def _next_end(self, rank: int, step: int, number: int) -> tuple[int, int]:
        """Step and number of the next sample with a document's end, of an epoch at most."""
        steps = self._reader.samples_per_epoch // self.config.batch_ramp.start + 1
        for later in range(step, step + steps):
            samples = sample_order.samples_of(self.config, rank=rank, step=later)
            for place in range(number if later == step else 0, len(samples)):
                if any(piece.is_end for piece in self._reader.read(samples[place])):
                    return later, place
        raise InputError(
            f"no document ends in what rank {rank} reads in {steps} steps from step {step} on",
            remedy="omit with_end",
        )

    def same_order(self, step: int = 0) -> Shown:
        """The global batch of a step: continued, resumed, and on other grids."""
        columns = [
            Column("read", "read"),
            Column("replicas", "replicas", count),
            Column("first_samples", "first sample of each replica"),
            Column("tokens", "tokens", count),
            Column("digest", "SHA-256 of the tokens"),
            Column("is_same", "same batch", _yes),
        ]
        note = "Read just now by the client that training uses; digests are cut to 16 characters."
        frame = sample_order.same_order(self.config, step)
        return Shown(frame, f"Global batch of step {step}", columns, note)

    def position(self) -> Shown:
        """How far through the corpus the run is, and gets."""
        consumed = self.config.batch_ramp.consumed
        epoch = self._reader.samples_per_epoch
        points = [("at its end", self.config.train.steps)]
        if self._run is not None:
            points.insert(0, ("now", self._run.completed_steps))
            if (checkpoint := newest_checkpoint(self._run)) is not None:
                points.insert(0, ("at its newest checkpoint", checkpoint))
        rows = [
            {
                "at": name,
                "steps": steps,
                "samples": samples,
                "tokens": samples * self.config.model.seq_len,
                "epochs": samples / epoch,
                "unread": max(0.0, 1.0 - samples / epoch),
                "repeated": max(0, samples - epoch),
            }
            for name, steps in points
            for samples in (consumed(steps),)
        ]
        columns = [
            Column("at", "the run"),
            Column("steps", "steps", count),
            Column("samples", "samples read", count),
            Column("tokens", "tokens read", count),
            Column("epochs", "epochs", digits),
            Column("unread", "of the corpus not read yet", share),
            Column("repeated", "samples that repeat text", count),
        ]
        note = (
            f"An epoch has {epoch:,} samples of {self.config.model.seq_len:,} tokens, "
            f"{epoch / self.config.train.global_batch_size:,.1f} steps of a whole global batch; "
            "the next one has another order."
        )
        return Shown(pl.DataFrame(rows), "Position in the corpus", columns, note)

    # ---- the run ------------------------------------------------------------------------------
    def baselines(self) -> Shown:
        """The loss beside what needs no model: uniform tokens, and the tokens' frequencies."""
        rows = [
            ("all tokens equally likely", math.log(self.config.model.vocab_size)),
            *self._unigram,
        ]
        if self._run is not None:
            found = load_evaluations(self._run).sort("generation", "step").select("step", "loss")
            rows += [
                (f"this run, validation after {step} steps", loss) for step, loss in found.rows()
            ]
        per_token = corpus.splits(self.dataset)["bytes_per_token"][-1]
        frame = pl.DataFrame(
            [
                {
                    "what": what,
                    "nats": nats,
                    "perplexity": math.exp(nats) if nats < 700 else None,
                    "bits": nats / math.log(2) / per_token if per_token else None,
                }
                for what, nats in rows
                if nats is not None and math.isfinite(nats)
            ]
        )
        columns = [
            Column("what", "prediction"),
            Column("nats", "nats per token", digits, "bar"),
            Column("perplexity", "perplexity", digits),
            Column("bits", "bits per byte of text", digits),
        ]
        note = "Lower is better; bits per byte compare runs with different tokenizers."
        return Shown(frame, "Loss and baselines", columns, note)

    def loss_curve(self) -> Drawing:
        """Training and validation loss over the steps, with the baselines.

        Raises:
            InputError: there is no run, or it has no step yet.
        """
        run = self._of_run()
        steps = current(load_metrics(run)).drop_nulls("loss").select("step", "loss").rows()
        found = load_evaluations(run).sort("generation").unique("step", keep="last").sort("step")
        if not steps:
            raise InputError(f"run {run.name} has no step yet", remedy="wait for its first step")
        levels = {name: nats for name, nats in self._unigram if nats is not None}
        return curves(
            f"Loss of run {run.name}",
            {
                "training": steps,
                "validation": found.drop_nulls("loss").select("step", "loss").rows(),
            },
            x="step",
            y="nats per token",
            levels=levels,
        )

    def waits(self) -> Shown:
        """How long each rank took to get the micro-batches of a step.

        Raises:
            InputError: there is no run, or it has no records.
        """
        run = self._of_run()
        events, grid = load_events(run.path), self.config.parallel.grid
        frame = sample_order.data_waits(step_actions(events, grid), ledger(events, grid))
        columns = [
            Column("rank", "rank", count),
            Column("num_steps", "steps", count),
            Column("p50_s", "median, ms", milliseconds, "bar"),
            Column("p99_s", "p99, ms", milliseconds),
            Column("highest_s", "longest, ms", milliseconds),
            Column("share", "share of the rank's time", share),
        ]
        note = (
            "Waiting for the step's micro-batches and copying them. Stages between the first and "
            "the last read none."
        )
        return Shown(frame, f"Data of run {run.name}: time per step", columns, note)

    # ---- inside -------------------------------------------------------------------------------
    @cached_property
    def _reader(self) -> SampleReader:
        return SampleReader(sample_order.run_stream(self.config))

    @cached_property
    def _counts(self) -> tuple[corpus.Counts, bool]:
        return corpus.token_counts(self.dataset)

    @property
    def _unigram(self) -> list[tuple[str, float | None]]:
        meta = self.dataset.meta
        return [] if meta is None else [("frequencies of the training tokens", meta.unigram_nats)]

    def _of_run(self) -> RunRecords:
        if self._run is None:
            raise InputError("this data has no run", remedy="use `run.data()`")
        return self._run

    def _facts(self) -> list[tuple[str, str]]:
        config, meta = self.config, self.dataset.meta
        train, vocabulary = config.train, self.dataset.vocab_size or config.model.vocab_size
        batch = f"{train.global_batch_size} sequences, micro-batches of {train.micro_batch_size}"
        if train.batch_ramp:
            start, increment, samples = train.batch_ramp
            batch = f"{start} growing by {increment} over {samples:,} samples to {batch}"
        order = f"seed {config.data.seed}, {self._reader.samples_per_epoch:,} samples per epoch"
        facts = [
            ("corpus", str(self.dataset.path)),
            ("source", meta.source if meta is not None else "prepared by another program"),
            ("vocabulary", f"{vocabulary:,} tokens"),
            ("sequence", f"{config.model.seq_len:,} tokens"),
            ("global batch", f"{batch}, {config.parallel.dp} replicas"),
            ("order", order),
            ("fingerprint", self._reader.fingerprint),
        ]
        return facts if self._run is None else [("run", self._run.name), *facts]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
