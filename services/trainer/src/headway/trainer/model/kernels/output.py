"""Where an operation leaves its result."""

from __future__ import annotations

import torch


def put(found: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """``found``, or ``out`` with a copy of it, if that is given.

    A compiler writes the result there at once, also where ``out`` is a part of a wider tensor,
    for which it would refuse torch's own ``out=``.
    """
    return found if out is None else out.copy_(found)
