"""The sample order of Megatron's GPTDataset, element for element, in numpy.

Three indices, drawn from one ``numpy.random.RandomState(seed)`` in this order (Megatron-LM
``megatron/core/datasets/gpt_dataset.py`` and ``helpers.cpp``):

    document index  the sequence at each position, over all epochs
    sample index    row s = (position, offset) of flat token ``s * seq_len``; they overlap by one
    shuffle index   the order in which samples are served
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from headway.common.errors import InputError

# A last epoch used less than this is shuffled separately, so that its samples
# come last (Megatron-LM).
_SEPARATE_BELOW = 0.80
ORDER_MARK = "-order2"
"""Ends the fingerprint that a stream records: in an endless order, the generator of each later
epoch is seeded with the seed and the epoch together, so that no two pairs have the same order."""
Indices = npt.NDArray[Any]


class OrderSettings(NamedTuple):
    """What one order depends on besides the lengths of the sequences, see ``SampleOrder``."""

    seq_len: int
    seed: int
    epoch: int
    num_samples: int


def samples_per_epoch(num_tokens: int, seq_len: int) -> int:
    """Number of samples in an epoch, without a partial one.

    A sample has ``seq_len`` + 1 tokens, and neighbours overlap by one token.
    """
    return max(0, (num_tokens - 1) // seq_len)


def order_size(lengths: npt.NDArray[np.int32], seq_len: int, num_samples: int) -> int:
    """Numbers that are shuffled to build an order, which takes some 70 ns for each."""
    num_tokens = max(1, int(lengths.sum(dtype=np.int64)))
    epochs = max(1, -(-(num_samples * seq_len + 1) // num_tokens))
    return max(epochs * int(lengths.size), epochs * num_tokens // seq_len)


class SampleOrder:
    """The three indices for one (lengths, seq_len, seed, num_samples); any sample in O(1).

    ``document_index`` i32[epochs * S], ``sample_index`` i32 or i64 [N + 1, 2], ``shuffle_index``
    u32 or i64 [N], where N >= ``num_samples`` is the number in whole epochs.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        *,
        seq_len: int,
        seed: int,
        num_samples: int,
        epoch: int = 0,
    ) -> None:
        """Build the indices, once, in O(samples).

        With ``epoch`` above 0 the generator is seeded with it too, for a later epoch of an endless
        order, which Megatron does not have.

        Raises:
            InputError: the sequences contain no token at all.
        """
        num_tokens = int(lengths.sum(dtype=np.int64))
        if not num_tokens:
            raise InputError("the sequences hold no tokens", remedy="give more text")
        self._lengths = lengths
        self.name = ""
        self.num_epochs = max(1, -(-(num_samples * seq_len + 1) // num_tokens))
        total = (self.num_epochs * num_tokens - 1) // seq_len
        before_last = self._samples_before_last_epoch(num_tokens, seq_len, num_samples)
        random = np.random.RandomState([seed, epoch % 2**32, epoch >> 32] if epoch else seed)
        self.document_index = self._documents(random, separate=before_last is not None)
        self.sample_index = self._samples(seq_len, total)
        self.shuffle_index = _shuffles(random, total, before_last)

    @classmethod
    def of(
        cls,
        lengths: npt.NDArray[np.int32],
        document_index: Indices,
        sample_index: Indices,
        shuffle_index: Indices,
        *,
        name: str,
    ) -> SampleOrder:
        """An order that was built before and is kept under ``name``."""
        order = cls.__new__(cls)
        order._lengths, order.name = lengths, name
        order.num_epochs = document_index.size // max(lengths.size, 1)
        order.document_index, order.sample_index = document_index, sample_index
        order.shuffle_index = shuffle_index
        return order

    def _samples_before_last_epoch(
        self, num_tokens: int, seq_len: int, num_samples: int
    ) -> int | None:
        """Samples of all epochs but the last, if the last is shuffled separately."""
        if self.num_epochs == 1:
            return None
        before = ((self.num_epochs - 1) * num_tokens - 1) // seq_len
        threshold = int(_SEPARATE_BELOW * samples_per_epoch(num_tokens, seq_len))
        return before if num_samples - before < threshold else None

    def _documents(self, random: np.random.RandomState, *, separate: bool) -> Indices:
        blocks = [self.num_epochs - 1, 1] if separate else [self.num_epochs]
        parts = []
        for epochs in blocks:
            part = np.tile(np.arange(self._lengths.size, dtype=np.int32), epochs)
            random.shuffle(part)
            parts.append(part)
        return np.concatenate(parts)

    def _samples(self, seq_len: int, total: int) -> Indices:
        ends = np.cumsum(self._lengths[self.document_index], dtype=np.int64)
        flat = np.arange(total + 1, dtype=np.int64) * seq_len
        position = np.searchsorted(ends, flat, side="right")
        offset = flat - np.where(position > 0, ends[np.maximum(position - 1, 0)], 0)
        rows = np.stack([position, offset], axis=1)
        rows[0] = 0  # Megatron starts at position 0 even when that sequence is empty
        return rows.astype(np.int32) if rows.max() <= np.iinfo(np.int32).max else rows

    @property
    def num_samples(self) -> int:
        """N, the number of samples, at least the requested one."""
        return int(self.shuffle_index.size)

    def pieces(self, sample: int) -> list[tuple[int, int, int]]:
        """Return (sequence, first token, end token) of each piece of ``sample``.

        The pieces have seq_len + 1 tokens together.
        """
        row = int(self.shuffle_index[sample])
        (position, start), (last, stop) = self.sample_index[row : row + 2].tolist()
        sequences = self.document_index[position : last + 1]
        ends = self._lengths[sequences].tolist()
        ends[-1] = stop + 1
        found = []
        for sequence, end in zip(sequences.tolist(), ends, strict=True):
            if end > start:
                found.append((sequence, start, end))
            start = 0
        return found


def _shuffles(random: np.random.RandomState, total: int, before_last: int | None) -> Indices:
    dtype = np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64
    bounds = [0, total] if before_last is None else [0, before_last, total]
    parts = []
    for low, high in itertools.pairwise(bounds):
        part = np.arange(low, high, dtype=dtype)
        random.shuffle(part)
        parts.append(part)
    return np.concatenate(parts)
