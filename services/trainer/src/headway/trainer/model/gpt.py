"""Builds a chunk of the decoder: parameters, named as in checkpoints, and the layers on them."""

from __future__ import annotations

from bisect import bisect_right
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
from headway.trainer.model.buckets import cut
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.embedding import Embedding
from headway.trainer.model.head import Head
from headway.trainer.model.kernels import Kernels, kernels
from headway.trainer.model.layers import Activation
from headway.trainer.model.own_block import OwnBlock
from headway.trainer.model.parameters import Parameters
from headway.trainer.model.positions import Places
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter, ParamSpec, Precision


@dataclass(frozen=True)
class Recompute:
    """Which activations are made again in the backward.

    With ``selective`` those of norms, activation and attention, with ``full`` whole layers.
    ``layers`` limits this to those layers; empty means all.
    """

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
    num_buckets: int = 1,
) -> Chunk:
    """Layers ``layers`` of ``model``, with the embedding if first and the head if last.

    They are cut into ``num_buckets`` buckets, or into as many as there are layers, if those are
    fewer. ``table``: the embedding's, for the head of a tied model that is not in the first chunk.

    Raises:
        RefusedError: the user's own block cannot be used.
    """
    device = torch.device(device)
    make = _Builder(
        model.architecture,
        tp,
        kernels(device, compile_each=compile_kernels),
        precision=precision,
        device=device,
    )
    embedding = make.embedding() if is_first else None
    blocks, end_of_block = [], []
    for index in layers:
        blocks.append(make.block(index, recompute.of(index)))
        end_of_block.append(len(make.params.found))
    head = make.head(embedding.weight if embedding is not None else table) if is_last else None
    block_of = {
        spec: min(bisect_right(end_of_block, place), max(0, len(blocks) - 1))
        for place, parameter in enumerate(make.params.found.values())
        for spec in parameter.specs
    }
    return Chunk(
        model.architecture,
        embedding=embedding,
        blocks=blocks,
        head=head,
        places=Places(model.architecture, precision.master_dtype, device),
        parameters=make.params.found,
        joined=make.params.joined,
        buckets=cut(block_of, len(blocks), num_buckets),
        borrowed=make.borrowed,
        tp=tp,
        precision=precision,
        device=device,
    )


class _Builder:
    """Creates layers; their parameters come in the order of the flat buffers."""

    def __init__(
        self,
        model: Architecture,
        tp: TensorParallel,
        found: Kernels,
        *,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.model, self.tp, self.kernels = model, tp, found
        self.precision, self.device = precision, device
        self.params = Parameters(model, tp, found)
        self.borrowed: Parameter | None = None

    def embedding(self) -> Embedding:
        model = self.model
        table = self.params.matrix("embedding.weight", model.padded_vocab_size, model.hidden)
        positions = None
        if model.positions == "learned":
            positions = self.params.matrix("embedding.positions", model.seq_len, model.hidden, None)
        return Embedding(table, self.tp, positions)

    def head(self, table: Parameter | None) -> Head:
        model, norm = self.model, self.params.norm("final_norm")
        if not model.tied:
            table = self.params.matrix("head.weight", model.padded_vocab_size, model.hidden)
        elif table is None:  # of another rank: see ``parallel.tied``
            shape = (model.padded_vocab_size, model.hidden)
            table = Parameter(ParamSpec("head.weight", shape, 0, self.tp.rank, self.tp.size, True))
            self.borrowed = table
        return Head(norm, table, self.tp, self.kernels, vocab_size=model.vocab_size)

    def block(self, index: int, recompute: str) -> Block:
        name, recompute_cheap = f"layers.{index}", recompute == "selective"
        block: Block
        if self.model.own_block is not None:
            block = OwnBlock.of(
                self.model, index, self.params.add, precision=self.precision, device=self.device
            )
        elif self.model.block == "serial":
            block = self._serial(name, index, recompute_cheap)
        elif self.model.norms == 2:
            block = self._two_norms(name, index, recompute_cheap)
        else:
            block = self._parallel(name, index, recompute_cheap)
        return RecomputedBlock(block) if recompute == "full" else block

    def _serial(self, name: str, index: int, recompute_cheap: bool) -> Block:
        maps = self.params.maps(name)
        return SerialBlock(
            self.params.norm(f"{name}.norm1"),
            self.params.column(maps.qkv),
            self._attention(name, index, recompute_cheap),
            self.params.row(maps.out),
            self.params.norm(f"{name}.norm2"),
            self.params.column(*maps.wide),
            Activation(self.model.mlp, self.kernels),
            self.params.row(maps.down),
            recompute_cheap=recompute_cheap,
        )

    def _parallel(self, name: str, index: int, recompute_cheap: bool) -> Block:
        maps = self.params.maps(name)
        return ParallelBlock(
            self.params.norm(f"{name}.norm"),
            self.params.column(maps.qkv, *maps.wide),
            self._attention(name, index, recompute_cheap),
            Activation(self.model.mlp, self.kernels),
            self.params.pair(maps),
            qkv_width=maps.qkv.weight.shape[0],
            recompute_cheap=recompute_cheap,
        )

    def _two_norms(self, name: str, index: int, recompute_cheap: bool) -> Block:
        maps = self.params.maps(name)
        return TwoNormBlock(
            self.params.norm(f"{name}.norm1"),
            self.params.column(maps.qkv),
            self._attention(name, index, recompute_cheap),
            self.params.norm(f"{name}.norm2"),
            self.params.column(*maps.wide),
            Activation(self.model.mlp, self.kernels),
            self.params.pair(maps),
            recompute_cheap=recompute_cheap,
        )

    def _attention(self, name: str, index: int, recompute_cheap: bool) -> Attention:
        model, norms = self.model, None
        if model.qk_norm:
            prefix = f"{name}.attention"
            queries = self.params.vector(f"{prefix}.q_norm.weight", model.head_dim, 1.0)
            keys = self.params.vector(f"{prefix}.k_norm.weight", model.head_dim, 1.0)
            norms = HeadNorms(queries, keys, model.norm_eps)
        return Attention(
            model.head_dim,
            model.queries_on(self.tp.size),
            self.kernels,
            window=model.window_of(index),
            norms=norms,
            recompute=recompute_cheap,
        )
