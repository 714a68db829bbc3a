"""Builds a chunk of the GPT: its parameters, named as in checkpoints, and the layers on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from headway.trainer.config import ModelConfig
from headway.trainer.model.attention import Attention
from headway.trainer.model.block import Block, ParallelBlock, RecomputedBlock, SerialBlock
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.embedding import Embedding
from headway.trainer.model.head import Head
from headway.trainer.model.kernels import Kernels, kernels
from headway.trainer.model.layers import Gelu, LayerNorm, Rotary
from headway.trainer.model.linear import ColumnLinear, RowLinear, RowPair
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import JoinedParameter, Parameter, ParamSpec, Precision


@dataclass(frozen=True)
class Recompute:
    """Which activations are made again in the backward: ``selective`` those of norms, GELU and
    attention, ``full`` whole layers; ``layers`` limits it to those, empty means all."""

    mode: str = "none"
    layers: tuple[int, ...] = ()

    def of(self, layer: int) -> str:
        """The mode of one layer."""
        return self.mode if not self.layers or layer in self.layers else "none"


def build_chunk(
    model: ModelConfig,
    *,
    layers: range,
    is_first: bool,
    is_last: bool,
    tp: TensorParallel,
    precision: Precision,
    device: torch.device | str = "cpu",
    recompute: Recompute = Recompute(),
    compile_kernels: bool = False,
) -> Chunk:
    """Layers ``layers`` of ``model``, with the embedding if first and the head if last."""
    device = torch.device(device)
    make = _Builder(model, tp, kernels(device, compile_each=compile_kernels))
    embedding = make.embedding() if is_first else None
    blocks = [make.block(index, recompute.of(index)) for index in layers]
    head = make.head() if is_last else None
    return Chunk(
        model,
        embedding=embedding,
        blocks=blocks,
        head=head,
        rotary=Rotary(
            model.head_dim, model.seq_len, model.rope_theta, precision.master_dtype, device
        ),
        parameters=make.parameters,
        joined=make.joined,
        tp=tp,
        precision=precision,
        device=device,
    )


class _Builder:
    """Creates layers and collects their parameters in the order of the flat buffers."""

    def __init__(self, model: ModelConfig, tp: TensorParallel, found: Kernels) -> None:
        self.model, self.tp, self.kernels = model, tp, found
        self.parameters: dict[str, Parameter] = {}
        self.joined: list[JoinedParameter] = []

    def embedding(self) -> Embedding:
        return Embedding(
            self._matrix("embedding.weight", self.model.vocab_size, self.model.hidden, 0), self.tp
        )

    def head(self) -> Head:
        weight = self._matrix("head.weight", self.model.vocab_size, self.model.hidden, 0)
        return Head(self._norm("final_norm"), weight, self.tp, self.kernels)

    def block(self, index: int, recompute: str) -> Block:
        make = self._parallel if self.model.block == "parallel" else self._serial
        block = make(f"layers.{index}", recompute == "selective")
        return RecomputedBlock(block) if recompute == "full" else block

    def _serial(self, name: str, lean: bool) -> Block:
        qkv, up, out, down = self._matrices(name)
        return SerialBlock(
            self._norm(f"{name}.norm1"),
            ColumnLinear(qkv, self.tp),
            self._attention(lean),
            RowLinear(out, self.tp),
            self._norm(f"{name}.norm2"),
            ColumnLinear(up, self.tp),
            Gelu(self.kernels),
            RowLinear(down, self.tp),
            lean=lean,
        )

    def _parallel(self, name: str, lean: bool) -> Block:
        qkv, up, out, down = self._matrices(name)
        wide = JoinedParameter((qkv, up))
        self.joined.append(wide)
        return ParallelBlock(
            self._norm(f"{name}.norm"),
            ColumnLinear(wide, self.tp),
            self._attention(lean),
            Gelu(self.kernels),
            RowPair(out, down, self.tp),
            qkv_width=qkv.spec.shape[0],
            lean=lean,
        )

    def _attention(self, lean: bool) -> Attention:
        return Attention(self.model.head_dim, self.kernels, recompute=lean)

    def _matrices(self, name: str) -> tuple[Parameter, Parameter, Parameter, Parameter]:
        """qkv, up, out and down; the first two are neighbours in memory, see JoinedParameter."""
        model = self.model
        # The two maps that write to the residual stream start smaller, so that its variance does
        # not grow with depth (Radford et al., GPT-2, section 2.3).
        narrow = model.init_std / math.sqrt(2 * model.layers)
        return (
            self._matrix(
                f"{name}.attention.qkv.weight", 3 * model.hidden, model.hidden, 0, joins_next=True
            ),
            self._matrix(f"{name}.mlp.up.weight", model.ffn_width, model.hidden, 0),
            self._matrix(f"{name}.attention.out.weight", model.hidden, model.hidden, 1, std=narrow),
            self._matrix(f"{name}.mlp.down.weight", model.hidden, model.ffn_width, 1, std=narrow),
        )

    def _norm(self, name: str) -> LayerNorm:
        weight, bias = self._vector(f"{name}.weight", 1.0), self._vector(f"{name}.bias", 0.0)
        return LayerNorm(weight, bias, self.kernels)

    def _matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        tp_dim: int,
        *,
        std: float | None = None,
        joins_next: bool = False,
    ) -> Parameter:
        return self._add(
            ParamSpec(
                name,
                (rows, columns),
                tp_dim,
                self.tp.rank,
                self.tp.size,
                True,
                init_std=self.model.init_std if std is None else std,
                joins_next=joins_next,
            )
        )

    def _vector(self, name: str, value: float) -> Parameter:
        shape, tp = (self.model.hidden,), self.tp
        return self._add(ParamSpec(name, shape, None, tp.rank, tp.size, False, init_value=value))

    def _add(self, spec: ParamSpec) -> Parameter:
        self.parameters[spec.name] = Parameter(spec)
        return self.parameters[spec.name]
