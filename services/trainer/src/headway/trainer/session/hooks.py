"""The interface between a session and its control: the result of each step, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.wire.messages.worker import Steer


@dataclass(frozen=True)
class Origin:
    """Where the first value of a step that is not finite came from."""

    rank: int
    """Number of the rank, equal on all ranks."""
    text: str
    """The tensor and the rank in words, on that rank; "" on others."""


@dataclass(frozen=True)
class StepResult:
    """The result of step ``step``, equal on all ranks."""

    step: int
    loss: float
    """Mean over the step's tokens, in nats, before the update."""
    grad_norm: float
    lr: float
    num_tokens: int
    skipped: bool
    """Norm or loss was not finite, or a spike, so the optimizer left the state unchanged."""
    skipped_in_row: int
    """Number of consecutive skipped steps up to and including this one; 0 unless ``skipped``."""
    duration_s: float
    """This rank's time for the step."""
    spike: str = ""
    """What of the step is a spike, as a clause; "" if nothing is, or spikes are ignored."""
    is_stopped: bool = False
    """The step was not completed, because a spike ends the run or leads it back: the state is that
    before it."""
    origin: Origin | None = None
    """Source of a value that is not finite, if it was looked for and found."""
    corrupt: str = ""
    """Which copies of weights, or which gradients, differ, on the rank that is to blame or, if that
    is not known, on the first of those that it may be."""


@dataclass(frozen=True)
class Directive:
    """The combined effect of the agreed commands, from the end of this step."""

    lr: float | None = None
    """Replaces the schedule's learning rate from the next step on."""
    pause: bool = False
    stop: bool = False
    checkpoint: bool = False
    """Make the snapshot that follows durable."""
    steps: int = 0
    """Steps of the whole run, if it was extended."""
    asked: tuple[int, ...] = ()
    """Sequences of the evaluations and samples to do before the next step."""


class StepHooks:
    """The control side, called on the main thread; nothing here may block.

    As it stands it gives no commands and reports nothing: a subclass overrides what it needs.
    """

    def command_seq(self) -> int:
        """Newest steering command received, 0 for none."""
        return 0

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        """The effect of commands 1..``agreed``.

        Those up to ``applied`` had their one-time effects already. Called with every step's
        agreement, also if nothing is new. A function of the commands alone, so that a step that is
        repeated after a recovery gives the same result.
        """
        del step, applied, agreed
        return Directive()

    def command(self, sequence: int) -> Steer:
        """One of the commands up to ``command_seq``."""
        raise LookupError(sequence)

    def is_answered(self, sequence: int) -> bool:
        """Whether the evaluation or sample of a command was made in an earlier generation."""
        del sequence
        return False

    def stop_requested(self) -> bool:
        """Whether this rank wants the run to end, independently of commands."""
        return False

    def on_corrupt(self, step: int, text: str) -> None:
        """Bits have changed by themselves; what and where, as a clause. Before ``on_step``."""

    def on_step(self, result: StepResult) -> None:
        """A step is complete."""

    def begin_eval(self) -> None:
        """Called before an evaluation; ``on_eval`` ends it."""

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """Validation loss after ``step`` completed steps; ``sequence`` of the command, if any."""

    def on_sample(self, sequence: int, step: int, prompt: list[int], tokens: list[int]) -> None:
        """Tokens that the model wrote after ``prompt``; ``sequence`` is the command's."""

    def on_applied(self, sequence: int) -> None:
        """Commands up to ``sequence`` are done, evaluations and samples included."""

    def on_pause(self, paused: bool) -> None:
        """The run was paused or resumed."""

    def on_doubtful_checkpoint(self, step: int, first_skipped: int) -> None:
        """Called when a user requests a checkpoint although recent steps were not finite.

        The checkpoint is of ``step``, and no step since ``first_skipped`` was finite. It is made;
        earlier ones must be kept.
        """
