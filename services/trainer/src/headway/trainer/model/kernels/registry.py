"""One implementation of each small operation for a device, compiled one by one or not.

Each takes and returns tensors, without collectives, autograd or parameters, so that
``train.compile`` can fuse each one alone (``compiled``) and a library's kernel can replace it.
Shapes: S = seq, B = micro-batch, H = local heads, D = head_dim, W = width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from headway.trainer.model.kernels import activations, heads, norms, softmax
from headway.trainer.model.kernels.norms import Three, Two


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation."""

    layer_norm: Callable[..., Three] = norms.layer_norm
    layer_norm_backward: Callable[..., Three] = norms.layer_norm_backward
    rms_norm: Callable[..., Two] = norms.rms_norm
    rms_norm_backward: Callable[..., Two] = norms.rms_norm_backward
    gelu: Callable[[torch.Tensor], torch.Tensor] = activations.gelu
    gelu_backward: Callable[..., torch.Tensor] = activations.gelu_backward
    gelu_tanh: Callable[[torch.Tensor], torch.Tensor] = activations.gelu_tanh
    gelu_tanh_backward: Callable[..., torch.Tensor] = activations.gelu_tanh_backward
    swiglu: Callable[[torch.Tensor], torch.Tensor] = activations.swiglu
    swiglu_backward: Callable[..., torch.Tensor] = activations.swiglu_backward
    split_heads: Callable[..., Three] = heads.split_heads
    join_heads: Callable[..., torch.Tensor] = heads.join_heads
    split_plain: Callable[..., Three] = heads.split_plain
    join_plain: Callable[..., torch.Tensor] = heads.join_plain
    softmax_sums: Callable[..., Two] = softmax.softmax_sums
    softmax_in_place: Callable[..., Two] = softmax.softmax_in_place
    exponentials_in_place: Callable[..., Two] = softmax.exponentials_in_place


_watchers: list[Callable[[], object]] = []


@contextmanager
def watching(watcher: Callable[[], object]) -> Iterator[None]:
    """Call ``watcher`` before each compiled operation in the block.

    Any of them may take seconds to compile.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _watched(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        for watcher in _watchers:
            watcher()
        return operation(*args)

    return call


UNCOMPILED = Kernels(
    join_heads=heads.join_heads_in_parts,
    join_plain=heads.join_plain_in_parts,
)
"""For any device, without a compiler."""
ON_CPU = replace(
    UNCOMPILED,
    layer_norm=norms.layer_norm_on_cpu,
    rms_norm=norms.rms_norm_on_cpu,
    rms_norm_backward=norms.rms_norm_backward_on_cpu,
    split_heads=heads.split_heads_on_cpu,
    join_heads=heads.join_heads_on_cpu,
    softmax_in_place=softmax.softmax_in_place_on_cpu,
)


def kernels(device: torch.device, *, compile_each: bool) -> Kernels:
    """Return the operations for ``device``.

    ``compile_each`` compiles every one for the shapes it meets (``train.compile``), which takes a
    C++ compiler and some seconds at the first step.
    """
    if compile_each:
        # a pool of compiler processes would outlive a worker that is killed
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        chosen = Kernels()
        return Kernels(
            **{
                field.name: _watched(
                    torch.compile(getattr(chosen, field.name), dynamic=False, fullgraph=True)
                )
                for field in fields(Kernels)
            }
        )
    return ON_CPU if device.type == "cpu" else UNCOMPILED
