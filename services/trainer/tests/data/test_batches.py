"""Micro-batches: the right ones, on the right stages, in the order the global batch asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from headway.common.config import from_dict
from headway.common.node.ring import RingAbortedError
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.synthetic import SyntheticSource
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchReader, NumpyBatch

CPU = torch.device("cpu")


def _config(dp: int) -> RunConfig:
    return from_dict(RunConfig, small_run("fp32", parallel={"dp": dp}, world_size=dp))


def _never() -> bool:
    return False


class _Swapped:
    """Hands out the second micro-batch first."""

    def __init__(self, source: SyntheticSource) -> None:
        first, second = source.next(), source.next()
        self._batches = [second, first]

    def next(self, abort: Callable[[], bool] | None = None) -> NumpyBatch:
        del abort
        return self._batches.pop(0)

    def close(self) -> None:
        """Nothing to give up."""


@pytest.mark.parametrize("dp", [1, 2, 3, 4])
def test_replicas_share_the_global_batch_by_turns(dp: int) -> None:
    config = _config(dp)
    whole = BatchReader(
        SyntheticSource(_config(1), 0, "train", 0), first=True, last=True, device=CPU
    )
    expected = whole.take(range(0, 16, 2), _never)
    for dp_rank in range(dp):
        source = SyntheticSource(config, dp_rank, "train", 0)
        reader = BatchReader(source, first=True, last=True, device=CPU)
        mine = reader.take(range(2 * dp_rank, 16, 2 * dp), _never)
        assert len(mine) == config.micro_batches_of(16, dp_rank)
        for local, batch in enumerate(mine):
            assert batch.tokens is not None and batch.labels is not None
            assert torch.equal(batch.tokens, expected[local * dp + dp_rank].tokens)  # type: ignore[arg-type]
            assert torch.equal(batch.labels, expected[local * dp + dp_rank].labels)  # type: ignore[arg-type]


def test_two_swapped_micro_batches_are_noticed() -> None:
    reader = BatchReader(
        _Swapped(SyntheticSource(_config(1), 0, "train", 0)), first=True, last=True, device=CPU
    )
    with pytest.raises(RuntimeError, match="micro-batch 0 starts with sample 2, not 0"):
        reader.take([0, 2], _never)


def test_the_first_stage_takes_tokens_and_the_last_labels_and_mask() -> None:
    def take(*, first: bool, last: bool) -> list[bool]:
        source = SyntheticSource(_config(1), 0, "train", 0) if first or last else None
        batch = BatchReader(source, first=first, last=last, device=CPU).take([0], _never)[0]
        return [part is not None for part in (batch.tokens, batch.labels, batch.mask)]

    assert take(first=True, last=False) == [True, False, False]
    assert take(first=False, last=True) == [False, True, True]
    assert take(first=False, last=False) == [False, False, False]


def test_tensors_outlive_the_ring_slot_they_came_from() -> None:
    source = SyntheticSource(_config(1), 0, "train", 0)
    batch = source.next()
    expected = batch.tokens.copy()
    reader = BatchReader(_Swapped(source), first=True, last=True, device=CPU)
    kept = reader._convert(batch)
    batch.tokens[:] = -1
    assert kept.tokens is not None and np.array_equal(kept.tokens.numpy(), expected)


def test_a_wait_for_data_ends_with_the_generation() -> None:
    class Empty:
        def next(self, abort: Callable[[], bool] | None = None) -> NumpyBatch:
            assert abort is not None and abort()
            raise RingAbortedError("fenced")

        def close(self) -> None:
            """Nothing to give up."""

    reader = BatchReader(Empty(), first=True, last=True, device=CPU)
    with pytest.raises(Aborted):
        reader.take([0], lambda: True)
