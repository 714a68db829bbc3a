"""Batches as torch tensors; on a GPU through page-locked memory, without waiting for the copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from headway.dataloader.client import Abort, Batch, DataClient
from headway.dataloader.config import StreamSpec

_NUM_STAGES = 2  # one is copied while the next is written


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """A batch of tensors on the client's device, which belong to the caller.

    ``tokens`` and ``labels`` are int64, ``mask`` is bool, all [micro_batch_size, seq_len];
    ``sample`` is as in ``Batch``.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    sample: int


class TorchDataClient:
    """``DataClient`` for torch: the same arguments plus ``device``; iterator and context manager.

    The tensors are copies and stay valid; the next call releases the ring's slot. On CUDA a batch
    travels as int32 from page-locked memory on the current stream and is widened there.
    """

    def __init__(
        self,
        source: str | None,
        *,
        spec: StreamSpec,
        reader: int = 0,
        timeout_s: float = 120.0,
        abort: Abort | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._client = DataClient(
            source, spec=spec, reader=reader, timeout_s=timeout_s, abort=abort, copy=False
        )
        try:
            self._stages = (
                [_Stage(spec) for _ in range(_NUM_STAGES)] if self.device.type == "cuda" else []
            )
        except BaseException:
            self._client.close()
            raise
        self._turn = 0

    @property
    def spec(self) -> StreamSpec:
        """What this client reads."""
        return self._client.spec

    @property
    def fingerprint(self) -> str:
        """Like ``DataClient.fingerprint``."""
        return self._client.fingerprint

    @property
    def next_sample(self) -> int:
        """Like ``DataClient.next_sample``."""
        return self._client.next_sample

    def next(self, abort: Abort | None = None) -> TorchBatch:
        """The next batch; raises as ``DataClient.next``."""
        return self._to_torch(self._client.next(abort))

    def __iter__(self) -> Iterator[TorchBatch]:
        return self

    def __next__(self) -> TorchBatch:
        return self._to_torch(next(self._client))

    def close(self) -> None:
        """Release everything; may be repeated."""
        self._client.close()

    def __enter__(self) -> TorchDataClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _to_torch(self, batch: Batch) -> TorchBatch:
        if not self._stages:
            # astype copies: torch has no read-only tensors, and a peer reads the same slot.
            tokens, labels = (
                torch.from_numpy(part.astype(np.int64)) for part in (batch.tokens, batch.labels)
            )
            return TorchBatch(
                tokens, labels, torch.from_numpy(batch.mask.astype(np.bool_)), batch.sample
            )
        stage = self._stages[self._turn]
        self._turn = (self._turn + 1) % _NUM_STAGES
        tokens, labels, mask = stage.send(batch, self.device)
        return TorchBatch(tokens, labels, mask, batch.sample)


class _Stage:
    """Page-locked memory for one batch, and the event after which it may be overwritten."""

    def __init__(self, spec: StreamSpec) -> None:
        shape = (spec.micro_batch_size, spec.seq_len)
        self._words = torch.empty((2, *shape), dtype=torch.int32, pin_memory=True)
        self._mask = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(
        self, batch: Batch, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._copied.synchronize()  # at once, unless the GPU is two batches behind
        words, mask = self._words.numpy(), self._mask.numpy()
        words[0], words[1], mask[...] = batch.tokens, batch.labels, batch.mask
        sent = self._words.to(device, non_blocking=True)
        sent_mask = self._mask.to(device, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(device))
        tokens, labels = sent.to(torch.int64).unbind(0)
        return tokens, labels, sent_mask.to(torch.bool)
