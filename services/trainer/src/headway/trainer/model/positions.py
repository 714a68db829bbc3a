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
class Packing:
    """Where the documents of a micro-batch begin if its rows follow each other, for a GPU.

    Rows without borders are alike and count as one: (0, S).
    """

    starts: torch.Tensor
    """[documents + 1] int32 on the device, the last one the end of the last document."""
    longest: int
    """Tokens of the longest document."""

    @property
    def num_documents(self) -> int:
        """Documents of all rows."""
        return self.starts.shape[0] - 1


@dataclass(frozen=True, slots=True)
class Positions:
    """What the layers need to know about the order of S tokens in each of B sequences."""

    rope: Rope | None
    """None where positions are learned."""
    index: torch.Tensor | None = None
    """[S, B] int64; None means 0 to S - 1."""
    borders: Borders | None = None
    """None means that each sequence is one document."""
    packing: Packing | None = None
    """None on a CPU, and where there are neither windows nor borders."""


class Places:
    """Makes the ``Positions`` of micro-batches; holds the table of rotary angles."""

    def __init__(self, model: Architecture, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._has_windows = model.window is not None
        self._packings: dict[int, Packing] = {}
        """The packing of rows without borders, by their length."""
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
            index = _sent(_index(borders), self._device)
        packing = self._packing(borders, length)
        if self._cos is None:
            return Positions(None, index, borders, packing)
        if index is None:
            return Positions((self._cos[:length], self._sin[:length]), None, borders, packing)
        return Positions((self._cos[index, 0], self._sin[index, 0]), index, borders, packing)

    def reserve(self, count: int, rows: int, length: int) -> None:
        """Page-lock memory for the documents of ``count`` micro-batches on a GPU.

        torch keeps it for later ones, which must not wait until the device is idle to get some.
        """
        if self._device.type == "cuda":
            shapes = (((length, rows), torch.int64), ((rows * length + 1,), torch.int32))
            held = [
                torch.empty(shape, dtype=dtype, pin_memory=True)
                for _ in range(count)
                for shape, dtype in shapes
            ]
            held.clear()

    def _packing(self, borders: Borders | None, length: int) -> Packing | None:
        """What a GPU needs for windows and documents."""
        if self._device.type != "cuda" or not (self._has_windows or borders is not None):
            return None
        if borders is not None:
            return packing_of(borders, length, self._device)
        if length not in self._packings:
            self._packings[length] = packing_of(None, length, self._device)
        return self._packings[length]


def packing_of(borders: Borders | None, length: int, device: torch.device) -> Packing:
    """Return the packing of rows of ``length`` tokens, without waiting for the device."""
    rows = ((0, length),) if borders is None else borders
    starts = [number * length + start for number, row in enumerate(rows) for start in row[:-1]]
    # Always of one size: to page-lock memory of a new one would wait for the device.
    host = torch.zeros(len(rows) * length + 1, dtype=torch.int32)
    host.numpy()[: len(starts) + 1] = (*starts, len(rows) * length)
    longest = max(stop - start for row in rows for start, stop in pairwise(row))
    return Packing(_sent(host, device)[: len(starts) + 1], longest)


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


def _sent(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``host`` on ``device``; to a GPU from page-locked memory, so that the host does not wait."""
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
