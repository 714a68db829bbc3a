"""Replays the linear layers: the matrix products, gathers and sums of one micro-batch.

Function by function the same as matmul.py, tensor.py and linear.py of ``trainer.model``; see
``layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from headway.common.plan.memory.ledger import Block, Held, Ledger, Tape, made
from headway.common.plan.memory.shape import MemoryShape


class LinearLayers:
    """The linear layers of one rank on ``ledger``."""

    def __init__(self, shape: MemoryShape, ledger: Ledger) -> None:
        self.shape, self.sizes, self.new = shape, shape.sizes, ledger.new
        self.tp, self.hidden = shape.grid.tp, shape.model.hidden
        self.ffn = shape.model.ffn // self.tp
        self.converts = shape.dtype == "bf16" and not shape.on_gpu and not shape.native_bf16
        self.sent = 0
        """Bytes that this rank has sent to its neighbour in a ring over tp."""

    # ---- matmul.py and tensor.py --------------------------------------------------------------
    def product(self, inputs: Sequence[int], out: int) -> Block:
        """A matrix product of operands of these sizes; converted to fp32 where that is faster."""
        if not self.converts:
            return self.new(out)
        wide = [self.new(2 * n) for n in (*inputs, out)]
        result = self.new(out)
        del wide
        return result

    def gather(self, x: Block) -> Block:
        """Over tp, along the sequence."""
        self.sent += (self.tp - 1) * x.nbytes
        return x if self.tp == 1 else self.new(x.nbytes * self.tp)

    def scatter(self, partial_sum: Block) -> Block:
        """Sum over tp."""
        self.sent += (self.tp - 1) * (partial_sum.nbytes // self.tp)
        return partial_sum if self.tp == 1 else self.new(partial_sum.nbytes // self.tp)

    def weight_grad(self, numel: int, kept: Held, x: Held) -> None:
        """``MatmulGrad.add``: on a CPU with bf16 units the product is made in bf16 first."""
        grad = _first(made(kept))
        value = made(x)
        if self.converts:
            wide = self.new(2 * grad.nbytes), self.new(2 * _first(value).nbytes)
            del wide
        elif self.sizes.param < self.sizes.master and not self.shape.on_gpu:
            self.new(numel * self.sizes.param)

    def _for_later(self, tape: Tape, grad: Block, whole: Block) -> Held:
        """``linear._for_later``."""
        is_piece = tape.deferred and self.tp > 1 and not self.shape.tp_keeps_whole
        return self._gathered_later(grad) if is_piece else whole

    def _gathered_later(self, kept: Held) -> Held:
        return _keeping_all(kept, lambda: self.gather(_first(made(kept))))

    def queue(self, tape: Tape, numel: int, grad: Held, x: Held) -> None:
        """``tape.queue(MatmulGrad(...))``."""
        tape.waiting.append(partial(self.weight_grad, numel, grad, x))

    # ---- linear.py ----------------------------------------------------------------------------
    def column(self, x: Block, tape: Tape | None, out: int, again: Held | None = None) -> Block:
        """``ColumnLinear.forward``."""
        whole = self.gather(x)
        if tape is not None:
            kept = whole if self.shape.tp_keeps_whole else x
            tape.saved.append(kept if again is None else again)
        return self.product((whole.nbytes,), out)

    def column_backward(self, grad: Block, tape: Tape) -> Block:
        """``ColumnLinear.backward``."""
        kept = tape.saved.pop()
        x: Held = kept
        is_piece = self.tp > 1 and (callable(kept) or not self.shape.tp_keeps_whole)
        if is_piece and tape.deferred:
            x = self._gathered_later(kept)
        elif is_piece:
            source = cast("Block", made(kept))
            x = (self.gather(source), source)
        total = self.product((grad.nbytes,), self.sizes.whole)
        pending = self.scatter(total)
        tape.flush()
        self.queue(tape, self._numel(grad.nbytes), grad, x)
        del total
        return pending

    def row(self, x: Block, tape: Tape | None, again: Held | None = None) -> Block:
        """``RowLinear.forward``."""
        if tape is not None:
            tape.saved.append(x if again is None else again)
        return self.scatter(self.product((x.nbytes,), self.sizes.whole))

    def row_backward(self, grad: Block, tape: Tape, width: int) -> Block:
        """``RowLinear.backward``; ``width`` is the size of its input."""
        x = tape.saved.pop()
        whole = self.gather(grad)
        tape.flush()
        result = self.product((whole.nbytes,), width)
        self.queue(tape, self._numel(width), self._for_later(tape, grad, whole), x)
        return result

    def pair(self, a: Block, b: Block, tape: Tape | None, again: Held | None) -> Block:
        """``RowPair.forward``."""
        if tape is not None:
            tape.saved.append((a, b if again is None else again))
        total = self.product((a.nbytes,), self.sizes.whole)
        if self.converts:
            self.product((b.nbytes,), self.sizes.whole)
        return self.scatter(total)

    def pair_backward(self, grad: Block, tape: Tape) -> tuple[Block, Block]:
        """``RowPair.backward``."""
        a, b = cast("tuple[Held, Held]", tape.saved.pop())
        whole = self.gather(grad)
        tape.flush()
        kept = self._for_later(tape, grad, whole)
        self.queue(tape, self._numel(self.sizes.heads), kept, a)
        self.queue(tape, self._numel(self.sizes.inner), kept, b)
        first = self.product((whole.nbytes,), self.sizes.heads)
        return first, self.product((whole.nbytes,), self.sizes.inner)

    def _numel(self, width: int) -> int:
        return width // self.sizes.param // self.sizes.tokens * self.hidden


def _keeping_all(source: Held, make: Callable[[], Block]) -> Callable[[], Block]:
    """``make``, which keeps ``source``."""

    def again(kept: Held = source) -> Block:
        del kept
        return make()

    return again


def _first(held: Held) -> Block:
    return _first(held[0]) if isinstance(held, tuple) else cast("Block", held)
