"""What an import or export did."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExchangeReport:
    """The result of an import or export."""

    source: Path
    target: Path
    family: str
    """``model_type`` of the Hugging Face folder."""
    parameters: int
    """Elements, the padding of the vocabulary included."""
    tensors: int
    dtype: str
    has_tokenizer: bool
    step: int | None = None
    """Completed steps of the exported checkpoint."""
    files: int = 1
    """Files of weights."""


def count(shapes: Iterable[tuple[int, ...]]) -> int:
    """Elements of all tensors."""
    return sum(math.prod(shape) for shape in shapes)
