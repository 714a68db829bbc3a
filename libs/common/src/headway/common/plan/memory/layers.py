"""Replays one micro-batch through a chunk: the allocations of ``trainer.model`` without tensors.

Function by function the same as layers.py, attention.py, block.py, embedding.py and head.py there,
and ``linear`` as its linear layers, so that a change there has one place here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, cast

from headway.common.plan.memory.ledger import Block, Held, Tape
from headway.common.plan.memory.linear import LinearLayers

LOGITS_BLOCK = 1 << 23
LEAST_TOKENS = 256
SOFTMAX_BLOCK = 1 << 19
"""Elements of a block of logits, and of one of exponentials, on a CPU; a GPU takes 16 and 256
times as many (``BLOCK_ELEMENTS`` in head.py and loss.py)."""

_Forward: TypeAlias = "Callable[[Block, Tape | None, bool], Block]"
_Backward: TypeAlias = "Callable[[Block, Tape, bool], Block]"


class Layers(LinearLayers):
    """The operations of one rank's layers on ``ledger``."""

    # ---- layers.py ----------------------------------------------------------------------------
    def norm(self, x: Block, tape: Tape | None) -> Block:
        """``LayerNorm.forward``."""
        wide = self._widened(x.nbytes, 2)
        y, statistics = self.new(x.nbytes), self.new(self.sizes.statistics)
        del wide
        if tape is not None:
            tape.saved.append((x, statistics))
        return y

    def norm_backward(self, grad: Block, tape: Tape) -> Block:
        """``LayerNorm.backward``."""
        kept = tape.saved.pop()
        wide = self._widened(grad.nbytes, 3)
        grad_x = self.new(grad.nbytes)
        del kept, wide
        return grad_x

    def gelu(self, x: Block, tape: Tape | None, nbytes: int) -> Block:
        """``Gelu.forward``."""
        if tape is not None:
            tape.saved.append(x)
        return self.new(nbytes)

    def gelu_backward(self, grad: Block, tape: Tape) -> Block:
        """``Gelu.backward``."""
        kept = tape.saved.pop()
        result = self.new(self.sizes.wide)
        del kept, grad
        return result

    def _widened(self, nbytes: int, count: int) -> list[Block]:
        """Copies in the master type, which a GPU's norm takes."""
        ratio = self.sizes.master // self.sizes.param
        return [self.new(ratio * nbytes) for _ in range(count * (self.shape.on_gpu and ratio > 1))]

    # ---- attention.py and its kernels ---------------------------------------------------------
    def attention(self, qkv: Block, tape: Tape | None, *, recompute_cheap: bool) -> Block:
        """``Attention.forward``."""
        if tape is None or recompute_cheap:
            heads = self.split_heads()
            out = self.new(self.sizes.heads), self.new(self.sizes.softmax)
            del heads
            if tape is not None:
                tape.saved.append(qkv)
        else:
            heads = self.split_heads()
            raw = self.new(self.sizes.qk if self.shape.model.qk_norm else 0)
            out = self.new(self.sizes.heads), self.new(self.sizes.softmax)
            tape.saved.append((heads, raw, out))
        return self.new(self.sizes.heads)

    def attention_backward(self, grad: Block, tape: Tape, *, recompute_cheap: bool) -> Block:
        """``Attention.backward``, which holds ``grad`` to its end."""
        graph = tape.saved.pop()
        if recompute_cheap:
            graph = graph, self.split_heads(), self.new(self.sizes.heads + self.sizes.softmax)
        arranged = self.new(self.sizes.heads)
        grads = self.new(self.sizes.qkv)
        del arranged
        joined = self.join_heads()
        del graph, grads, grad
        return joined

    def split_heads(self) -> Block:
        """``kernels.split_heads``: q, k and v."""
        ratio, qkv = self.sizes.master // self.sizes.param, self.sizes.qkv
        if self.shape.on_gpu:
            turned = self.new((2 * ratio + 3) * self.sizes.heads)
            result = self.new(qkv)
            del turned
            return result
        wide = self.new(ratio * qkv if ratio > 1 else 0)
        turned = self.new(ratio * qkv + self.sizes.rope)
        narrow = self.new(qkv if ratio > 1 else 0)
        result = self.new(qkv)
        del wide, turned, narrow
        return result

    def join_heads(self) -> Block:
        """``kernels.join_heads``: their gradients as one."""
        ratio, qkv = self.sizes.master // self.sizes.param, self.sizes.qkv
        if self.shape.on_gpu:
            turned = self.new((2 * ratio + 2) * self.sizes.heads)
            result = self.new(qkv)
            del turned
            return result
        joined = self.new(qkv)
        wide = self.new(ratio * qkv if ratio > 1 else 0)
        turned = self.new(ratio * qkv)
        result = turned if ratio == 1 else self.new(qkv)
        del joined, wide, turned
        return result

    # ---- block.py -----------------------------------------------------------------------------
    def block(self, x: Block, tape: Tape | None, mode: str) -> Block:
        """One layer's forward."""
        forward, _ = self._passes
        if mode != "full":
            return forward(x, tape, mode == "selective")
        if tape is not None:
            tape.saved.append(x)
        return forward(x, None, False)

    def block_backward(self, grad: Block, tape: Tape, mode: str) -> Block:
        """One layer's backward."""
        forward, backward = self._passes
        if mode != "full":
            return backward(grad, tape, mode == "selective")
        x = cast("Block", tape.saved.pop())
        inner = Tape(deferred=tape.deferred)
        inner.waiting.extend(tape.waiting)
        tape.waiting.clear()
        forward(x, inner, False)
        grad = backward(grad, inner, False)
        tape.waiting.extend(inner.waiting)
        return grad

    @property
    def _passes(self) -> tuple[_Forward, _Backward]:
        if self.shape.is_parallel_block:
            return self._parallel, self._parallel_backward
        if self.shape.model.block == "parallel":
            return self._two_norms, self._two_norms_backward
        return self._serial, self._serial_backward

    def _serial(self, x: Block, tape: Tape | None, recompute_cheap: bool) -> Block:
        sizes = self.sizes
        normed = self.norm(x, tape)
        qkv = self.column(
            normed, tape, sizes.qkv, self._again(self.norm, x) if recompute_cheap else None
        )
        del normed
        h = _added(self, self.row(self.attention(qkv, tape, recompute_cheap=recompute_cheap), tape))
        del qkv
        normed = self.norm(h, tape)
        wide = self.column(
            normed, tape, sizes.wide, self._again(self.norm, h) if recompute_cheap else None
        )
        del normed
        again: Held | None = partial(self.new, sizes.inner) if recompute_cheap else None
        if recompute_cheap:
            again = _keeping(wide, again)
        return _added(self, self.row(self.gelu(wide, tape, sizes.inner), tape, again))

    def _serial_backward(self, grad: Block, tape: Tape, recompute_cheap: bool) -> Block:
        sizes = self.sizes
        wide = self.gelu_backward(self.row_backward(grad, tape, sizes.inner), tape)
        grad = self.norm_backward(self.column_backward(wide, tape), tape)
        qkv = self.attention_backward(
            self.row_backward(grad, tape, sizes.heads), tape, recompute_cheap=recompute_cheap
        )
        return self.norm_backward(self.column_backward(qkv, tape), tape)

    def _parallel(self, x: Block, tape: Tape | None, recompute_cheap: bool) -> Block:
        sizes = self.sizes
        normed = self.norm(x, tape)
        again = self._again(self.norm, x) if recompute_cheap else None
        wide = self.column(normed, tape, sizes.qkv + sizes.wide, again)
        del normed
        attended = self.attention(wide, tape, recompute_cheap=recompute_cheap)
        made_again = _keeping(wide, partial(self.new, sizes.inner)) if recompute_cheap else None
        activated = self.gelu(wide, tape, sizes.inner)
        return _added(self, self.pair(attended, activated, tape, made_again))

    def _parallel_backward(self, grad: Block, tape: Tape, recompute_cheap: bool) -> Block:
        attended, up = self.pair_backward(grad, tape)
        wide = self.new(self.sizes.qkv + self.sizes.wide)
        self.gelu_backward(up, tape)
        del up
        self.attention_backward(attended, tape, recompute_cheap=recompute_cheap)
        del attended
        return self.norm_backward(self.column_backward(wide, tape), tape)

    def _two_norms(self, x: Block, tape: Tape | None, recompute_cheap: bool) -> Block:
        sizes = self.sizes
        again = self._again(self.norm, x) if recompute_cheap else None
        qkv = self.column(self.norm(x, tape), tape, sizes.qkv, again)
        attended = self.attention(qkv, tape, recompute_cheap=recompute_cheap)
        wide = self.column(self.norm(x, tape), tape, sizes.wide, again)
        made_again = _keeping(wide, partial(self.new, sizes.inner)) if recompute_cheap else None
        activated = self.gelu(wide, tape, sizes.inner)
        return _added(self, self.pair(attended, activated, tape, made_again))

    def _two_norms_backward(self, grad: Block, tape: Tape, recompute_cheap: bool) -> Block:
        attended, wide = self.pair_backward(grad, tape)
        wide = self.gelu_backward(wide, tape)
        grad = self.norm_backward(self.column_backward(wide, tape), tape)
        qkv = self.attention_backward(attended, tape, recompute_cheap=recompute_cheap)
        return self.norm_backward(self.column_backward(qkv, tape), tape)

    def _again(self, layer: Callable[[Block, None], Block], x: Block) -> Callable[[], Block]:
        return partial(layer, x, None)

    # ---- embedding.py and head.py -------------------------------------------------------------
    def embedding(self, tape: Tape) -> Block:
        """``Embedding.forward``."""
        tokens = self.sizes.tokens
        if self.tp > 1:
            tape.saved.append((self.new(8 * tokens), self.new(tokens)))
        return self.scatter(self.new(self.sizes.whole))

    def embedding_backward(self, grad: Block, tape: Tape) -> None:
        """``Embedding.backward``."""
        local = tape.saved.pop() if self.tp > 1 else ()
        whole = self.gather(grad)
        tape.flush()
        tape.waiting.append(partial(self._rows_grad, whole, local))

    def _rows_grad(self, whole: Block, local: Held) -> None:
        ratio = self.sizes.master // self.sizes.param
        values = whole if ratio == 1 else self.new(ratio * whole.nbytes)
        if self.tp > 1:
            values = self.new(values.nbytes)
        del values, local

    def head(self, x: Block, tape: Tape) -> None:
        """``Head.forward`` with a tape."""
        sizes, model = self.sizes, self.shape.model
        whole = self.gather(self.norm(x, tape))
        labels = self.new(9 * sizes.tokens)
        gradient = self.new(sizes.whole)
        rows, vocab = self._logits_block()
        logits = self.product((rows * model.hidden * sizes.param,), rows * vocab * sizes.param)
        per_pass = min(rows * vocab, SOFTMAX_BLOCK * (256 if self.shape.on_gpu else 1))
        copies = 1 if sizes.param == sizes.master else 2
        vectors = self.new(12 * rows * sizes.master)
        self.sent += (self.tp - 1) * 3 * sizes.tokens * sizes.master  # of all blocks' cross-entropy
        exponentials = self.new(copies * per_pass * sizes.master)
        del exponentials, vectors
        grad_x = self.product((logits.nbytes,), rows * model.hidden * sizes.param)
        del grad_x
        self.weight_grad(vocab * model.hidden, logits, whole)
        tape.saved.append(self.scatter(gradient))
        del labels, gradient

    def head_backward(self, tape: Tape) -> Block:
        """``Head.backward``."""
        return self.norm_backward(cast("Block", tape.saved.pop()), tape)

    def _logits_block(self) -> tuple[int, int]:
        """Rows and columns of one block of logits."""
        vocab, tokens = self.shape.model.vocab_size // self.tp, self.sizes.tokens
        factor = 16 if self.shape.on_gpu else 1
        most = max(LEAST_TOKENS * factor, LOGITS_BLOCK * factor // vocab)
        return -(-tokens // -(-tokens // most)), vocab


def _added(layers: Layers, branch: Block) -> Block:
    """``x + branch``."""
    return layers.new(branch.nbytes)


def _keeping(source: Block, make: Held | None) -> Callable[[], Block]:
    """A function that makes something again from ``source``, which it keeps."""
    assert callable(make)

    def again(kept: Block = source) -> Block:
        del kept
        return make()

    return again
