"""Errors that decide how a run continues after a rank has left its generation.

InputError (common)
└── RefusedError         a restart does not help: the run ends with this text
    ├── DivergedError    too many steps in a row whose loss or norm was not finite, or a spike
    ├── SpikeError       a step whose loss or norm is far above those before it
    └── MemoryTooSmallError  a step needs more memory than the device has
HeadwayError (common)
└── SpikeRollback        a spike, from which the run goes back to a checkpoint
CorruptError (common)
├── BadCheckpointError   a durable checkpoint cannot be read: an older one may be intact
└── BadSnapshotError     a snapshot in memory is damaged: the next intact copy is used
"""

from __future__ import annotations

from pathlib import Path

from headway.common.errors import CorruptError, HeadwayError, InputError


class RefusedError(InputError):
    """The run was given other data, or another model's state, than it began with."""


class DivergedError(RefusedError):
    """``train.max_skipped_steps`` steps in a row were skipped: training has diverged."""

    def __init__(
        self, first_step: int, last_step: int, loss: float, grad_norm: float, way_back: str = ""
    ) -> None:
        """``way_back``: which checkpoint to go back to, as a clause; empty if that is unknown."""
        self.first_step, self.last_step = first_step, last_step
        self.loss, self.grad_norm = loss, grad_norm
        count = last_step + 1 - first_step
        super().__init__(
            f"training has diverged: {count} steps in a row were skipped, {first_step} to "
            f"{last_step}, the last with loss {loss:g} and gradient norm {grad_norm:g}",
            remedy="lower optim.lr and go back to a checkpoint before step "
            f"{first_step}{way_back}; train.max_skipped_steps sets the limit",
        )

    def with_way_back(self, clause: str) -> DivergedError:
        """Return this error with the checkpoint to go back to, as named in ``clause``."""
        return DivergedError(
            self.first_step, self.last_step, self.loss, self.grad_norm, way_back=f" ({clause})"
        )


class SpikeError(RefusedError):
    """A spike ended the run, as ``train.on_spike = "stop"`` asks; the state is that before it."""

    def __init__(self, step: int, loss: float, grad_norm: float, spike: str, *, saved: bool):
        kept = f"checkpoint {step} is the state before it" if saved else "no checkpoint was made"
        super().__init__(
            f"step {step} is a spike: {spike} (loss {loss:.4g}, gradient norm {grad_norm:.4g}); "
            f"the run was stopped, {kept}",
            remedy="run it again with train.on_spike=skip to pass over the step's samples, or "
            "ignore to take it; if spikes repeat, go back further and lower optim.lr",
        )


class SpikeRollback(HeadwayError):
    """A spike with ``train.on_spike = "rollback"``.

    The run goes back to a checkpoint and continues with the data from position ``end`` on.
    """

    def __init__(self, step: int, spike: str, end: int) -> None:
        super().__init__(f"step {step} is a spike: {spike}")
        self.end = end


class MemoryTooSmallError(RefusedError):
    """A step needs more memory than there is; the next attempt would, too."""


class BadCheckpointError(CorruptError):
    """A part of the checkpoint to be restored cannot be read on this node.

    The part of rank ``part`` is damaged, missing or unreadable.
    """

    def __init__(self, error: CorruptError, *, step: int, rank: int, part: int, node: int) -> None:
        whose = "its part" if part == rank else f"the part of rank {part}"
        super().__init__(
            f"rank {rank} on node {node} cannot read {whose} of checkpoint {step}: {error.message}",
            remedy=error.remedy,
        )
        self.part = part


class BadSnapshotError(CorruptError):
    """The rank's arena cannot restore ``step``.

    It is damaged, has another layout, or lacks the step.
    """

    def __init__(self, step: int, path: Path, reason: str) -> None:
        super().__init__(
            f"the snapshot of step {step} in {path} cannot be used: {reason}",
            remedy="an older snapshot or checkpoint is used",
        )
        self.step, self.path, self.reason = step, path, reason
