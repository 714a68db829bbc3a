"""Tensors instead of arrays: the same numbers, the caller's own memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_hold_the_clients_numbers_and_stay_valid(corpus: Path, device: str) -> None:
    from headway.dataloader.torch_client import TorchDataClient

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=3)
    with (
        DataClient(None, spec=spec) as arrays,
        TorchDataClient(None, spec=spec, device=device) as tensors,
    ):
        kept = [tensors.next() for _ in range(6)]
        for found in kept:
            expected = arrays.next()
            assert found.sample == expected.sample and found.tokens.device.type == device
            assert (found.tokens.dtype, found.labels.dtype, found.mask.dtype) == (
                torch.int64,
                torch.int64,
                torch.bool,
            )
            assert torch.equal(
                found.tokens.cpu(), torch.from_numpy(expected.tokens.astype("int64"))
            )
            assert torch.equal(
                found.labels.cpu(), torch.from_numpy(expected.labels.astype("int64"))
            )
            assert bool(found.mask.all())
