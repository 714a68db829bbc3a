"""One training step: the lowered schedule with everything that frames it, down to the snapshot.

The order that other components rely on (docs/protocol.md, section 3): gradients reduced -> the
snapshot under way sealed -> the two world all-reduces -> that snapshot committed -> optimizer, with
the gather of each bucket for the next step behind its update -> next snapshot begun, if one is due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch
from headway.common.node.failpoints import failpoint
from headway.common.plan.schedule.actions import Action, Kind
from headway.trainer.comm.agreement import Sums
from headway.trainer.data.batches import BatchReader, MicroBatch
from headway.trainer.optim.choice import make_optimizer
from headway.trainer.optim.schedule import clip_scale, learning_rate
from headway.trainer.parallel.data import DataParallel
from headway.trainer.pipeline.executor import BucketHandler, Handler, Pipeline
from headway.trainer.pipeline.schedules import training_schedule
from headway.trainer.session.commands import ControlLoop
from headway.trainer.session.commits import Commits
from headway.trainer.session.context import StepContext
from headway.trainer.session.hooks import Origin, StepResult
from headway.trainer.session.origin import find_origin, is_reported
from headway.trainer.session.repeat import repeat_pass
from headway.trainer.session.replay import Replays
from headway.trainer.session.replicas import Replicas
from headway.trainer.session.spikes import SpikeGuard
from headway.trainer.state.spoil import Spoiler
from headway.trainer.state.train_state import TrainState


class TrainStep:
    """Runs the steps of one generation."""

    def __init__(
        self,
        context: StepContext,
        state: TrainState,
        data: DataParallel,
        reader: BatchReader,
        control: ControlLoop,
        commits: Commits,
    ) -> None:
        self._context, self._state, self._data, self._reader = context, state, data, reader
        self._control, self._commits = control, commits
        self._guard = SpikeGuard(context.config.train, state)
        self._spoiler = Spoiler(context.rank)
        self._replicas, self._replays = Replicas(context), Replays(context)
        self._ramp = context.config.batch_ramp
        self._optimizer = make_optimizer(
            context.config.optim, lambda sums: context.sum_over_stage(sums, state.step)
        )

    def run(self) -> StepResult:
        """Do the next optimizer step.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        started_s, step = time.monotonic(), self._state.step
        with self._context.recorder.record(Kind.STEP, step=step):
            size = self._ramp.size(self._state.samples)
            totals = _StepTotals(step, self._learning_rate(step), size)
            self._context.tp.record(self._context.recorder, step)
            try:
                if self._replays.is_due(step):
                    self._compute_for_another(totals)
                for flat in self._context.flats:
                    flat.zero_grads()
                self._context.tied.begin(step)
                self._pass(
                    totals,
                    self._handlers(totals),
                    lambda chunk, bucket: self._reduce(chunk, bucket, step),
                ).run()
            finally:
                self._context.tp.record(None)
        duration_s = time.monotonic() - started_s
        self._commits.pace.note(duration_s, totals.copy_s)
        return StepResult(
            step=step,
            loss=totals.sums.mean_loss,
            grad_norm=totals.grad_norm,
            lr=totals.lr,
            num_tokens=int(totals.sums.num_tokens),
            skipped=totals.is_skipped,
            skipped_in_row=self._state.skipped_in_row,
            duration_s=duration_s,
            spike=totals.spike,
            is_stopped=totals.is_stopped,
            origin=totals.origin,
            corrupt=totals.corrupt,
        )

    def _learning_rate(self, step: int) -> float:
        """The commanded rate, else the schedule's, which counts updates: a skipped step is none."""
        if self._control.directive.lr is not None:
            return self._control.directive.lr
        updates = step - self._state.skipped
        return learning_rate(self._context.config.optim, updates, self._control.total_steps)

    def _handlers(self, totals: _StepTotals) -> dict[Kind, Handler]:
        """A function for every action of the schedule that frames the computations."""
        step = totals.step
        return {
            Kind.DATA: lambda pipeline, _: self._give_batches(pipeline, totals),
            Kind.ALL_GATHER: lambda _, action: self._gather(action.chunk, step),
            Kind.REDUCE_SCATTER: lambda _, action: self._reduce(action.chunk, 0, step),
            Kind.NORM: lambda pipeline, _: self._norm(totals, pipeline.loss_sum),
            Kind.OPTIMIZER: lambda pipeline, _: self._optimize(totals, pipeline),
            Kind.SNAPSHOT: lambda *_: self._end(totals),
        }

    def _pass(
        self,
        totals: _StepTotals,
        handlers: Mapping[Kind, Handler],
        after_bucket: BucketHandler | None = None,
    ) -> Pipeline:
        """One pass over the schedule."""
        context, config, step = self._context, self._context.config, totals.step
        return Pipeline(
            self._actions(totals.batch_size),
            context.chunks,
            context.groups.pipe,
            context.recorder,
            step=step,
            micro_batch_size=config.train.micro_batch_size,
            loss_scale=1.0 / self._loss_unit(totals),
            train=True,
            overlap=config.parallel.overlap_p2p,
            handlers=handlers,
            check=context.groups.channels.check,
            before_bucket=lambda chunk, bucket: self._ready(chunk, bucket, step),
            after_bucket=after_bucket,
        )

    def _actions(self, batch_size: int) -> Sequence[Action]:
        """This rank's list for a step of ``batch_size`` sequences."""
        config = self._context.config
        parallel, place = config.parallel, self._context.place
        number = config.micro_batches_of(batch_size, place.dp)
        schedule = training_schedule(
            parallel.schedule, parallel.grid, number, all_read=config.model.every_stage_reads
        )
        return schedule.ranks[place.pp]

    def _loss_unit(self, totals: _StepTotals) -> float:
        """Tokens of the step, those that do not count included."""
        return float(totals.batch_size * self._context.config.model.seq_len)

    def _give_batches(self, pipeline: Pipeline, totals: _StepTotals) -> None:
        if not totals.batches:
            self._take_batches(totals)
        pipeline.batches = totals.batches

    def _take_batches(self, totals: _StepTotals) -> None:
        context = self._context
        with context.recorder.record(Kind.DATA, step=totals.step):
            failpoint("worker.before_data", step=totals.step)
            totals.batches = context.take_batches(
                self._reader, self._state.samples, totals.batch_size
            )
        totals.num_tokens = sum(batch.num_tokens for batch in totals.batches)

    def _compute_for_another(self, totals: _StepTotals) -> None:
        """What another replica's gradients are compared with; docs/protocol.md, section 3."""
        self._take_batches(totals)
        self._data.gather_all(totals.step)
        self._replays.begin(totals.step, totals.batches, lambda made: self._pass(totals, made))

    def _compute_again(self, totals: _StepTotals) -> torch.Tensor:
        """Find out whose gradients are wrong and make those of the step anew; returns its loss."""
        step, batches = totals.step, totals.batches
        for bucket, flat in enumerate(self._context.flats):  # a copy may be what is wrong
            flat.cast_shard_to_params()
            self._data.gather(bucket, step)
            self._data.ready(bucket, step)
        totals.corrupt = self._replays.find(step, batches, lambda made: self._pass(totals, made))
        again = repeat_pass(
            self._context,
            step,
            batches,
            lambda made: self._pass(totals, made),
            after_bucket=lambda chunk, bucket: self._reduce(chunk, bucket, step),
        )
        self._data.finish(step)
        return again.loss_sum

    def _gather(self, chunk: int, step: int) -> None:
        for bucket in self._context.buckets_of(chunk):
            self._data.gather(bucket, step)

    def _ready(self, chunk: int, bucket: int, step: int) -> None:
        self._data.ready(self._context.buckets_of(chunk)[bucket], step)
        self._context.tied.ready(chunk)

    def _reduce(self, chunk: int, bucket: int, step: int) -> None:
        """Start the reduction of a bucket's gradients, which are complete on this rank."""
        replays, place = self._replays, self._context.buckets_of(chunk)[bucket]
        is_compared = replays.is_due(step) or not replays.are_on
        self._spoiler.spoil(self._context.flats[place], place, step, is_compared=is_compared)
        if replays.is_due(step):
            replays.note(chunk, bucket)
        self._context.chunks[chunk].finish_grads(bucket)
        if bucket == 0:
            self._context.tied.reduce(chunk)
        self._data.reduce(place, step)

    def _norm(self, totals: _StepTotals, loss_sum: torch.Tensor) -> None:
        """Make the two all-reduces of a step: the sums for its norm and loss, and the agreement.

        All gradients were scaled by 1 / (sequences x length); the remaining factor to the true
        number of tokens is 1 unless labels are masked.
        """
        context = self._context
        self._data.finish(totals.step)
        context.tied.finish()
        if self._replays.is_due(totals.step) and self._replays.differ(totals.step):
            loss_sum = self._compute_again(totals)
        # before this rank contributes: see docs/protocol.md, section 3
        with context.recorder.record(Kind.SNAPSHOT_WAIT, step=totals.step):
            totals.copy_s = context.snapshots.finish()
        with context.recorder.record(Kind.NORM, step=totals.step):
            norm_square = torch.stack([flat.norm_square() for flat in context.flats]).sum()
            sums = context.sum_over_ranks(norm_square, loss_sum, totals.num_tokens, totals.step)
            token_scale = self._loss_unit(totals) / max(sums.num_tokens, 1.0)
            totals.sums, totals.grad_norm = sums, math.sqrt(sums.norm_square) * token_scale
            totals.grad_scale = token_scale * clip_scale(context.config.optim, totals.grad_norm)
            totals.is_finite = math.isfinite(totals.grad_norm) and math.isfinite(sums.mean_loss)
            if totals.is_finite:
                totals.spike = self._guard.spike(sums.mean_loss, totals.grad_norm)
            on_spike = context.config.train.on_spike if totals.spike else "ignore"
            bad = not totals.is_finite or on_spike == "skip"
            agreed = self._control.agree(is_step=True, bad=bad)
        if not totals.is_finite:
            totals.corrupt = ""  # found again, and to be named with its layer
        totals.corrupt = self._replicas.compare(totals.step) or totals.corrupt
        # all ranks have the same sums, so they find the same spike
        totals.is_skipped = agreed.bad
        totals.is_stopped = on_spike in ("stop", "rollback")

    def _optimize(self, totals: _StepTotals, done: Pipeline) -> None:
        if not totals.is_finite and is_reported(self._state.skipped_in_row):
            totals.origin = find_origin(
                self._context,
                totals.step,
                done,
                lambda handlers: self._pass(totals, handlers),
                self._spoiler,
            )
        if totals.is_skipped or totals.is_stopped:
            return
        self._guard.accept(totals.sums.mean_loss, totals.grad_norm)
        self._context.snapshots.lock()  # while nothing that waits for a peer is queued
        updates = totals.step - self._state.skipped
        with self._context.recorder.record(Kind.OPTIMIZER, step=totals.step):
            self._optimizer.step(
                self._context.flats,
                totals.lr,
                updates,
                totals.grad_scale,
                after_bucket=lambda bucket: self._updated(bucket, totals.step),
            )

    def _updated(self, bucket: int, step: int) -> None:
        failpoint("worker.mid_optimizer", step=step, bucket=bucket)
        self._data.gather_ahead(bucket)

    def _end(self, totals: _StepTotals) -> None:
        if totals.is_stopped:
            return
        self._state.samples += totals.batch_size
        self._state.step += 1
        self._commits.after_step()


class _StepTotals:
    """Intermediate results of one step."""

    def __init__(self, step: int, lr: float, batch_size: int) -> None:
        self.step, self.lr, self.batch_size = step, lr, batch_size
        self.num_tokens = 0.0
        self.batches: Sequence[MicroBatch] = ()
        self.sums = Sums(0.0, 0.0, 0.0)
        self.grad_norm = 0.0
        self.grad_scale = 1.0
        self.copy_s: float | None = None
        """Time of the snapshot's copy during the step, None without one."""
        self.is_finite = True
        self.is_skipped = self.is_stopped = False
        self.spike = ""
        self.origin: Origin | None = None
        self.corrupt = ""
