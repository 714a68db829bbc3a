"""One chunk of the GPT: some layers, with the embedding if it is first and the loss if it is last.

A chunk is independent of pipelines and data parallelism: tensors in, tensors out, gradients
into its flat buffer.
"""

from __future__ import annotations

import math

import torch
from headway.trainer.config import ModelConfig
from headway.trainer.model.attention import Attention
from headway.trainer.model.block import Attend, Block, Mlp, ParallelBlock, SerialBlock
from headway.trainer.model.embedding_head import Embedding, Head
from headway.trainer.model.layers import LayerNorm, Rotary
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import Parameter, ParamSpec, Precision


class Forward:
    """One micro-batch from its forward to its last backward: the output and
    what the backward needs.

    ``output`` is [seq/tp, micro_batch, hidden] in the compute type, or the loss sum, an fp64
    scalar, after the last stage; ``tape`` is None if the forward was not for training.
    """

    __slots__ = ("output", "tape")

    def __init__(self, output: torch.Tensor, tape: Tape | None) -> None:
        self.output, self.tape = output, tape

    def take_output(self) -> torch.Tensor:
        """Take the output, once. No backward needs it, so only the caller keeps it alive."""
        output = self.output
        del self.output
        return output


class Chunk:
    """Layers ``layers`` of ``model`` on one tensor-parallel rank, without memory until ``bind``.

    ``params`` lists its parameters in a fixed order: split ones first, then the replicated ones
    (norms), so that the latter form one segment of the flat buffers.
    """

    def __init__(
        self,
        model: ModelConfig,
        *,
        layers: range,
        is_first: bool,
        is_last: bool,
        tp: TensorParallel,
        precision: Precision,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model, self.layers, self.is_first, self.is_last = model, layers, is_first, is_last
        self.tp, self.precision, self.device = tp, precision, torch.device(device)
        self._parameters: dict[str, Parameter] = {}
        rotary = Rotary(
            model.head_dim, model.seq_len, model.rope_theta, precision.master_dtype, self.device
        )
        attention = Attention(model.head_dim, rotary)
        self.embedding = self._embedding() if is_first else None
        self.blocks: list[Block] = [self._block(f"layers.{index}", attention) for index in layers]
        self.head = self._head() if is_last else None
        specs = [parameter.spec for parameter in self._parameters.values()]
        self.params: list[ParamSpec] = sorted(specs, key=lambda spec: spec.is_replicated)
        self._flat: FlatChunk | None = None

    def bind(self, flat: FlatChunk) -> None:
        """Use parameters and gradients of ``flat``; to be repeated after each ``flat.renew()``."""
        self._flat = flat
        for name, parameter in self._parameters.items():
            parameter.bind(*flat.views(name))

    def activation_shape(self, micro_batch_size: int) -> torch.Size:
        """Shape of the tensors between stages: [seq/tp, micro_batch, hidden]."""
        return torch.Size((self.model.seq_len // self.tp.size, micro_batch_size, self.model.hidden))

    @torch.no_grad()
    def forward(
        self,
        x: torch.Tensor,
        labels: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        train: bool = True,
    ) -> Forward:
        """Run one micro-batch.

        Args:
            x: tokens [micro_batch, seq] of an integer type on the first stage, activations
            otherwise. They are kept, not copied, and must not change until the backward is done.
            labels, mask: [micro_batch, seq], on the last stage.
            train: False keeps nothing for a backward.
        """
        tape = Tape() if train else None
        x = self._body(x, tape)
        if self.head is None:
            return Forward(x, tape)
        if labels is None or mask is None:
            raise ValueError("the last stage needs labels and mask")
        return Forward(self.head.forward(x, labels, mask, tape), tape)

    @torch.no_grad()
    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """This rank's logits [micro_batch, vocab/tp] for the token after
        ``position``; last stage only."""
        if self.head is None:
            raise ValueError("only the last stage has logits")
        return self.head.logits(self._body(x, None), position=position)

    @torch.no_grad()
    def backward(
        self,
        fwd: Forward,
        grad_output: torch.Tensor | None = None,
        *,
        loss_scale: float = 1.0,
        weight: bool = True,
    ) -> torch.Tensor | None:
        """Gradient of the input of ``fwd``, None on the first stage; once per ``fwd``.

        Args:
            grad_output: gradient of ``fwd.output``, kept, not copied; None on the last stage, which
                starts from ``loss_scale * loss_sum``.
            weight: False leaves weight gradients to ``backward_weight``; the bits are the same.
        """
        tape = _training_tape(fwd)
        tape.deferred = not weight
        if self.head is not None:
            grad = self.head.backward(loss_scale, tape)
        else:
            assert grad_output is not None
            grad = grad_output
        for block in reversed(self.blocks):
            grad = block.backward(grad, tape)
        if self.embedding is not None:
            self.embedding.backward(grad, tape)
        tape.flush()
        return None if self.embedding is not None else grad

    @torch.no_grad()
    def backward_weight(self, fwd: Forward) -> None:
        """Compute the weight gradients that ``backward(..., weight=False)`` deferred."""
        _training_tape(fwd).finish()

    @torch.no_grad()
    def finish_grads(self) -> None:
        """Sum the gradients of replicated parameters over tp; once per step, after the
        last weight gradient.

        Under sequence parallelism each rank's norms processed only its piece of the sequence.
        """
        assert self._flat is not None
        start, stop = self._flat.replicated
        if self.tp.size > 1 and start < stop:
            self.tp.comm.all_reduce(self._flat.grads[start:stop]).wait()

    def _body(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding.forward(x, tape)
        for block in self.blocks:
            x = block.forward(x, tape)
        return x

    def _embedding(self) -> Embedding:
        return Embedding(
            self._matrix("embedding.weight", self.model.vocab_size, self.model.hidden, 0), self.tp
        )

    def _head(self) -> Head:
        norm = self._norm("final_norm")
        return Head(
            norm, self._matrix("head.weight", self.model.vocab_size, self.model.hidden, 0), self.tp
        )

    def _block(self, name: str, attention: Attention) -> Block:
        model = self.model
        # The two maps that write to the residual stream start smaller, so that its variance does
        # not grow with depth (Radford et al., GPT-2, section 2.3).
        narrow = model.init_std / math.sqrt(2 * model.layers)
        attend = Attend(
            self._matrix(f"{name}.attention.qkv.weight", 3 * model.hidden, model.hidden, 0),
            self._matrix(f"{name}.attention.out.weight", model.hidden, model.hidden, 1, narrow),
            attention,
        )
        mlp = Mlp(
            self._matrix(f"{name}.mlp.up.weight", model.ffn_width, model.hidden, 0),
            self._matrix(f"{name}.mlp.down.weight", model.hidden, model.ffn_width, 1, narrow),
        )
        if model.block == "parallel":
            return ParallelBlock(self._norm(f"{name}.norm"), attend, mlp, self.tp)
        return SerialBlock(
            self._norm(f"{name}.norm1"), attend, self._norm(f"{name}.norm2"), mlp, self.tp
        )

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(self._vector(f"{name}.weight", 1.0), self._vector(f"{name}.bias", 0.0))

    def _matrix(
        self, name: str, rows: int, columns: int, tp_dim: int, std: float | None = None
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
            )
        )

    def _vector(self, name: str, value: float) -> Parameter:
        return self._add(
            ParamSpec(
                name,
                (self.model.hidden,),
                None,
                self.tp.rank,
                self.tp.size,
                False,
                init_value=value,
            )
        )

    def _add(self, spec: ParamSpec) -> Parameter:
        self._parameters[spec.name] = Parameter(spec)
        return self._parameters[spec.name]


def _training_tape(fwd: Forward) -> Tape:
    if fwd.tape is None:
        raise ValueError("this forward ran with train=False and has no backward")
    return fwd.tape
