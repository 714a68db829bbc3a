"""Keys and values of the tokens so far, and which of them a new token sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Cache:
    """Keys and values [B, G, T, D] of every layer.

    A layer with a window keeps only what later tokens can see.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        """``windows`` of the layers, None for all tokens."""
        self.length = 0
        """Tokens so far."""
        self._windows = windows
        self._kept: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(windows)

    def add(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add the keys and values of S new tokens [B, G, S, D] to a layer.

        Returns all keys and values that are kept, and which of them each new token sees, [S, T].
        """
        window, before, new = self._windows[layer], self._kept[layer], keys.shape[2]
        if before is not None:
            keys = torch.cat((before[0], keys), 2)
            values = torch.cat((before[1], values), 2)
        kept = keys.shape[2]
        at = torch.arange(kept - new, kept, device=keys.device)[:, None]
        distance = at - torch.arange(kept, device=keys.device)
        mask = distance >= 0
        stored = keys, values
        if window is not None:
            mask &= distance < window
            first = max(0, kept - window + 1)
            stored = keys[:, :, first:], values[:, :, first:]
        self._kept[layer] = stored
        return keys, values, mask

    def advance(self, count: int) -> None:
        """``count`` tokens are in every layer."""
        self.length += count
