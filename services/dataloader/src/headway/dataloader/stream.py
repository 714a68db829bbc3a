"""The micro-batch in slot n of a ring and its layout, derived from the stream's specification.

Slot: int32 tokens ``[micro_batch_size, seq_len + 1]``, then uint8 loss mask
``[micro_batch_size, seq_len]`` (1 = counts).
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import numpy.typing as npt
from headway.common.errors import ConfigError, InputError
from headway.dataloader.blocks import ChangedDataError, reading
from headway.dataloader.built_orders import BuildOrder, in_process
from headway.dataloader.config import SPLITS, StreamSpec, num_local_micro_batches
from headway.dataloader.dataset import Dataset
from headway.dataloader.formats import TokenFile
from headway.dataloader.order import ORDER_MARK, SampleOrder
from headway.dataloader.pack import KEPT_EPOCHS, Packer

SLOT_FORMAT = 1
"""Version of the layout above; rings with another layout are neither read nor filled."""

_TOKEN_BYTES = 4
_MAX_RING_BYTES = 1 << 40
_MAX_POSITION = 1 << 62

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]


def slot_bytes(spec: StreamSpec) -> int:
    """Payload of one slot."""
    return spec.micro_batch_size * (_TOKEN_BYTES * (spec.seq_len + 1) + spec.seq_len)


def slot_views(spec: StreamSpec, payload: memoryview) -> tuple[Tokens, Mask]:
    """Return views of the tokens and the mask in ``payload``.

    The tokens are int32 [micro_batch_size, seq_len + 1], the mask is uint8 [micro_batch_size,
    seq_len].
    """
    rows, columns = spec.micro_batch_size, spec.seq_len + 1
    tokens = np.frombuffer(payload, np.int32, rows * columns).reshape(rows, columns)
    mask = np.frombuffer(payload, np.uint8, rows * spec.seq_len, _TOKEN_BYTES * rows * columns)
    return tokens, mask.reshape(rows, spec.seq_len)


def slot_sample(spec: StreamSpec, slot: int) -> int:
    """Global number of the first sample in slot ``slot``.

    Slot n holds local micro-batch ``k = n % num_micro_batches`` of step
    ``s = n // num_micro_batches``, that is global micro-batch ``j = dp_rank + k * dp_size``:
    samples from ``start_sample + s * GB + j * micro_batch_size``.
    """
    step, local = divmod(slot, spec.num_micro_batches)
    position = step * spec.global_batch_size
    if spec.cycle_samples:
        position %= spec.cycle_samples
    return (
        spec.start_sample + position + (spec.dp_rank + local * spec.dp_size) * spec.micro_batch_size
    )


def num_slots(spec: StreamSpec) -> int | None:
    """Number of slots before the stream ends; None if it is endless.

    A stream with ``num_samples`` ends with its last whole global batch, counted from
    ``start_sample``, so that all dp ranks end after the same step.
    """
    if not spec.num_samples or spec.cycle_samples:
        return None
    num_steps = (spec.num_samples - spec.start_sample) // spec.global_batch_size
    return num_steps * spec.num_micro_batches


def check(spec: StreamSpec) -> None:
    """Check that every value of ``spec`` is valid.

    Raises:
        ConfigError: names the first invalid value. InputError: an unknown split.
        ChangedDataError: ``spec.fingerprint`` is of another order of the samples.
    """
    _check_fingerprint(spec)
    if spec.split not in SPLITS:
        raise InputError(f"split {spec.split!r} is unknown", remedy=f"use {' or '.join(SPLITS)}")
    for name, low, high in (
        ("seq_len", 1, 1 << 31),
        ("seed", 0, (1 << 32) - 1),
        ("generation", 0, _MAX_POSITION),
        ("start_sample", 0, _MAX_POSITION),
        ("num_samples", 0, 1 << 40),
        ("cycle_samples", 0, _MAX_POSITION),
        ("ring_slots", 1, 1 << 20),
        ("num_readers", 1, 16),
    ):
        value = getattr(spec, name)
        if not low <= value <= high:
            raise ConfigError(f"{name}={value} is out of range", remedy=f"use {low}..{high}")
    expected = num_local_micro_batches(
        spec.global_batch_size, spec.micro_batch_size, spec.dp_rank, spec.dp_size
    )
    if spec.num_micro_batches != expected or not expected:
        raise ConfigError(
            f"num_micro_batches={spec.num_micro_batches}: dp rank {spec.dp_rank} of {spec.dp_size} "
            f"has {expected} of the {spec.global_batch_size // spec.micro_batch_size} "
            "micro-batches",
            remedy="use global_batch_size = micro_batch_size x num_micro_batches x dp_size",
        )
    if spec.cycle_samples % spec.global_batch_size:
        raise ConfigError(
            f"cycle_samples={spec.cycle_samples} is not a multiple of "
            f"global_batch_size={spec.global_batch_size}",
            remedy="cycle over whole global batches",
        )
    _check_end(spec)
    if slot_bytes(spec) * spec.ring_slots > _MAX_RING_BYTES:
        raise ConfigError(
            f"{spec.ring_slots} slots of {slot_bytes(spec)} bytes are out of range",
            remedy="use fewer or smaller slots",
        )


def _check_fingerprint(spec: StreamSpec) -> None:
    if spec.fingerprint and not spec.fingerprint.endswith(ORDER_MARK):
        raise ChangedDataError(
            f"fingerprint {spec.fingerprint!r} names another order than {ORDER_MARK[1:]}, the one "
            "that this version of Headway reads",
            remedy="use the version of Headway that recorded it, or start a new run",
        )


def _check_end(spec: StreamSpec) -> None:
    last = spec.start_sample + spec.cycle_samples
    if spec.num_samples and last > spec.num_samples:
        cycle = f" with cycle_samples={spec.cycle_samples}" if spec.cycle_samples else ""
        raise ConfigError(
            f"start_sample={spec.start_sample}{cycle} goes past num_samples={spec.num_samples}",
            remedy="raise num_samples: it counts from sample 0, not from start_sample",
        )


class Filler:
    """Writes slots of one stream; equal specifications and data give equal bytes in any process."""

    def __init__(self, spec: StreamSpec, packer: Packer) -> None:
        self.spec = spec
        self._packer = packer
        self._orders: deque[SampleOrder] = deque(maxlen=KEPT_EPOCHS)

    @property
    def packer(self) -> Packer:
        """Shared by the streams of a node that read the same data in the same order."""
        return self._packer

    def fill(self, payload: memoryview, slot: int) -> int:
        """Write slot ``slot`` into ``payload`` and return the number of its first sample.

        Raises:
            EndOfOrderError: the stream has reached the end of its ``num_samples``.
            CorruptError: damaged data; names file and position. ReadError: the disk or the network
                failed. ``payload`` is then not to be used.
        """
        tokens, mask = slot_views(self.spec, payload)
        first = slot_sample(self.spec, slot)
        for row in range(self.spec.micro_batch_size):
            order, _ = self._packer.find(first + row)
            if order not in self._orders:
                self._orders.append(order)  # kept, since other streams may be at other epochs
            self._packer.write(first + row, tokens[row])
        mask[...] = 1
        return first


def open_tokens(spec: StreamSpec) -> tuple[TokenFile, int | None]:
    """The token file of ``spec`` and the size of its vocabulary, if known.

    Raises:
        InputError: missing data. CorruptError: damaged data. ChangedDataError: the data do not have
            ``spec.fingerprint``. ReadError: the disk or the network failed.
    """
    with reading(Path(spec.path)):
        data = Dataset(Path(spec.path))
        tokens = data.split(spec.split)
        refuse_changed(spec, recorded(tokens))
        return tokens, data.vocab_size


def refuse_changed(spec: StreamSpec, found: str) -> None:
    """Raises ChangedDataError if the fingerprint of the data differs from ``spec``."""
    if spec.fingerprint and found != spec.fingerprint:
        raise ChangedDataError(
            f"the {spec.split} data of {spec.path} have changed: fingerprint {found}, "
            f"the run began with {spec.fingerprint}",
            remedy="restore the old data, or start a new run",
        )


def recorded(tokens: TokenFile) -> str:
    """Return what a reader of ``tokens`` keeps to continue.

    It is the fingerprint of the data with the version of the order.
    """
    return tokens.fingerprint() + ORDER_MARK


def make_packer(
    spec: StreamSpec,
    tokens: TokenFile,
    vocab_size: int | None,
    build: BuildOrder = in_process,
) -> Packer:
    """The packer of ``spec``; raises InputError if the split is shorter than one sample."""
    return Packer(
        tokens,
        seq_len=spec.seq_len,
        seed=spec.seed,
        num_samples=spec.num_samples,
        vocab_size=vocab_size,
        build=build,
    )
