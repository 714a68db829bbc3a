"""Packs samples into rows of tokens: joined documents, split every seq_len tokens (Megatron).

Attention and positions run across documents; document masks are not made here.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, InputError
from headway.dataloader.built_orders import BuildOrder, in_process
from headway.dataloader.formats import TokenFile, bin_path
from headway.dataloader.order import OrderSettings, SampleOrder, samples_per_epoch

_MAX_IDS = 1 << 31  # a slot holds int32
KEPT_EPOCHS = 2  # a slot may span the end of one


class EndOfOrderError(InputError):
    """A sample past the end of an order of ``num_samples``."""


class Packer:
    """Maps a sample number to its seq_len + 1 tokens.

    The mapping is a pure function of (token file, seq_len, seed, num_samples).

    With ``num_samples`` above 0 the order is Megatron's for a run of that many samples. With 0 it
    is endless: each epoch has an order of its own, so that a longer run changes no earlier sample.

    Indices are built at their first use, and shared by all readers of the same epoch as long as one
    of them keeps it. Used by one thread.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        seq_len: int,
        seed: int,
        num_samples: int = 0,
        vocab_size: int | None = None,
        build: BuildOrder = in_process,
    ) -> None:
        """Prepare to read samples of ``tokens``.

        ``vocab_size``: higher ids count as damage; None allows all of int32. ``build`` makes the
        order of an epoch.

        Raises:
            InputError: there are no tokens; or, for an endless order, not enough for one sample.
        """
        _refuse_too_few(tokens, seq_len, num_samples)
        self.tokens = tokens
        self.seq_len = seq_len
        self.samples_per_epoch = samples_per_epoch(tokens.num_tokens, seq_len)
        self._seed = seed
        self._build = build
        self._num_samples = num_samples
        self._limit = min(vocab_size or _MAX_IDS, _MAX_IDS)
        self._may_be_large = np.iinfo(tokens.dtype).max >= self._limit
        self._may_be_negative = np.iinfo(tokens.dtype).min < 0
        self._row = np.empty(seq_len + 1, tokens.dtype)
        self._bytes = self._row.data.cast("B")
        self._orders: WeakValueDictionary[int, SampleOrder] = WeakValueDictionary()
        self._recent: deque[SampleOrder] = deque(maxlen=KEPT_EPOCHS)

    def write(self, sample: int, row: npt.NDArray[np.int32]) -> None:
        """Fill ``row`` int32[seq_len + 1].

        Raises:
            EndOfOrderError: past ``num_samples``. ReadError: the disk or the network failed.
            CorruptError: a block that differs from its digest, or a token id outside the vocabulary
                or above 31 bits; names file and position.
        """
        order, index = self.find(sample)
        tokens, at, size = self.tokens, 0, self._row.itemsize
        for sequence, start, stop in order.pieces(index):
            end = at + (stop - start) * size
            tokens.read(int(tokens.offsets[sequence]) + start * size, self._bytes[at:end])
            at = end
        if at != len(self._bytes):
            raise CorruptError(
                f"{tokens.prefix}: sample {sample} has {at // size} tokens",
                remedy="prepare the data again with --force",
            )
        if self._is_outside(self._row):
            raise self._bad_token(order, index)
        row[...] = self._row

    def _is_outside(self, ids: npt.NDArray[Any]) -> bool:
        """Checked before ids are narrowed: an id of 33 bits must not become another."""
        if self._may_be_large and ids.max() >= self._limit:
            return True
        return self._may_be_negative and bool(ids.min() < 0)

    def find(self, sample: int) -> tuple[SampleOrder, int]:
        """Return the order of ``sample``'s epoch and the position of the sample in it.

        Readers of the epoch keep its order alive.

        Raises:
            EndOfOrderError: past ``num_samples``.
        """
        if not self._num_samples:
            epoch, index = divmod(sample, self.samples_per_epoch)
            return self._order(epoch), index
        order = self._order(0)
        if not 0 <= sample < order.num_samples:
            raise EndOfOrderError(
                f"sample {sample} is past the {order.num_samples} of this order",
                remedy="raise num_samples, or set it to 0 for an endless order",
            )
        return order, sample

    def _order(self, epoch: int) -> SampleOrder:
        known = self._orders.get(epoch)
        if known is None:
            num_samples = self._num_samples or self.samples_per_epoch
            settings = OrderSettings(self.seq_len, self._seed, epoch, num_samples)
            known = self._build(self.tokens, settings)
            self._orders[epoch] = known
            self._recent.append(known)
        return known

    @property
    def orders(self) -> list[str]:
        """Names of the kept orders that are in use."""
        return [order.name for order in self._orders.values() if order.name]

    def _bad_token(self, order: SampleOrder, index: int) -> CorruptError:
        for sequence, start, stop in order.pieces(index):
            piece = self.tokens.sequence(sequence)[start:stop]
            bad = np.flatnonzero((piece >= self._limit) | (piece < 0))
            if bad.size:
                where, value = start + int(bad[0]), int(piece[bad[0]])
                break
        known = f"the vocabulary has {self._limit}" if self._limit < _MAX_IDS else "ids are int32"
        return CorruptError(
            f"{bin_path(self.tokens.prefix)}: token {where} of sequence {sequence} is {value}, "
            f"{known}",
            remedy="run `headway data verify`, then prepare the data again with --force",
        )


def _refuse_too_few(tokens: TokenFile, seq_len: int, num_samples: int) -> None:
    if tokens.num_tokens and (num_samples or samples_per_epoch(tokens.num_tokens, seq_len)):
        return
    raise InputError(
        f"{tokens.prefix}: {tokens.num_tokens} tokens contain no sample of seq_len {seq_len}",
        remedy=f"use a seq_len below {max(tokens.num_tokens, 2)}, or give num_samples: then a "
        "sample goes over several epochs",
    )
