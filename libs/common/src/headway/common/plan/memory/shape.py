"""What the memory of a rank depends on, and the sizes of the tensors that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid
from headway.common.plan.model_shape import ModelShape
from headway.common.plan.stages import stage_layers

PARAM_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
MASTER_BYTES = {"bf16": 4, "fp32": 4, "fp64": 8}
ALIGNMENT = 64
"""In elements: where parameters start in their flat buffer, as in ``trainer.state.flat``."""


@dataclass(frozen=True)
class MemoryShape:
    """Everything of a run that decides how many bytes its ranks use.

    ``recompute`` is ``none``, ``selective`` or ``full`` and applies to ``recompute_layers``, all if
    that is empty.
    ``moments`` are the optimizer's values for each parameter.

    Raises:
        ConfigError: an unknown type or mode of recomputation.
    """

    model: ModelShape
    grid: Grid
    schedule: str
    num_micro_batches: int
    micro_batch_size: int
    dtype: str
    device: str = "cpu"
    recompute: str = "none"
    recompute_layers: tuple[int, ...] = ()
    moments: int = 2
    native_bf16: bool = True
    """Whether the CPU multiplies bf16 without converting it."""
    reduces_in_bf16: bool = False
    """Whether gradients are summed over replicas in bf16."""
    tp_keeps_whole: bool = False
    """Whether layers keep what they gather over tp, instead of their piece of it."""
    snapshot_slots: int = 3
    stages: tuple[range, ...] = ()
    """The layers of each virtual stage; empty means as equal as possible."""

    def __post_init__(self) -> None:
        if self.dtype not in PARAM_BYTES:
            raise ConfigError(
                f"unknown compute type {self.dtype!r}",
                remedy=f"use one of {', '.join(PARAM_BYTES)}",
            )
        if self.recompute not in ("none", "selective", "full"):
            raise ConfigError(
                f"unknown mode of recomputation {self.recompute!r}",
                remedy="use none, selective or full",
            )

    @property
    def is_parallel_block(self) -> bool:
        """Whether attention and MLP of a layer share one norm."""
        return self.model.norms == 1

    @property
    def heads(self) -> int:
        """Heads of queries."""
        return self.model.heads

    @property
    def on_gpu(self) -> bool:
        """Whether ranks compute on a GPU."""
        return self.device == "gpu"

    def recompute_of(self, layer: int) -> str:
        """The mode of one layer."""
        chosen = not self.recompute_layers or layer in self.recompute_layers
        return self.recompute if chosen else "none"

    def layers_of(self, stage: int) -> range:
        """Layers of a virtual stage."""
        num_stages = self.grid.pp * self.grid.vp
        given = self.stages if len(self.stages) == num_stages else ()  # of this grid
        return (given or stage_layers(self.model.layers, num_stages))[stage]

    @property
    def reduced(self) -> int:
        """Bytes of one gradient as it travels between replicas."""
        return PARAM_BYTES["bf16"] if self.reduces_in_bf16 else self.sizes.master

    @cached_property
    def sizes(self) -> Sizes:
        """The bytes of one rank's tensors."""
        return Sizes.of(self)

    def numel(self, stage: int) -> int:
        """Elements of a virtual stage's flat buffer on one rank, padding included."""
        used = sum(_aligned(n) for part in self._parameters(stage) for n in part)
        unit = ALIGNMENT * self.grid.dp
        return -(-used // unit) * unit

    def replicated_numel(self, stage: int) -> int:
        """Elements of ``numel`` that every tp rank holds: norms, outer biases, positions."""
        _, whole = self._parameters(stage)
        return sum(_aligned(n) for n in whole[:-1]) + sum(whole[-1:])

    def _parameters(self, stage: int) -> tuple[list[int], list[int]]:
        """Elements of each parameter on one rank: those that tp splits, and the others."""
        model, tp = self.model, self.grid.tp
        last = self.grid.pp * self.grid.vp - 1
        num_tables = (stage == 0) + (stage == last and not model.tied)
        layers = len(self.layers_of(stage))
        norms = layers * model.norms + (stage == last)
        split_bias, whole_bias = model.bias_widths(tp)
        split = [model.table_rows * model.hidden // tp] * num_tables
        split += [*model.layer_matrices(tp), split_bias] * layers
        whole = [model.seq_len * model.hidden] * (model.learned_positions and stage == 0)
        whole += [model.heads_width // model.heads] * (2 * model.qk_norm * layers)
        whole += [model.hidden] * (whole_bias // model.hidden * layers)
        whole += [model.hidden] * (norms * model.norm_vectors)
        return split, whole


@dataclass(frozen=True)
class Sizes:
    """Bytes of one rank's tensors for one micro-batch of T tokens.

    They are in the compute type unless stated otherwise. tp cuts the sequence of what is between
    layers, and the width inside them.
    """

    param: int
    """Bytes of one element in the compute type."""
    master: int
    """Bytes of one element in the type of sums and moments."""
    piece: int
    """[T / tp, hidden]: what travels between layers and stages."""
    whole: int
    """[T, hidden]: gathered over tp."""
    qkv: int
    qk: int
    """Queries and keys of ``qkv``."""
    heads: int
    wide: int
    """[T, ffn / tp], twice with a gate."""
    inner: int
    """[T, ffn / tp]."""
    statistics: int
    """Means and deviations of one norm, in the master type."""
    softmax: int
    """Logarithms of sums that the attention kernel keeps, in fp32."""
    rope: int
    """Rotation factors that the CPU's kernel makes for one call."""
    tokens: int
    """T."""

    @classmethod
    def of(cls, shape: MemoryShape) -> Sizes:
        """The sizes for ``shape``."""
        model, tp = shape.model, shape.grid.tp
        param, master = PARAM_BYTES[shape.dtype], MASTER_BYTES[shape.dtype]
        tokens = model.seq_len * shape.micro_batch_size
        qkv, heads = model.qkv_width_on(tp), model.heads_width // tp
        return cls(
            param=param,
            master=master,
            piece=tokens * model.hidden // tp * param,
            whole=tokens * model.hidden * param,
            qkv=tokens * qkv * param,
            qk=tokens * (qkv + heads) // 2 * param,
            heads=tokens * heads * param,
            wide=tokens * model.wide_width // tp * param,
            inner=tokens * model.ffn // tp * param,
            statistics=2 * (tokens // tp) * master,
            softmax=tokens * shape.heads // tp * max(4, param),
            rope=model.seq_len
            * (model.heads // max(model.kv_heads or model.heads, tp) + 2)
            * (model.heads_width // model.heads)
            * master,
            tokens=tokens,
        )


def _aligned(numel: int) -> int:
    return math.ceil(numel / ALIGNMENT) * ALIGNMENT
