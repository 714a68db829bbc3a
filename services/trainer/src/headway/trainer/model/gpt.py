"""Builds a chunk of the decoder: parameters, named as in checkpoints, and the layers on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from headway.trainer.config import ModelConfig
from headway.trainer.config.architecture import Architecture
from headway.trainer.model.attention import Attention, HeadNorms
from headway.trainer.model.block import (
    Block,
    ParallelBlock,
    RecomputedBlock,
    SerialBlock,
    TwoNormBlock,
)
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.embedding import Embedding
from headway.trainer.model.head import Head
from headway.trainer.model.kernels import Kernels, kernels
from headway.trainer.model.layers import Activation, LayerNorm, Norm, RmsNorm
from headway.trainer.model.linear import ColumnLinear, RowLinear, RowPair
from headway.trainer.model.own_block import OwnBlock
from headway.trainer.model.positions import Places
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import JoinedParameter, Parameter, ParamSpec, Precision


@dataclass(frozen=True)
class Recompute:
    """Which activations are made again in the backward: ``selective`` those of norms, activation
    and attention, ``full`` whole layers; ``layers`` limits it to those, empty means all."""

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
    table: Parameter | None = None,
) -> Chunk:
    """Layers ``layers`` of ``model``, with the embedding if first and the head if last.

    ``table``: the embedding's, for the head of a tied model that is not in the first chunk.

    Raises:
        RefusedError: the user's own block cannot be used.
    """
    device = torch.device(device)
    make = _Builder(model.architecture, tp, kernels(device, compile_each=compile_kernels), device)
    embedding = make.embedding() if is_first else None
    blocks = [make.block(index, recompute.of(index)) for index in layers]
    head = make.head(embedding.weight if embedding is not None else table) if is_last else None
    return Chunk(
        model.architecture,
        embedding=embedding,
        blocks=blocks,
        head=head,
        places=Places(model.architecture, precision.master_dtype, device),
        parameters=make.parameters,
        joined=make.joined,
        borrowed=make.borrowed,
        tp=tp,
        precision=precision,
        device=device,
    )


class _Builder:
    """Creates layers and collects their parameters in the order of the flat buffers."""

    def __init__(
        self, model: Architecture, tp: TensorParallel, found: Kernels, device: torch.device
    ) -> None:
        self.model, self.tp, self.kernels, self.device = model, tp, found, device
        self.parameters: dict[str, Parameter] = {}
        self.joined: list[JoinedParameter] = []
        self.borrowed: Parameter | None = None

    def embedding(self) -> Embedding:
        model = self.model
        table = self._matrix("embedding.weight", model.padded_vocab_size, model.hidden)
        positions = None
        if model.positions == "learned":
            positions = self._matrix("embedding.positions", model.seq_len, model.hidden, None)
        return Embedding(table, self.tp, positions)

    def head(self, table: Parameter | None) -> Head:
        model, norm = self.model, self._norm("final_norm")
        if not model.tied:
            table = self._matrix("head.weight", model.padded_vocab_size, model.hidden)
        elif table is None:  # of another rank: see ``parallel.tied``
            shape = (model.padded_vocab_size, model.hidden)
            table = Parameter(ParamSpec("head.weight", shape, 0, self.tp.rank, self.tp.size, True))
            self.borrowed = table
        return Head(norm, table, self.tp, self.kernels, vocab_size=model.vocab_size)

    def block(self, index: int, recompute: str) -> Block:
        name, lean = f"layers.{index}", recompute == "selective"
        block: Block
        if self.model.own_block is not None:
            block = OwnBlock.of(self.model, index, self._add, self.device)
        elif self.model.block == "serial":
            block = self._serial(name, index, lean)
        elif self.model.norms == 2:
            block = self._two_norms(name, index, lean)
        else:
            block = self._parallel(name, index, lean)
        return RecomputedBlock(block) if recompute == "full" else block

    def _serial(self, name: str, index: int, lean: bool) -> Block:
        maps = self._maps(name)
        return SerialBlock(
            self._norm(f"{name}.norm1"),
            self._column(maps.qkv),
            self._attention(name, index, lean),
            RowLinear(maps.out.weight, self.tp, maps.out.bias),
            self._norm(f"{name}.norm2"),
            self._column(*maps.wide),
            Activation(self.model.mlp, self.kernels),
            RowLinear(maps.down.weight, self.tp, maps.down.bias),
            lean=lean,
        )

    def _parallel(self, name: str, index: int, lean: bool) -> Block:
        maps = self._maps(name)
        return ParallelBlock(
            self._norm(f"{name}.norm"),
            self._column(maps.qkv, *maps.wide),
            self._attention(name, index, lean),
            Activation(self.model.mlp, self.kernels),
            self._pair(maps),
            qkv_width=maps.qkv.weight.spec.shape[0],
            lean=lean,
        )

    def _two_norms(self, name: str, index: int, lean: bool) -> Block:
        maps = self._maps(name)
        return TwoNormBlock(
            self._norm(f"{name}.norm1"),
            self._column(maps.qkv),
            self._attention(name, index, lean),
            self._norm(f"{name}.norm2"),
            self._column(*maps.wide),
            Activation(self.model.mlp, self.kernels),
            self._pair(maps),
            lean=lean,
        )

    def _attention(self, name: str, index: int, lean: bool) -> Attention:
        model, norms = self.model, None
        if model.qk_norm:
            prefix = f"{name}.attention"
            queries = self._vector(f"{prefix}.q_norm.weight", model.head_dim, 1.0)
            keys = self._vector(f"{prefix}.k_norm.weight", model.head_dim, 1.0)
            norms = HeadNorms(queries, keys, model.norm_eps)
        return Attention(
            model.head_dim,
            model.queries_per_kv,
            self.kernels,
            window=model.window_of(index),
            norms=norms,
            recompute=lean,
        )

    def _maps(self, name: str) -> _Maps:
        """The linear maps of a layer. Those into the layer are neighbours in memory, so that any of
        them can be one product; see JoinedParameter."""
        model = self.model
        # The two maps that write to the residual stream start smaller, so that its variance does
        # not grow with depth (Radford et al., GPT-2, section 2.3).
        narrow = model.init_std / math.sqrt(2 * model.layers)
        attention, mlp = f"{name}.attention", f"{name}.mlp"
        inward = {f"{attention}.qkv": model.qkv_width}
        if model.is_gated:
            inward[f"{mlp}.gate"] = model.ffn
        inward[f"{mlp}.up"] = model.ffn
        last = f"{mlp}.up"
        weights = {
            key: self._matrix(f"{key}.weight", rows, model.hidden, joins_next=key != last)
            for key, rows in inward.items()
        }
        out = self._matrix(f"{attention}.out.weight", model.hidden, model.heads_width, 1, narrow)
        down = self._matrix(f"{mlp}.down.weight", model.hidden, model.ffn, 1, narrow)
        has_all = model.bias == "all"
        with_bias = [key for key in inward if has_all or (model.bias != "none" and "qkv" in key)]
        biases = {
            key: self._vector(
                f"{key}.bias",
                inward[key],
                0.0,
                tp_dim=0,
                joins_next=len(with_bias) > 1 and key != last,
            )
            for key in with_bias
        }
        maps = [_Map(weights[key], biases.get(key)) for key in inward]
        outward = [
            _Map(weight, self._vector(f"{key}.bias", model.hidden, 0.0) if has_all else None)
            for key, weight in ((f"{attention}.out", out), (f"{mlp}.down", down))
        ]
        return _Maps(maps[0], tuple(maps[1:]), *outward)

    def _column(self, *maps: _Map) -> ColumnLinear:
        """One product for all ``maps``, which are neighbours."""
        weight = self._join([one.weight for one in maps])
        biases = [one.bias for one in maps if one.bias is not None]
        return ColumnLinear(weight, self.tp, self._join(biases) if biases else None)

    def _join(self, parts: list[Parameter]) -> Parameter:
        if len(parts) == 1:
            return parts[0]
        self.joined.append(JoinedParameter(tuple(parts)))
        return self.joined[-1]

    def _pair(self, maps: _Maps) -> RowPair:
        biases = tuple(one.bias for one in (maps.out, maps.down) if one.bias is not None)
        return RowPair(maps.out.weight, maps.down.weight, self.tp, biases)

    def _norm(self, name: str) -> Norm:
        model, weight = self.model, self._vector(f"{name}.weight", self.model.hidden, 1.0)
        if model.norm == "rmsnorm":
            return RmsNorm(weight, self.kernels, model.norm_eps)
        bias = self._vector(f"{name}.bias", model.hidden, 0.0)
        return LayerNorm(weight, bias, self.kernels, model.norm_eps)

    def _matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        tp_dim: int | None = 0,
        std: float | None = None,
        *,
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

    def _vector(
        self,
        name: str,
        width: int,
        value: float,
        *,
        tp_dim: int | None = None,
        joins_next: bool = False,
    ) -> Parameter:
        return self._add(
            ParamSpec(
                name,
                (width,),
                tp_dim,
                self.tp.rank,
                self.tp.size,
                False,
                init_value=value,
                joins_next=joins_next,
            )
        )

    def _add(self, spec: ParamSpec) -> Parameter:
        self.parameters[spec.name] = Parameter(spec)
        return self.parameters[spec.name]


@dataclass(frozen=True)
class _Map:
    """The parameters of one linear map."""

    weight: Parameter
    bias: Parameter | None


@dataclass(frozen=True)
class _Maps:
    """Those of a layer; ``wide`` are the gate, if there is one, and up."""

    qkv: _Map
    wide: tuple[_Map, ...]
    out: _Map
    down: _Map
