"""A chunk: some layers, with the embedding if it is first and the loss if it is last.

A chunk is independent of pipelines and data parallelism: tensors in, tensors out, gradients
into its flat buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from headway.common.node.failpoints import failpoint
from headway.trainer.config.architecture import Architecture
from headway.trainer.model.block import Block
from headway.trainer.model.buckets import Bucket, BucketComplete, BucketHook
from headway.trainer.model.embedding import Embedding
from headway.trainer.model.head import Head
from headway.trainer.model.positions import Borders, Places
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.copies import sum_copies
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import Parameter, Precision


class Forward:
    """One micro-batch from its forward to its last backward.

    It holds the output and what the backward needs.

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
    """The layers of one pipeline stage on one tensor-parallel rank, without memory until ``bind``.

    ``borrowed`` is the table of a tied head that another rank owns (``parallel.tied``).
    ``buckets`` divides its layers; each bucket has flat buffers of its own.
    """

    def __init__(
        self,
        model: Architecture,
        *,
        embedding: Embedding | None,
        blocks: Sequence[Block],
        head: Head | None,
        places: Places,
        parameters: Mapping[str, Parameter],
        joined: Sequence[Parameter],
        buckets: Sequence[Bucket],
        borrowed: Parameter | None = None,
        tp: TensorParallel,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.model, self.embedding, self.blocks, self.head = model, embedding, blocks, head
        self.tp, self.precision, self.device = tp, precision, device
        self._places, self._parameters, self._joined = places, parameters, joined
        self.buckets = buckets
        self._borrowed = borrowed
        self._flats: Sequence[FlatChunk] = ()

    @property
    def is_first(self) -> bool:
        """Whether this chunk takes tokens."""
        return self.embedding is not None

    @property
    def is_last(self) -> bool:
        """Whether this chunk returns the loss."""
        return self.head is not None

    @property
    def table(self) -> Parameter | None:
        """The embedding's, on the first stage."""
        return None if self.embedding is None else self.embedding.weight

    def bind(self, *flats: FlatChunk) -> None:
        """Use the memory of ``flats``, one for each bucket; again after each ``flat.renew()``."""
        self._flats = flats
        home = {spec.name: number for number, one in enumerate(self.buckets) for spec in one.params}
        for parameter in (*self._parameters.values(), *self._joined):
            flat = flats[home[parameter.names[0]]]
            parameter.bind(*flat.views(*parameter.names))
        if self._borrowed is not None:
            shape, device = self._borrowed.shape, self.device
            self._borrowed.bind(
                torch.zeros(shape, dtype=self.precision.param_dtype, device=device),
                torch.zeros(shape, dtype=self.precision.master_dtype, device=device),
            )

    def unbind(self) -> None:
        """Release the flat memory, so that it is free before ``flat.renew`` takes other."""
        nothing = torch.empty(0, device=self.device)
        self._flats = ()
        for parameter in (*self._parameters.values(), *self._joined):
            parameter.bind(nothing, nothing)
        if self._borrowed is not None:
            self._borrowed.bind(nothing, nothing)

    def activation_shape(self, micro_batch_size: int) -> torch.Size:
        """Shape of the tensors between stages: [seq/tp, micro_batch, hidden]."""
        return torch.Size((self.model.seq_len // self.tp.size, micro_batch_size, self.model.hidden))

    def reserve_positions(self, count: int, micro_batch_size: int) -> None:
        """Page-lock memory for the documents of so many micro-batches, as ``Places.reserve``."""
        if self.model.document_end is not None:
            self._places.reserve(count, micro_batch_size, self.model.seq_len)

    @torch.no_grad()
    def forward(
        self,
        x: torch.Tensor,
        labels: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        positions: torch.Tensor | None = None,
        borders: Borders | None = None,
        loss_scale: float = 1.0,
        train: bool = True,
        before_bucket: BucketHook = lambda _: None,
    ) -> Forward:
        """Run one micro-batch.

        Args:
            x: tokens [micro_batch, seq] of an integer type on the first stage, activations
            otherwise. They are kept, not copied, and must not change until the backward is done.
            labels, mask: [micro_batch, seq], on the last stage.
            positions: [seq, micro_batch] int64; None means 0 to seq - 1, or, with ``borders``, anew
            from 0 at each document.
            borders: where the documents of each sequence begin.
            loss_scale: the last stage's gradients are those of ``loss_scale * loss_sum``.
            train: False keeps nothing for a backward.
            before_bucket: called before the first use of each bucket's parameters.
        """
        tape = Tape() if train else None
        x = self._body(x, positions, borders, tape, before_bucket)
        if self.head is None:
            return Forward(x, tape)
        if labels is None or mask is None:
            raise ValueError("the last stage needs labels and mask")
        return Forward(self.head.forward(x, labels, mask, tape, loss_scale), tape)

    @torch.no_grad()
    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return this rank's logits [micro_batch, vocab/tp] for the token after ``position``.

        Only the last stage has logits.
        """
        if self.head is None:
            raise ValueError("only the last stage has logits")
        return self.head.logits(self._body(x, None, None, None), position)

    @torch.no_grad()
    def backward(
        self,
        fwd: Forward,
        grad_output: torch.Tensor | None = None,
        *,
        weight: bool = True,
        after_bucket: BucketHook | None = None,
    ) -> torch.Tensor | None:
        """Gradient of the input of ``fwd``, None on the first stage; once per ``fwd``.

        Args:
            grad_output: gradient of ``fwd.output``, kept, not copied; None on the last stage, whose
                forward has computed the gradient of the loss already.
            weight: False leaves weight gradients to ``backward_weight``; the bits are the same.
            after_bucket: called behind the last weight gradient of each bucket but the first, the
                last bucket first; from ``backward_weight`` if they are left to it.
        """
        tape = _training_tape(fwd)
        tape.deferred = not weight
        if self.head is not None:
            grad = self.head.backward(tape)
        else:
            assert grad_output is not None
            grad = grad_output
        for number, bucket in reversed(list(enumerate(self.buckets))):
            for place in reversed(bucket.blocks):
                grad = self.blocks[place].backward(grad, tape)
            if number and after_bucket is not None:
                tape.queue(BucketComplete(after_bucket, number))
        if self.embedding is not None:
            self.embedding.backward(grad, tape)
        tape.flush()
        return None if self.embedding is not None else grad

    @torch.no_grad()
    def backward_weight(self, fwd: Forward) -> None:
        """Compute the weight gradients that ``backward(..., weight=False)`` deferred."""
        _training_tape(fwd).finish()

    @torch.no_grad()
    def finish_grads(self, bucket: int) -> None:
        """Sum the gradients of a bucket's parameters that several ranks of tp hold.

        It is called once per step, after the last weight gradient. Under sequence parallelism each
        rank's norms processed only its piece of the sequence, and a copy of a head of keys and
        values only this rank's queries.
        """
        flat = self._flats[bucket]
        replicated = flat.grads[slice(*flat.replicated)]
        if flat.copied:
            sum_copies(self.tp.comm, replicated, flat)
        elif self.tp.size > 1 and len(replicated):
            self.tp.comm.all_reduce(replicated).wait()

    def _body(
        self,
        x: torch.Tensor,
        positions: torch.Tensor | None,
        borders: Borders | None,
        tape: Tape | None,
        before_bucket: BucketHook = lambda _: None,
    ) -> torch.Tensor:
        length = x.shape[1] if self.embedding is not None else x.shape[0] * self.tp.size
        at = self._places.of(length, positions, borders)
        for number, bucket in enumerate(self.buckets):
            before_bucket(number)
            if number == 0 and self.embedding is not None:
                x = self.embedding.forward(x, at, tape)
            for place in bucket.blocks:
                failpoint("worker.in_layer")
                x = self.blocks[place].forward(x, at, tape)
        return x


def _training_tape(fwd: Forward) -> Tape:
    if fwd.tape is None:
        raise ValueError("this forward ran with train=False and has no backward")
    return fwd.tape
