"""What a session and whoever steers it exchange: the result of each step, and what is asked for next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepResult:
    """What every rank knows after step ``step``, equal on all."""

    step: int
    loss: float
    """Mean over the step's tokens, in nats, before the update."""
    grad_norm: float
    lr: float
    num_tokens: int
    skipped: bool
    """Norm or loss was not finite, so the optimizer left the state as it was."""
    skipped_in_row: int
    """Steps skipped up to and with this one, without one in between that was not; 0 unless ``skipped``."""
    duration_s: float
    """This rank's time for the step."""


@dataclass(frozen=True)
class Directive:
    """What the commands agreed on so far ask for, from this step's end on."""

    lr: float | None = None
    """Replaces the schedule's learning rate from the next step on."""
    pause: bool = False
    stop: bool = False
    checkpoint: bool = False
    """Make the snapshot that follows durable."""


class StepHooks(Protocol):
    """The control side, asked on the main thread; nothing here may block."""

    def command_seq(self) -> int:
        """Newest steering command held, 0 for none."""

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        """What commands 1..``agreed`` ask for; those up to ``applied`` have had their one-time effects.

        Called with every step's agreement, also if nothing is new. A function of the commands alone, so
        that a step done again after a recovery comes to the same.
        """

    def stop_requested(self) -> bool:
        """This rank wants the run to end, whatever the commands say."""

    def on_step(self, result: StepResult) -> None:
        """A step is complete."""

    def on_eval(self, step: int, loss: float) -> None:
        """Validation loss after ``step`` completed steps."""

    def on_pause(self, paused: bool) -> None:
        """The run was paused or resumed."""

    def on_doubtful_checkpoint(self, step: int, first_skipped: int) -> None:
        """A user asked for a checkpoint of ``step`` although no step since ``first_skipped`` was
        finite. It is made; those from before must stay."""


class NoHooks:
    """Nobody steers; a base for hooks that need little."""

    def command_seq(self) -> int:
        """No commands."""
        return 0

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        """Nothing is asked for."""
        del step, applied, agreed
        return Directive()

    def stop_requested(self) -> bool:
        """Never."""
        return False

    def on_step(self, result: StepResult) -> None:
        """No effect."""

    def on_eval(self, step: int, loss: float) -> None:
        """No effect."""

    def on_pause(self, paused: bool) -> None:
        """No effect."""

    def on_doubtful_checkpoint(self, step: int, first_skipped: int) -> None:
        """No effect."""
