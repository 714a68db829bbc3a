"""The small state that each snapshot keeps besides the tensors."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from headway.common.errors import CorruptError


@dataclass
class TrainState:
    """The small state besides the tensors, kept with each snapshot.

    Equal on all ranks; the step and the control loop of a generation change it.
    """

    step: int
    """Completed steps; the snapshot's number."""
    samples: int
    """Global samples consumed, where reading continues whatever the global batch size is then."""
    command: int = 0
    """Newest steering command applied."""
    durable_due: bool = False
    """A durable snapshot was requested but not marked yet, because the store was busy."""
    fingerprint: str = ""
    """Fingerprint of the training data, "" if this rank has read none; other data are refused."""
    validation_fingerprint: str = ""
    """Fingerprint of the validation data, "" if this rank has read none; other data are refused."""
    skipped: int = 0
    """Steps so far whose update was skipped: the optimizer's count is ``step - skipped``."""
    skipped_in_row: int = 0
    """Skipped steps directly before ``step``."""
    asked: tuple[int, ...] = ()
    """Sequences of evaluations and samples that were asked for and not done yet."""
    recent_losses: tuple[float, ...] = ()
    """Losses of the newest accepted steps, oldest first, by which spikes are judged."""
    recent_norms: tuple[float, ...] = ()
    """Their gradient norms."""

    def pack(self) -> bytes:
        """MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> TrainState:
        """Raises CorruptError."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except ValueError as error:  # of msgspec, or of the decoder of UTF-8
            raise CorruptError(f"a snapshot's extra state is unreadable: {error}") from error
