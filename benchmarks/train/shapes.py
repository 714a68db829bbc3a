"""The models that are measured, their batches, and how many FLOPs a token of them costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

PERIOD = 64
"""Samples after which the data repeat, so that 40 steps have something to learn."""


@dataclass(frozen=True)
class Shape:
    """A GPT and the batch of one optimizer step."""

    name: str
    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int = 8192
    batch: int = 8
    """Sequences per optimizer step, over all processes."""
    init_std: float = 0.02
    window: int = 0
    """Tokens that attention sees; 0 for all before."""

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch * self.seq

    @property
    def parameters(self) -> int:
        """Parameters of all matrices and norms."""
        norms = (2 * self.layers + 1) * 2 * self.hidden
        return 12 * self.layers * self.hidden**2 + 2 * self.vocab * self.hidden + norms

    def flops_per_token(self, *, causal: bool = True) -> float:
        """Forward and backward: 6 per matrix parameter (the embedding has no product), and the
        attention's products, halved if ``causal`` (Megatron-LM, arXiv 2104.04473, section 5.1)."""
        matrices = 12 * self.layers * self.hidden**2 + self.vocab * self.hidden
        attention = 12 * self.layers * self.hidden * self.seq
        return 6.0 * matrices + attention * (0.5 if causal else 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which ``Shape(**values)`` builds an equal one."""
        return asdict(self)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("10m", layers=4, hidden=384, heads=6, seq=512),
        Shape("50m", layers=8, hidden=640, heads=10, seq=1024, batch=4),
        Shape("thin", layers=8, hidden=288, heads=6, seq=512, vocab=4096),
        Shape("long", layers=4, hidden=384, heads=6, seq=4096, batch=2),
        Shape("tiny", layers=4, hidden=32, heads=2, seq=32, vocab=128, init_std=0.2),
        Shape("0.4b", layers=24, hidden=1024, heads=8, seq=2048, vocab=50304, batch=64),
        Shape("1.3b", layers=24, hidden=2048, heads=16, seq=2048, vocab=50304, batch=64),
        Shape("3b", layers=32, hidden=2560, heads=20, seq=2048, vocab=50304, batch=64),
    )
}


def rows(shape: Shape, first: int, count: int) -> npt.NDArray[np.int32]:
    """Samples ``first`` to ``first + count - 1``, [count, seq + 1]: inputs and, shifted, labels."""
    return _table(shape.seq, shape.vocab)[(first + np.arange(count)) % PERIOD]


@cache
def _table(seq: int, vocab: int) -> npt.NDArray[np.int32]:
    draw = np.random.default_rng(7)
    steps = draw.integers(1, 4, (PERIOD, seq + 1)).cumsum(1)
    return ((draw.integers(vocab, size=(PERIOD, 1)) + steps) % vocab).astype(np.int32)
