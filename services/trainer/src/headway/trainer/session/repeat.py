"""Computes the micro-batches of a step once more, without the collectives that frame a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headway.common.plan.schedule.actions import Action, Kind
from headway.trainer.data.batches import MicroBatch
from headway.trainer.pipeline.executor import BucketHandler, Handler, Pipeline
from headway.trainer.session.context import StepContext

MakePass = Callable[[Mapping[Kind, Handler]], Pipeline]


def repeat_pass(
    context: StepContext,
    step: int,
    batches: Sequence[MicroBatch],
    make_pass: MakePass,
    after_bucket: BucketHandler,
) -> Pipeline:
    """Run the schedule on ``batches``, on all ranks together; returns the pass that is done.

    The parameters must be complete. ``after_bucket`` is called with each chunk and bucket, in the
    order in which a step reduces them, when its gradients are those of this rank alone; whatever is
    to be added to them, it adds.

    Raises:
        Aborted: the generation was fenced. RuntimeError: a peer failed.
    """
    for flat in context.flats:
        flat.zero_grads()
    context.tied.begin(step)

    def give_batches(again: Pipeline, _: object) -> None:
        again.batches = batches

    def nothing(*_: object) -> None:
        """The parameters are complete, and the state stays as it is."""

    def complete(_: object, action: Action) -> None:
        for bucket in reversed(range(len(context.chunks[action.chunk].buckets))):
            after_bucket(action.chunk, bucket)

    handlers: dict[Kind, Handler] = {
        Kind.DATA: give_batches,
        Kind.ALL_GATHER: nothing,
        Kind.REDUCE_SCATTER: complete,
        Kind.NORM: lambda *_: context.tied.finish(),
        Kind.OPTIMIZER: nothing,
        Kind.SNAPSHOT: nothing,
    }
    again = make_pass(handlers)
    again.run()
    return again
