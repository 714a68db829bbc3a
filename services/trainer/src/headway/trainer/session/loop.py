"""The steps of one generation, with what happens before the first, between two, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.trainer.data.batches import BatchReader, Split
from headway.trainer.errors import DivergedError, SpikeError, SpikeRollback
from headway.trainer.session.commands import ControlLoop
from headway.trainer.session.commits import Commits
from headway.trainer.session.context import StepContext
from headway.trainer.session.evaluation import Evaluation
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.planned_gc import PlannedGc
from headway.trainer.session.step import TrainStep
from headway.trainer.state.train_state import TrainState


@dataclass(frozen=True)
class Ending:
    """How the steps of a generation ended without an error."""

    is_complete: bool
    """The last step of the run is done."""
    is_last_wanted: bool
    """The last snapshot could be marked durable."""
    spike: SpikeError | SpikeRollback | None = None
    """A spike that ended the run or leads it back. To be raised when the last snapshot is durable,
    if it is wanted."""


def run_steps(
    context: StepContext,
    state: TrainState,
    hooks: StepHooks,
    open_reader: Callable[[Split], BatchReader],
    *,
    until: int | None,
    store_moved: Callable[[], bool],
) -> Ending:
    """Train from ``state.step`` to the end of the run, to ``until`` steps, or to a stop.

    ``until`` counts completed steps.

    Args:
        open_reader: the data of a split; all ranks call it together.
        store_moved: whether the node's store made progress since the last call.

    Raises:
        Aborted: the generation was fenced. RuntimeError: a peer failed.
        RefusedError: the data are not those that the run began with, or differ between ranks.
        DivergedError: ``train.max_skipped_steps`` steps in a row were skipped.
    """
    data = context.data_parallel()
    evaluation, commits = Evaluation(context, data), Commits(context, state, hooks)
    control = ControlLoop(context, state, hooks, commits)
    trainer = TrainStep(context, state, data, open_reader("train"), control, commits)

    def validation() -> BatchReader:
        return open_reader("validation")

    def evaluate() -> None:
        hooks.begin_eval()
        hooks.on_eval(state.step, evaluation.loss(state.step, validation()))

    if context.snapshots.sealed < state.step:
        commits.begin(durable=False)
    control.start()
    with PlannedGc(context.config.train.gc_every, context.recorder) as collections:
        while not control.directive.stop and state.step < (
            control.total_steps if until is None else until
        ):
            control.carry_out(evaluation, validation)
            if control.directive.pause:
                data.settle(state.step)
                control.pause(evaluation, validation)
                continue
            if _is_evaluation_due(context, state.step):
                evaluate()
            result = trainer.run()
            if result.corrupt:
                hooks.on_corrupt(result.step, result.corrupt)
            if result.is_stopped and context.config.train.on_spike == "rollback":
                end = state.samples + context.config.batch_ramp.size(state.samples)
                back = SpikeRollback(result.step, result.spike, end)
                return Ending(is_complete=False, is_last_wanted=False, spike=back)
            if result.is_stopped:
                return _stop_before(result, control.finish(store_moved))
            hooks.on_step(result)
            _check_divergence(context, result)
            collections.after(state.step)
    control.carry_out(evaluation, validation)
    is_complete = state.step >= control.total_steps
    if is_complete:
        evaluate()
    data.settle(state.step)
    return Ending(is_complete, control.finish(store_moved))


def _is_evaluation_due(context: StepContext, step: int) -> bool:
    every = context.config.train.eval_every
    return step == 0 or (every > 0 and step % every == 0)


def _stop_before(result: StepResult, is_saved: bool) -> Ending:
    """The end of a run whose next step is a spike."""
    step, loss, norm = result.step, result.loss, result.grad_norm
    spike = SpikeError(step, loss, norm, result.spike, saved=is_saved)
    return Ending(is_complete=False, is_last_wanted=is_saved, spike=spike)


def _check_divergence(context: StepContext, result: StepResult) -> None:
    """All ranks have the same counts, so all of them end here together."""
    limit, skipped = context.config.train.max_skipped_steps, result.skipped_in_row
    if limit and skipped >= limit:
        raise DivergedError(result.step + 1 - skipped, result.step, result.loss, result.grad_norm)
