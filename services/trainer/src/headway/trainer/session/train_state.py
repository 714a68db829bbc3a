"""What a training run has come to besides its tensors; every snapshot keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.trainer.data.batches import Split
from headway.trainer.state.snapshot import Extra


@dataclass
class TrainState:
    """Equal on all ranks; the step and the control loop of a generation change it."""

    step: int = 0
    """Completed steps."""
    samples: int = 0
    """Global samples consumed before the next step."""
    skipped: int = 0
    """Number of earlier steps that left the state unchanged."""
    skipped_in_row: int = 0
    """Number of skipped steps directly before the next one."""
    applied: int = 0
    """Newest steering command applied."""
    asked: tuple[int, ...] = ()
    """Sequences of the evaluations and samples that are to be done before the next step."""
    durable_due: bool = False
    """A durable snapshot was requested but could not be marked yet."""
    recent_losses: tuple[float, ...] = ()
    """Losses of the newest accepted steps, oldest first, by which spikes are judged."""
    recent_norms: tuple[float, ...] = ()
    """Their gradient norms."""

    @classmethod
    def of(cls, extra: Extra) -> TrainState:
        """The state that a snapshot kept."""
        return cls(
            step=extra.step,
            samples=extra.samples,
            skipped=extra.skipped,
            skipped_in_row=extra.skipped_in_row,
            applied=extra.command,
            asked=extra.asked,
            durable_due=extra.durable_due,
            recent_losses=extra.recent_losses,
            recent_norms=extra.recent_norms,
        )

    def extra(self, fingerprints: Mapping[Split, str], *, durable: bool) -> Extra:
        """What the snapshot of this state keeps."""
        return Extra(
            step=self.step,
            samples=self.samples,
            command=self.applied,
            durable_due=self.durable_due and not durable,
            fingerprint=fingerprints["train"],
            validation_fingerprint=fingerprints["validation"],
            skipped=self.skipped,
            skipped_in_row=self.skipped_in_row,
            asked=self.asked,
            recent_losses=self.recent_losses,
            recent_norms=self.recent_norms,
        )
