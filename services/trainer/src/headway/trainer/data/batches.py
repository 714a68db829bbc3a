"""Reads the micro-batches of a rank's replica: tokens on the first stage, labels on the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from headway.common.node.ring import RingAbortedError
from headway.trainer.comm.interface import Aborted
from headway.trainer.model.positions import Borders

Split = Literal["train", "validation"]


class NumpyBatch(Protocol):
    """What a data client returns: views of [micro_batch, seq], valid until its next call."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Input tokens."""

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """The next token at each position."""

    @property
    def mask(self) -> npt.NDArray[np.uint8]:
        """1 where the label counts."""

    @property
    def sample(self) -> int:
        """Global number of the first row's sample."""


class BatchSource(Protocol):
    """A replica's micro-batches in order, for example a ``dataloader.client.DataClient``."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data behind the stream: the same data always have the same one."""

    def next(self, abort: Callable[[], bool] | None = None) -> NumpyBatch:
        """The next micro-batch; checks ``abort`` while it waits."""

    def close(self) -> None:
        """Close the stream. Never blocks."""


DataFactory = Callable[[Split, int, int, str], BatchSource]
"""``(split, start_sample, generation, fingerprint)`` -> this rank's stream.

A training stream starts at global sample ``start_sample``; a validation stream repeats its first
``train.eval_batches`` global batches forever. Data of another ``fingerprint`` are refused
(ChangedDataError), unless it is "" or names only the version of the order.
"""


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of one micro-batch on the device; None where the stage needs none.

    They are [micro_batch, seq], int64 (mask: uint8).
    """

    tokens: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    borders: Borders | None = None
    """Where the documents of each sequence begin; None without ``model.document_end``."""
    num_tokens: int = 0
    """Labels that count, 0 where the stage has none; counted before the copy to the device, which
    the host would have to wait for."""


class BatchReader:
    """Takes a step's micro-batches from a source, None for a stage that reads nothing.

    A stage between the first and the last reads only where documents have borders.
    """

    def __init__(
        self,
        source: BatchSource | None,
        *,
        first: bool,
        last: bool,
        device: torch.device,
        document_end: int | None = None,
    ) -> None:
        self._source = source
        self._first, self._last, self._device = first, last, device
        self._document_end = document_end

    def take(self, samples: Sequence[int], abort: Callable[[], bool]) -> list[MicroBatch]:
        """The next micro-batches, one for each of ``samples``.

        They are the global numbers of the sample with which each must start, to ensure that the
        expected batch was read.

        Raises:
            Aborted: ``abort`` became true while waiting.
            RuntimeError: the source is at another sample.
        """
        if self._source is None:
            return [MicroBatch()] * len(samples)
        taken = []
        for index, expected in enumerate(samples):
            try:
                batch = self._source.next(abort)
            except RingAbortedError:
                raise Aborted from None
            if batch.sample != expected:
                raise RuntimeError(
                    f"micro-batch {index} starts with sample {batch.sample}, not {expected}"
                )
            taken.append(self._convert(batch))
        return taken

    def close(self) -> None:
        """Close the source."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _convert(self, batch: NumpyBatch) -> MicroBatch:
        return MicroBatch(
            tokens=self._tensor(batch.tokens, np.int64) if self._first else None,
            labels=self._tensor(batch.labels, np.int64) if self._last else None,
            mask=self._tensor(batch.mask, np.uint8) if self._last else None,
            borders=borders_of(batch.tokens, self._document_end),
            num_tokens=int(np.count_nonzero(batch.mask)) if self._last else 0,
        )

    def _tensor(
        self, array: npt.NDArray[np.int32] | npt.NDArray[np.uint8], dtype: type
    ) -> torch.Tensor:
        """A copy: the view belongs to the ring and is returned to its writer at the next call.

        To a GPU it goes through page-locked memory, because only such a copy runs behind the host
        (docs.pytorch.org, "pin_memory and non_blocking"). Torch's allocator of page-locked memory
        does not reuse the block before the copy has run.
        """
        if self._device.type != "cuda":
            return torch.from_numpy(np.array(array, dtype=dtype)).to(self._device)
        kind = torch.int64 if dtype is np.int64 else torch.uint8
        host = torch.empty(array.shape, dtype=kind, pin_memory=True)
        np.copyto(host.numpy(), array)
        return host.to(self._device, non_blocking=True)


def borders_of(tokens: npt.NDArray[np.int32], document_end: int | None) -> Borders | None:
    """Where each row's documents begin, and its length: behind every ``document_end``."""
    if document_end is None:
        return None
    length = tokens.shape[1]
    return tuple(
        (0, *(np.flatnonzero(row[:-1] == document_end) + 1).tolist(), length) for row in tokens
    )
