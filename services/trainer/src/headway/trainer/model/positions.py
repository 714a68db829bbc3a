"""Where the tokens of a micro-batch stand: rotary angles, learned rows, and document borders."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from headway.trainer.config.architecture import Architecture, RopeScaling

Rope: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of the positions, [S, 1 or B, 1, D / 2]."""
Borders: TypeAlias = tuple[tuple[int, ...], ...]
"""For each sequence of a micro-batch where its documents begin, and its length: (0, ..., S). On the
host, as flash attention's ``cu_seqlens`` of one sequence."""


@dataclass(frozen=True, slots=True)
class Positions:
    """What the layers need to know about the order of S tokens in each of B sequences."""

    rope: Rope | None
    """None where positions are learned."""
    index: torch.Tensor | None = None
    """[S, B] int64; None means 0 to S - 1."""
    borders: Borders | None = None
    """None means that each sequence is one document."""


class Places:
    """Makes the ``Positions`` of micro-batches; holds the table of rotary angles."""

    def __init__(self, model: Architecture, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._cos: torch.Tensor | None = None
        if model.positions == "rotary":
            angle = torch.outer(
                torch.arange(model.seq_len, dtype=torch.float64), rotary_frequencies(model)
            )
            self._cos = angle.cos()[:, None, None].to(device, dtype)  # [seq, 1, 1, D / 2]
            self._sin = angle.sin()[:, None, None].to(device, dtype)

    def of(
        self, length: int, index: torch.Tensor | None = None, borders: Borders | None = None
    ) -> Positions:
        """Return the positions of ``length`` tokens per sequence.

        With ``borders`` they begin anew at each document.
        """
        if index is None and borders is not None:
            index = _index(borders).to(self._device)
        if self._cos is None:
            return Positions(None, index, borders)
        if index is None:
            return Positions((self._cos[:length], self._sin[:length]), None, borders)
        return Positions((self._cos[index, 0], self._sin[index, 0]), index, borders)


def rotary_frequencies(model: Architecture) -> torch.Tensor:
    """Return the angle per position of each pair of a head, fp64 [D / 2].

    Pair i of r rotated elements turns by ``theta ** (-2i / r)`` (Su et al., arXiv 2104.09864),
    pairs behind them by 0.
    """
    rotated = int(model.rope_fraction * model.head_dim)
    pairs = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
    turning = _scaled(model.rope_theta**-pairs, model.rope_scaling)
    return torch.cat((turning, torch.zeros((model.head_dim - rotated) // 2, dtype=torch.float64)))


def _scaled(frequency: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """See ``RopeScaling``."""
    if scaling.factor == 1.0:
        return frequency
    turns = scaling.original_len * frequency / (2 * math.pi)
    kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0.0, 1.0)
    return kept * frequency + (1.0 - kept) * frequency / scaling.factor


def _index(borders: Borders) -> torch.Tensor:
    """[S, B]."""
    rows = [
        torch.cat([torch.arange(stop - start) for start, stop in pairwise(row)]) for row in borders
    ]
    return torch.stack(rows, 1)
