"""What a layer moves through memory beside its products stays what it was counted to be.

In bytes for each token, layer and element of the width, bf16, as on a GPU (docs/engine.md).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.loss import cross_entropy
from headway.trainer.parallel.tensor import TensorParallel

from services.trainer.tests.model import kernel_traffic

GPT = {"hidden": 2048, "heads": 16}
LLAMA = {"hidden": 2048, "heads": 16, "kv_heads": 4, "preset": "llama", "ffn": 5632}


@pytest.mark.parametrize(
    ("model", "most"),
    [(GPT, 100.5), ({**GPT, "block": "parallel"}, 82.5), (LLAMA, 92.5)],
    ids=["serial", "parallel", "llama"],
)
def test_bytes_of_a_layer_with_fused_kernels(model: dict[str, Any], most: float) -> None:
    beside_products, each = kernel_traffic.of_a_layer(compiled=True, **model)
    assert beside_products <= most, each
    assert "cat" not in each
    assert beside_products > most - 10, "less than expected: lower the bound"


@pytest.mark.parametrize("tp_size", [1, 2])
def test_the_loss_reads_and_writes_each_logit_once(tp_size: int) -> None:
    """Once each in the fused kernel, and once more where ranks put their pieces together."""
    traffic = kernel_traffic.Traffic()
    logits = torch.empty(512, 50304, dtype=torch.bfloat16, device="meta")
    vector = torch.empty(512, device="meta")
    tp = TensorParallel(_Pair()) if tp_size == 2 else TensorParallel()
    with traffic:
        cross_entropy(
            logits,
            vector.long(),
            vector,
            tp,
            traffic.of(Kernels()),
            first=0,
            with_grad=True,
        )
    passes = traffic.beside_products / (logits.numel() * 2)
    assert passes == pytest.approx(2 * tp_size, abs=0.2), traffic.nbytes


class _Pair:
    """Two ranks, one of which is not there: collectives only have shapes."""

    size, rank = 2, 0

    def all_gather(self, *_: torch.Tensor) -> _Pair:
        return self

    def wait(self) -> None: ...
