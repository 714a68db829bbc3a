"""Between a rank and its worker: steering commands in, metrics and skipped steps out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from headway.ckpt_store.client import keep, newest
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.failpoints import failpoint
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.trainer.comm.fence import Fence
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import Directive, StepHooks, StepResult
from headway.trainer.session.origin import is_reported
from headway.trainer.worker.link import Link, WorkerStatus

REPORTING_RANK = 0
"""All ranks have the same numbers; one reports them."""
WITNESS_NODES = 8
"""The last rank of each of the first nodes' worth of ranks reports what that one could not, see
``Link``."""

log = get_logger("rank")


class RankContext(Protocol):
    """What a rank needs from its process; ``worker.Worker`` provides it."""

    run_dir: RunDir
    config: RunConfig
    paths: NodePaths
    view: WorkerStatus
    commands: list[Steer]
    fence: Fence
    link: Link

    def announce(self, generation: int, endpoint: StoreEndpoint) -> None:
        """Called on the build thread of rank 0 once the generation's store listens."""


class ControlHooks(StepHooks):
    """Passes steering commands and reports between a step and the worker's link."""

    def __init__(
        self,
        context: RankContext,
        generation: int,
        answered: int = 0,
        *,
        after_step: Callable[[WorkerStatus], object] = lambda _: None,
    ) -> None:
        self._context, self._generation, self._answered = context, generation, answered
        self._after_step = after_step
        rank, per_node = context.view.rank, context.config.launch.ranks_per_node
        self._reports = rank == REPORTING_RANK
        node, place = divmod(rank, per_node)
        self._is_witness = node < WITNESS_NODES and place == per_node - 1
        self._num_skipped = 0
        self._has_stepped = False

    def command_seq(self) -> int:
        """Sequence of the newest command received."""
        return len(self._context.commands)

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        """The combined effect of the first ``agreed`` commands of the run."""
        del step
        lr: float | None = None
        pause = stop = checkpoint = False
        steps, asked = 0, []
        for command in self._context.commands[:agreed]:
            match command.operation:
                case "pause" | "resume":
                    pause = command.operation == "pause"
                case "stop":
                    stop = True
                case "set" if command.name == "lr":
                    lr = command.value
                case "unset" if command.name == "lr":
                    # back to the schedule, a function of the step, as if it was never set
                    lr = None
                case "checkpoint":
                    checkpoint = checkpoint or command.sequence > applied
                case "extend":
                    steps = max(steps, command.count)
                case "evaluate" | "sample" if command.sequence > applied:
                    asked.append(command.sequence)
                case _:
                    pass
        if not asked:
            self.on_applied(agreed)
        return Directive(
            lr=lr, pause=pause, stop=stop, checkpoint=checkpoint, steps=steps, asked=tuple(asked)
        )

    def command(self, sequence: int) -> Steer:
        """One of the commands that this worker has received."""
        return self._context.commands[sequence - 1]

    def is_answered(self, sequence: int) -> bool:
        """Whether an earlier generation made it; the same on all ranks of a generation."""
        return sequence <= self._answered

    def on_applied(self, sequence: int) -> None:
        """Report it with the next beat."""
        self._context.view.applied = sequence

    def on_corrupt(self, step: int, text: str) -> None:
        """Log it, where the node's agent finds it."""
        log.error(f"silent data corruption: {text}", step=step)

    def on_step(self, result: StepResult) -> None:
        """Report the step to the executor; the first one of a generation at once."""
        context = self._context
        context.view.step = result.step + 1
        self._after_step(context.view)
        self._has_stepped = True
        if context.view.status != "running":
            context.view.status = "running"
            context.link.beat_now()
        failpoint("worker.before_report", step=result.step)
        if result.skipped:
            self._log_skipped(result)
        if self._reports or self._is_witness:
            metrics = StepMetrics(
                generation=self._generation,
                step=result.step,
                loss=result.loss,
                grad_norm=result.grad_norm,
                lr=result.lr,
                tokens=result.num_tokens,
                duration_s=result.duration_s,
                unix_s=time.time(),
                skipped=result.skipped,
            )
            context.link.send(metrics) if self._reports else context.link.keep(metrics)

    def _log_skipped(self, result: StepResult) -> None:
        """Log it on the rank that it came from; if that is not known, on one rank, and not each.

        See ``is_reported``.
        """
        self._num_skipped += 1
        fields = {
            "step": result.step,
            "skipped_in_row": result.skipped_in_row,
            "lr": result.lr,
        }
        if result.origin is not None:
            if text := result.origin.text:
                first = f"the first value that is not finite is in {text}"
                log.warning(f"the step was skipped: {first}", **fields)
            return
        if not self._reports or not is_reported(self._num_skipped):
            return
        what, value = (
            ("the gradient norm", result.grad_norm)
            if math.isfinite(result.loss)
            else ("the loss", result.loss)
        )
        log.warning(f"the step was skipped: {result.spike or f'{what} is {value:g}'}", **fields)

    def on_doubtful_checkpoint(self, step: int, first_skipped: int) -> None:
        """Pin the newest earlier checkpoint, so that retention keeps it."""
        if not self._reports:
            return
        context = self._context
        log.warning(
            "a checkpoint was requested and is made although the last steps were skipped",
            step=step,
            first_skipped=first_skipped,
        )
        try:
            found = newest(
                context.run_dir.checkpoints,
                context.config.parallel.world_size,
                max_step=first_skipped,
            )
            if found is not None:
                keep(found)
        except (OSError, HeadwayError) as error:
            log.warning("the checkpoint before it could not be pinned", error=str(error))

    def begin_eval(self) -> None:
        """Show that the rank evaluates: it makes no step meanwhile."""
        self._context.view.evaluating = True
        self._context.link.beat_now()

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """Report a validation loss."""
        self._context.view.evaluating = False
        if self._reports:
            train, seq = self._context.config.train, self._context.config.model.seq_len
            self._context.link.send(
                Evaluation(
                    generation=self._generation,
                    step=step,
                    loss=loss,
                    tokens=train.eval_batches * train.global_batch_size * seq,
                    sequence=sequence,
                )
            )

    def on_sample(self, sequence: int, step: int, prompt: list[int], tokens: list[int]) -> None:
        """Report what the model wrote."""
        if self._reports:
            self._context.link.send(
                Sample(
                    generation=self._generation,
                    tokens=(*prompt, *tokens),
                    num_prompt_tokens=len(prompt),
                    step=step,
                    sequence=sequence,
                )
            )

    def on_pause(self, paused: bool) -> None:
        """Report that the run is paused, so that it counts as healthy although it makes no steps.

        A rank that leaves a pause in which it was restored has not stepped yet.
        """
        self._context.view.status = "running" if paused or self._has_stepped else "restored"
        self._context.view.paused = paused
        self._context.link.beat_now()
