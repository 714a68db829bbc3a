"""A number that shows whether two tensors hold the same bits, cheap on every device.

It is the sum of all 64-bit words, each times an odd number that grows with its position, modulo
2^64. An odd factor loses no bit, so any single bit that differs changes the sum. Before, each word
is mixed with its own upper bits, by which no two words become equal: otherwise the uppermost bits
of two words, which are signs, would add 2^63 twice, which is nothing. Additions modulo 2^64 may be
made in any order and in pieces: every device gives the same number.
"""

from __future__ import annotations

import torch

WORD_BYTES = 8
CPU_WORDS = 1 << 15
"""Words of a piece on a CPU, so that what is made of them stays in its cache."""
GPU_WORDS = 1 << 24
MIX_BITS = 29
_LOWER = (1 << 64 - MIX_BITS) - 1
"""Makes the arithmetic shift of torch a logical one."""


def digest(values: torch.Tensor, first: int = 0) -> torch.Tensor:
    """The digest of contiguous ``values`` as an int64 scalar on their device.

    ``first`` is the position of their first word in a whole: digests of neighbouring pieces add up
    to that of the whole.

    Raises:
        ValueError: their size is not a multiple of 8 bytes.
    """
    if values.nbytes % WORD_BYTES:
        raise ValueError(f"{values.nbytes} bytes are not words of 8: give a padded buffer")
    words = values.view(-1).view(torch.int64)
    size = CPU_WORDS if values.device.type == "cpu" else GPU_WORDS
    factors = torch.arange(min(size, len(words)), device=values.device).mul_(2).add_(1)
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, len(words), size):
        piece = words[start : start + size]
        mixed = (piece >> MIX_BITS).bitwise_and_(_LOWER).bitwise_xor_(piece)
        total += 2 * (first + start) * mixed.sum()
        total += mixed.mul_(factors[: len(piece)]).sum()
    return total


def halves(value: torch.Tensor) -> torch.Tensor:
    """A digest as two fp64 numbers, which hold it exactly."""
    return torch.stack([value >> 32, value & 0xFFFFFFFF]).double()
