"""Counts the bytes that a layer moves beside its matrix products, on meta tensors.

Each operation reads its inputs and writes its outputs once. With ``compiled`` each entry of
``Kernels`` is one operation, as a compiler would make it; without, it is as many as torch calls.
Attention's fused kernel counts its inputs and output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch
from headway.trainer.config import ModelConfig
from headway.trainer.model import gpt
from headway.trainer.model.gpt import build_chunk
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.kernels import attention as attention_kernel
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import Precision
from torch.utils._python_dispatch import TorchDispatchMode

FREE = {
    *("view", "_unsafe_view", "view_as_real", "reshape", "_reshape_alias", "as_strided", "alias"),
    *("t", "permute", "transpose", "slice", "select", "unsqueeze", "squeeze", "expand", "detach"),
    *("split", "split_with_sizes", "chunk", "unbind", "lift_fresh"),
    *("empty", "empty_strided", "empty_like", "new_empty", "zeros", "new_zeros"),
}
"""Operations that return a view or memory that nothing has written yet."""
SPARSE = {"gather", "index_put_"}
"""Operations that touch a few elements of their largest argument."""
PRODUCTS = {"mm", "addmm", "bmm", "addmm_", "linear", "matmul"}
SEQ, BATCH, LAYERS = 2048, 4, 2


def size(x: object) -> int:
    """Bytes of the tensors in ``x``."""
    if isinstance(x, torch.Tensor):
        return x.numel() * x.element_size()
    return sum(map(size, x)) if isinstance(x, tuple | list) else 0


class Traffic(TorchDispatchMode):
    """Bytes and calls of each operation in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: Counter[str] = Counter()
        self._inside = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``op`` and count it."""
        found = op(*args, **(kwargs or {}))
        name = op._schema.name.split("::")[1]
        if not self._inside and name not in FREE | SPARSE:
            self.nbytes[name] += size(found) + size(args) + size(list((kwargs or {}).values()))
        return found

    def fused(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """``operation``, counted as one."""

        def call(*args: Any) -> Any:
            self._inside += 1
            try:
                found = operation(*args)
            finally:
                self._inside -= 1
            only_written = size(found) if any(arg is found for arg in args) else 0
            overwritten = size(args[0]) if name.endswith("in_place") else 0
            self.nbytes[name] += size(args) + size(found) - only_written + overwritten
            return found

        return call

    def of(self, kernels: Kernels) -> Kernels:
        """``kernels``, each counted as one operation."""
        names = [field.name for field in fields(Kernels)]
        return Kernels(**{name: self.fused(name, getattr(kernels, name)) for name in names})

    @property
    def beside_products(self) -> int:
        """Bytes of everything but matrix products."""
        return sum(nbytes for name, nbytes in self.nbytes.items() if name not in PRODUCTS)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors))


@contextmanager
def _replaced(traffic: Traffic, *, compiled: bool) -> Iterator[None]:
    plain = Kernels()
    fused = traffic.of(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_kernel, "_fused", lambda q, k, v, _: _Attention.apply(q, k, v))
        patch.setattr(gpt, "kernels", lambda *_, **__: fused if compiled else plain)
        yield


def of_a_layer(*, compiled: bool, **model: Any) -> tuple[float, Counter[str]]:
    """Bytes for each token, layer and element of the width, and those of each operation."""
    config = ModelConfig(layers=LAYERS, vocab_size=50304, seq_len=SEQ, **model)
    precision, device = Precision.of("bf16"), torch.device("meta")
    traffic = Traffic()
    with _replaced(traffic, compiled=compiled):
        chunk = build_chunk(
            config,
            layers=range(LAYERS),
            is_first=False,
            is_last=False,
            tp=TensorParallel(),
            precision=precision,
            device=device,
        )
        chunk.bind(
            *(
                FlatChunk(bucket.params, dp_rank=0, dp_size=1, precision=precision, device=device)
                for bucket in chunk.buckets
            )
        )
        x = torch.empty(SEQ, BATCH, config.hidden, dtype=torch.bfloat16, device=device)
        with traffic:
            chunk.backward(chunk.forward(x), torch.empty_like(x))
    unit = SEQ * BATCH * LAYERS * config.hidden
    each = Counter({name: round(nbytes / unit, 2) for name, nbytes in traffic.nbytes.items()})
    return traffic.beside_products / unit, each
