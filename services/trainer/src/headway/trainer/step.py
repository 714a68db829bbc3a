"""One training step: the lowered schedule with everything that frames it, down to the snapshot.

The order that other components rely on: gradients reduced -> snapshot of this step's start sealed
-> the two world all-reduces -> that snapshot committed -> optimizer -> next snapshot begun.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from headway.common.node.failpoints import failpoint
from headway.common.node.flight import WAITING
from headway.common.plan.schedule.actions import Action, Kind
from headway.common.plan.schedule.generate import forward_only, generate
from headway.common.plan.schedule.lower import lower
from headway.trainer.batches import BatchReader, MicroBatch
from headway.trainer.context import StepContext
from headway.trainer.hooks import Directive, StepHooks, StepResult
from headway.trainer.optim.adamw import AdamW, Optimizer
from headway.trainer.optim.schedule import clip_scale, learning_rate
from headway.trainer.parallel.data import DataParallel
from headway.trainer.pipeline import Handler, Pipeline
from headway.trainer.sample import sample_text
from headway.trainer.snapshot import Extra
from headway.trainer.steering import Agreement, Sums, add_up, agree


class TrainStep:
    """Runs steps and validation passes of one generation."""

    def __init__(self, context: StepContext, hooks: StepHooks, reader: BatchReader) -> None:
        config = context.config
        parallel = config.parallel
        grid = parallel.grid
        self._context, self._hooks, self._reader = context, hooks, reader
        self._place = grid.coordinates(context.rank)
        self._micro_batches = config.num_micro_batches
        computed = generate(
            parallel.schedule, pp=grid.pp, vp=grid.vp, num_micro_batches=self._micro_batches
        )
        self._actions = lower(computed).ranks[self._place.pp]
        passes = config.train.eval_batches * self._micro_batches
        validation = forward_only(pp=grid.pp, vp=grid.vp, num_micro_batches=passes)
        self._eval_actions = lower(validation).ranks[self._place.pp]
        self._data = DataParallel(
            context.flats,
            context.groups["dp"],
            context.recorder,
            overlap_gather=parallel.overlap_param_gather,
            overlap_reduce=parallel.overlap_grad_reduce,
        )
        self._optimizer: Optimizer = AdamW(config.optim)
        self._loss_unit = float(config.train.global_batch_size * config.model.seq_len)
        self.directive = Directive()
        self.applied = 0
        self.durable_due = False
        self.samples = 0
        """Global samples consumed before the next step."""
        self.skipped = 0
        """Number of earlier steps that left the state unchanged."""
        self.skipped_in_row = 0
        """Number of skipped steps directly before the next one."""
        self.asked: tuple[int, ...] = ()
        """Sequences of commands that ``carry_out`` has yet to do, between two steps."""
        self._doubtful_checkpoint_requested = False
        self._busy = False

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, extensions included."""
        return max(self._context.config.train.steps, self.directive.steps)

    def run(self, step: int) -> StepResult:
        """Do optimizer step ``step``.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        started_s = time.monotonic()
        with self._context.recorder.record(Kind.STEP, step=step):
            for flat in self._context.flats:
                flat.zero_grads()
            updates = step - self.skipped
            lr = learning_rate(self._context.config.optim, updates, self.total_steps)
            totals = _StepTotals(step, lr)
            if self.directive.lr is not None:
                totals.lr = self.directive.lr
            self._pass(totals).run()
        return StepResult(
            step=step,
            loss=totals.sums.mean_loss,
            grad_norm=totals.grad_norm,
            lr=totals.lr,
            num_tokens=int(totals.sums.num_tokens),
            skipped=not totals.is_finite,
            skipped_in_row=self.skipped_in_row,
            duration_s=time.monotonic() - started_s,
        )

    def evaluate(self, step: int, reader: BatchReader) -> float:
        """Mean validation loss in nats, over the same batches each time; all
        ranks call this together."""
        context = self._context
        with context.recorder.record(Kind.EVAL, step=step):
            self._data.gather_all(step)
            tokens = 0.0

            def data(pipeline: Pipeline, _: Action) -> None:
                nonlocal tokens
                pipeline.batches = self._take(reader, 0, context.config.train.eval_batches)
                tokens = sum(batch.num_tokens for batch in pipeline.batches)

            pipeline = self._pipeline(self._eval_actions, step, {Kind.DATA: data}, train=False)
            pipeline.run()
            sums = self._add_up(0.0, pipeline.loss_sum, tokens)
        return sums.mean_loss

    def carry_out(self, step: int, open_validation: Callable[[], BatchReader]) -> None:
        """Do the evaluations and samples that were asked for; all ranks call this together."""
        for sequence in self.asked:
            if self._hooks.is_answered(sequence):
                continue
            command = self._hooks.command(sequence)
            if command.operation == "evaluate":
                self._hooks.on_eval(step, self.evaluate(step, open_validation()), sequence)
            else:
                prompt, count = list(command.tokens), command.count
                text = self.sample(step, prompt, count, temperature=command.value)
                self._hooks.on_sample(sequence, step, prompt, text)
        self.asked = ()
        self._hooks.on_applied(self.applied)

    def sample(self, step: int, prompt: list[int], count: int, *, temperature: float) -> list[int]:
        """Tokens that the model writes after ``prompt``; all ranks call this together."""
        with self._context.recorder.record(Kind.SAMPLE, step=step):
            self._data.gather_all(step)
            return sample_text(self._context, prompt, count, temperature=temperature)

    def control_round(
        self, step: int, *, moved: bool = False, look_at_state: bool = False
    ) -> Agreement:
        """Agree outside of a step: commits what is sealed and receives new commands.

        ``moved``: this rank's store made progress since the last round. ``look_at_state``: check
        that the state is finite, because no later step will.
        """
        context = self._context
        context.snapshots.finish()
        with context.recorder.record(Kind.NORM, step=step, flags=WAITING):
            # a state that is committed while the run is paused was not used by a step either
            look_at_state = look_at_state or context.snapshots.awaits_commit
            is_bad = look_at_state and not self._is_state_finite()
            agreed = agree(
                context.groups.every_rank,
                context.groups.channels,
                replace(self._vote(is_bad), moved=moved),
                context.device,
            )
        self._take_over(step, agreed)
        return agreed

    def snapshot(self, step: int, *, durable: bool) -> None:
        """Begin sealing the state after ``step`` completed steps; recorded as
        part of the step before."""
        extra = Extra(
            step=step,
            samples=self.samples,
            command=self.applied,
            durable_due=self.durable_due and not durable,
            fingerprint=self._context.fingerprints["train"],
            validation_fingerprint=self._context.fingerprints["validation"],
            skipped=self.skipped,
            skipped_in_row=self.skipped_in_row,
            asked=self.asked,
        )
        with self._context.recorder.record(Kind.SNAPSHOT, step=step - 1):
            self._context.snapshots.begin(
                step, self._context.groups.generation, extra, durable=durable
            )

    def _pass(self, run: _StepTotals) -> Pipeline:
        step = run.step

        def data(pipeline: Pipeline, _: Action) -> None:
            with self._context.recorder.record(Kind.DATA, step=step):
                pipeline.batches = self._take(self._reader, self.samples, 1)
                run.num_tokens = sum(batch.num_tokens for batch in pipeline.batches)

        def reduce(_: Pipeline, action: Action) -> None:
            self._context.chunks[action.chunk].finish_grads()
            self._data.reduce(action.chunk, step)

        handlers: dict[Kind, Handler] = {
            Kind.DATA: data,
            Kind.ALL_GATHER: lambda _, action: self._data.gather(action.chunk, step),
            Kind.REDUCE_SCATTER: reduce,
            Kind.NORM: lambda pipeline, _: self._norm(run, pipeline.loss_sum),
            Kind.OPTIMIZER: lambda *_: self._optimize(run),
            Kind.SNAPSHOT: lambda *_: self._snapshot_after(step),
        }
        return self._pipeline(self._actions, step, handlers, train=True)

    def _pipeline(
        self, actions: Sequence[Action], step: int, handlers: Mapping[Kind, Handler], *, train: bool
    ) -> Pipeline:
        context = self._context
        return Pipeline(
            actions,
            context.chunks,
            context.groups.pipe,
            context.recorder,
            step=step,
            micro_batch_size=context.config.train.micro_batch_size,
            loss_scale=1.0 / self._loss_unit,
            train=train,
            overlap=context.config.parallel.overlap_p2p,
            handlers=handlers,
            check=context.groups.channels.check,
            before_compute=lambda chunk: self._data.ready(chunk, step),
        )

    def _norm(self, run: _StepTotals, loss_sum: torch.Tensor) -> None:
        """The two all-reduces. All gradients were scaled by 1 / (sequences x length); the remaining
        factor to the true number of tokens is 1 unless labels are masked."""
        context = self._context
        self._data.finish(run.step)
        context.snapshots.finish()  # before this rank contributes: see docs/protocol.md, section 3
        with context.recorder.record(Kind.NORM, step=run.step):
            norm_square = torch.stack(
                [flat.norm_square(context.tp.rank) for flat in context.flats]
            ).sum()
            run.sums = self._add_up(norm_square, loss_sum, run.num_tokens)
            token_scale = self._loss_unit / max(run.sums.num_tokens, 1.0)
            run.grad_norm = math.sqrt(run.sums.norm_square) * token_scale
            run.is_finite = math.isfinite(run.grad_norm) and math.isfinite(run.sums.loss_sum)
            run.grad_scale = token_scale * clip_scale(context.config.optim, run.grad_norm)
            mine = self._vote(not run.is_finite)
            agreed = agree(context.groups.every_rank, context.groups.channels, mine, context.device)
        run.is_finite = not agreed.bad
        self.skipped += agreed.bad
        self.skipped_in_row = self.skipped_in_row + 1 if agreed.bad else 0
        self._take_over(run.step, agreed)

    def _add_up(
        self, norm_square: torch.Tensor | float, loss_sum: torch.Tensor, tokens: float
    ) -> Sums:
        """World sums. Each tp rank of a last stage holds the whole loss, so only
        the first one's counts."""
        context = self._context
        values = torch.zeros(3, dtype=torch.float64, device=context.device)
        values[0] = norm_square
        if self._place.tp == 0:
            values[1] = loss_sum
            values[2] = tokens
        return add_up(context.groups.every_rank, context.groups.channels, values)

    def _vote(self, bad: bool) -> Agreement:
        context = self._context
        return Agreement(
            command=self._hooks.command_seq(),
            sealed=context.snapshots.sealed,
            stop=self._hooks.stop_requested(),
            bad=bad,
            busy=context.snapshots.busy,
        )

    def _take_over(self, step: int, agreed: Agreement) -> None:
        """Commit what all ranks have sealed, and apply the commands that all ranks have.

        A state whose own step was not finite is kept in memory, where recovery needs it, but does
        not become a checkpoint; the next finite one does.
        """
        snapshots = self._context.snapshots
        if agreed.bad and not self._doubtful_checkpoint_requested and snapshots.withdraw():
            self.durable_due = True
        snapshots.commit(agreed.sealed)
        directive = self._hooks.apply(step, self.applied, agreed.command)
        self.applied = max(self.applied, agreed.command)
        self.asked += directive.asked
        self.durable_due |= directive.checkpoint
        self._doubtful_checkpoint_requested = self.skipped_in_row > 0 and (
            directive.checkpoint or (self._doubtful_checkpoint_requested and self.durable_due)
        )
        self._busy = agreed.busy
        if agreed.stop:
            directive = replace(directive, stop=True)
        self.directive = directive

    def _optimize(self, run: _StepTotals) -> None:
        if not run.is_finite:
            return
        with self._context.recorder.record(Kind.OPTIMIZER, step=run.step):
            self._optimizer.step(
                self._context.flats,
                run.lr,
                run.step - self.skipped,
                run.grad_scale,
                after_chunk=lambda chunk: failpoint(
                    "worker.mid_optimizer", step=run.step, chunk=chunk
                ),
            )

    def _snapshot_after(self, step: int) -> None:
        """Seal the state, and mark it durable when that is due and no rank's
        store is still busy."""
        self.samples += self._context.config.train.global_batch_size
        every = self._context.config.ckpt.durable_every
        self.durable_due |= (step + 1) % every == 0
        is_doubtful = self.skipped_in_row > 0
        durable = self.durable_due and not self._busy
        if is_doubtful:
            durable = durable and self._doubtful_checkpoint_requested
        if durable:
            self.durable_due = False
            if is_doubtful:
                first = step + 1 - self.skipped_in_row
                self._hooks.on_doubtful_checkpoint(step + 1, first)
        self.snapshot(step + 1, durable=durable)

    def _is_state_finite(self) -> bool:
        return all(flat.is_state_finite() for flat in self._context.flats)

    def _take(self, reader: BatchReader, start: int, steps: int) -> list[MicroBatch]:
        """Micro-batches of ``steps`` steps from global sample ``start`` on.

        Local j of a step is global j * dp + dp_rank.
        """
        train, dp = self._context.config.train, self._context.config.parallel.dp
        size = train.micro_batch_size
        first = start + self._place.dp * size
        channels = self._context.groups.channels
        return reader.take(steps * self._micro_batches, first, dp * size, lambda: channels.aborted)


class _StepTotals:
    """Intermediate results of one step."""

    def __init__(self, step: int, lr: float) -> None:
        self.step, self.lr = step, lr
        self.num_tokens = 0.0
        self.sums = Sums(0.0, 0.0, 0.0)
        self.grad_norm = 0.0
        self.grad_scale = 1.0
        self.is_finite = True
