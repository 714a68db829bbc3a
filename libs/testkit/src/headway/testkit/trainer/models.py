"""Small models for tests: a chunk with its memory, a batch, and a piece of a whole tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from headway.trainer.comm.interface import Comm
from headway.trainer.config import ModelConfig
from headway.trainer.model.chunk import Forward
from headway.trainer.model.gpt import Recompute, build_chunk
from headway.trainer.optim.adamw import AdamW
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import ParamSpec, Precision


def tiny_model(block: str = "serial", init_std: float = 0.3, **changes: int) -> ModelConfig:
    """Return the configuration of a model in which no two dimensions are equal.

    It has two layers, 4 heads of 6, 64 words and 16 tokens. First weights are large, so that every
    part of the model counts.
    """
    shape = {
        "layers": 2,
        "hidden": 24,
        "heads": 4,
        "ffn": 40,
        "vocab_size": 64,
        "seq_len": 16,
        **changes,
    }
    return ModelConfig(block=block, init_std=init_std, **shape)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Batch:
    """Tokens and labels, int64, and the mask, each [micro_batch, seq].

    A fifth of the tokens does not count.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor


def random_batch(model: ModelConfig, micro_batch_size: int = 2, seed: int = 0) -> Batch:
    """A batch drawn from ``seed``."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.vocab_size, (micro_batch_size, model.seq_len + 1), generator=draw)
    mask = torch.rand(micro_batch_size, model.seq_len, generator=draw) > 0.2
    return Batch(tokens[:, :-1], tokens[:, 1:], mask.to(torch.uint8))


class Part:
    """A chunk and its memory, filled with the first weights: dp of one."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        layers: range | None = None,
        comm: Comm | None = None,
        precision: str = "fp64",
        seed: int = 1,
        recompute: Recompute = Recompute(),  # noqa: B008 - frozen
        pieces: int = 1,
        compile_kernels: bool = False,
        device: str = "cpu",
    ) -> None:
        layers = range(model.layers) if layers is None else layers
        self.precision = Precision.of(precision)
        self.chunk = build_chunk(
            model,
            layers=layers,
            is_first=layers.start == 0,
            is_last=layers.stop == model.layers,
            tp=TensorParallel(comm, pieces=pieces),
            precision=self.precision,
            recompute=recompute,
            compile_kernels=compile_kernels,
            device=device,
        )
        self.flat = FlatChunk(
            self.chunk.buckets[0].params,
            dp_rank=0,
            dp_size=1,
            precision=self.precision,
            moments=AdamW.moments,
            device=device,
        )
        self.chunk.bind(self.flat)
        self.flat.load_master_from_init(seed)
        self.flat.cast_shard_to_params()

    def run(self, batch: Batch, loss_scale: float = 1.0) -> float:
        """Forward and backward of a chunk that is first and last; the loss sum."""
        fwd = self.forward(batch, loss_scale)
        self.chunk.backward(fwd)
        return fwd.output.item()

    def forward(self, batch: Batch, loss_scale: float = 1.0) -> Forward:
        """Forward of a chunk that is first and last."""
        device = self.chunk.device
        tokens, labels, mask = (t.to(device) for t in (batch.tokens, batch.labels, batch.mask))
        return self.chunk.forward(tokens, labels, mask, loss_scale=loss_scale)

    def grads(self) -> dict[str, torch.Tensor]:
        """Copies of the local gradients by name."""
        return {
            spec.name: self.flat.views(spec.name)[1].clone()
            for spec in self.chunk.buckets[0].params
        }


def grad_of(part: Part, spec: ParamSpec) -> torch.Tensor:
    """The gradient of what a spec of ``part`` stands for, in its local shape."""
    place = next(place for place in part.flat.placed if place.spec is spec)
    return part.flat.grads[place.start : place.stop].view(spec.shape)


def cut(whole: torch.Tensor, spec: ParamSpec) -> torch.Tensor:
    """The local piece of a whole tensor."""
    if spec.tp_dim is not None:
        whole = whole.chunk(spec.tp_size, spec.tp_dim)[spec.tp_rank]
    return whole if spec.rows is None else whole[slice(*spec.rows)]
