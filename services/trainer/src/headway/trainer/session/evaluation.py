"""What a rank computes besides training steps: the validation loss, and samples of the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from headway.common.plan.schedule.actions import Action, Kind
from headway.trainer.data.batches import BatchReader
from headway.trainer.parallel.data import DataParallel
from headway.trainer.pipeline.executor import Pipeline
from headway.trainer.pipeline.schedules import validation_schedule
from headway.trainer.session.context import StepContext
from headway.trainer.session.sample import TEMPERATURE, sample_text


class Evaluation:
    """Forward passes of one generation; all ranks call each method together, between two steps."""

    def __init__(self, context: StepContext, data: DataParallel) -> None:
        self._context, self._data = context, data

    def loss(self, step: int, reader: BatchReader) -> float:
        """Mean validation loss in nats after ``step`` steps, over the same batches each time.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        context, config = self._context, self._context.config
        num_tokens = 0.0
        size, num_batches = config.train.global_batch_size, config.train.eval_batches
        num_micro_batches = num_batches * config.micro_batches_of(size, context.place.dp)

        def data(pipeline: Pipeline, _: Action) -> None:
            nonlocal num_tokens
            pipeline.batches = context.take_batches(reader, 0, size, num_batches)
            num_tokens = sum(batch.num_tokens for batch in pipeline.batches)

        with context.recorder.record(Kind.EVAL, step=step):
            self._data.gather_all(step)
            context.tied.begin(step)
            pipeline = Pipeline(
                self._actions(num_micro_batches),
                context.chunks,
                context.groups.pipe,
                context.recorder,
                step=step,
                micro_batch_size=config.train.micro_batch_size,
                loss_scale=1.0,
                train=False,
                overlap=config.parallel.overlap_p2p,
                handlers={Kind.DATA: data},
                check=context.groups.channels.check,
                before_bucket=lambda chunk, _: context.tied.ready(chunk),  # everything is gathered
            )
            pipeline.run()
            context.tied.finish()
            return context.sum_over_ranks(0.0, pipeline.loss_sum, num_tokens, step).mean_loss

    def _actions(self, num_micro_batches: int) -> Sequence[Action]:
        config, place = self._context.config, self._context.place
        schedule = validation_schedule(
            config.parallel.grid, num_micro_batches, all_read=config.model.every_stage_reads
        )
        return schedule.ranks[place.pp]

    def sample(
        self, step: int, prompt: list[int], count: int, *, temperature: float = TEMPERATURE
    ) -> list[int]:
        """Tokens that the model writes after ``prompt``; see ``sample_text``."""
        with self._context.recorder.record(Kind.SAMPLE, step=step):
            self._data.gather_all(step)
            self._context.tied.exchange(step)
            with _eager(self._context):
                return sample_text(self._context, prompt, count, temperature=temperature)


def _eager(context: StepContext) -> AbstractContextManager[object]:
    """Keeps the compiler out of texts, each of which has its own length; torch loads it here."""
    if context.config.train.compile is not True:
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
