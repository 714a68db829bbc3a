"""Deterministic batches without files: sample i of a seed is the same on every grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import DataFactory, Split


@dataclass(frozen=True)
class SyntheticBatch:
    """See ``batches.NumpyBatch``."""

    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    sample: int


class SyntheticSource:
    """Random tokens in which each follows from the one before, to give something to learn.

    Training samples in ``spoiled`` have labels that never follow, one of which counts per sequence:
    a spike of loss and norm. If ``counted`` is given, only the last ``counted[i % len(counted)]``
    labels of sequence i count.
    """

    def __init__(
        self,
        config: RunConfig,
        dp_rank: int,
        split: Split,
        start_sample: int,
        spoiled: range = range(0),
        counted: Sequence[int] = (),
    ) -> None:
        self._config, self._dp_rank, self._split = config, dp_rank, split
        self._start, self._taken, self._spoiled = start_sample, 0, spoiled
        self._counted = counted

    @property
    def fingerprint(self) -> str:
        """A text that names all that a sample depends on."""
        model = self._config.model
        return f"{self._config.data.seed}-{self._split}-{model.vocab_size}-{model.seq_len}"

    def next(self, abort: Callable[[], bool] | None = None) -> SyntheticBatch:
        """The next micro-batch; a tenth of its labels does not count."""
        del abort
        train = self._config.train
        size, dp = train.micro_batch_size, self._config.parallel.dp
        batch_size = train.global_batch_size
        step, local = divmod(self._taken, self._config.micro_batches_of(batch_size, self._dp_rank))
        sample = self._start + step * batch_size + (local * dp + self._dp_rank) * size
        if self._split == "validation":
            sample %= train.eval_batches * train.global_batch_size
        self._taken += 1
        rows = np.stack([self._row(sample + i) for i in range(size)])
        tokens, labels = rows[:, :-1], rows[:, 1:]
        mask = (tokens % 10 != 3).astype(np.uint8)
        for i, row in enumerate(mask if self._counted else ()):
            count = self._counted[(sample + i) % len(self._counted)]
            row[:] = np.arange(len(row)) >= len(row) - count
        if self._split == "train" and sample in self._spoiled:
            labels = (tokens + self._config.model.vocab_size // 2) % self._config.model.vocab_size
            mask[:, 1:], mask[:, :1] = 0, 1
        return SyntheticBatch(tokens, labels, mask, sample)

    def close(self) -> None:
        """Nothing to give up."""

    def _row(self, sample: int) -> npt.NDArray[np.int32]:
        model = self._config.model
        split = 0 if self._split == "train" else 1
        draw = np.random.Generator(
            np.random.Philox(key=[self._config.data.seed * 2 + split, sample])
        )
        noise = draw.integers(0, 3, model.seq_len + 1)
        return ((draw.integers(model.vocab_size) + np.cumsum(noise + 1)) % model.vocab_size).astype(
            np.int32
        )


def synthetic(
    config: RunConfig, rank: int, spoiled: range = range(0), counted: Sequence[int] = ()
) -> DataFactory:
    """The data factory of ``rank``."""
    dp_rank = config.parallel.grid.coordinates(rank).dp

    def make(split: Split, start_sample: int, generation: int, fingerprint: str) -> SyntheticSource:
        del generation, fingerprint
        return SyntheticSource(config, dp_rank, split, start_sample, spoiled, counted)

    return make
