"""What is asked of a stored model, and what it wrote; free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """Texts to be written without a run."""

    prompt: str = ""
    """Empty begins a new text."""
    tokens: int = 64
    """Maximum number of new tokens of each text."""
    temperature: float = 0.8
    top_p: float = 1.0
    count: int = 1
    seed: int = 0
    """Seed of the first text; the next one has the next number."""
    dtype: str = "fp32"
    """Type of the computation, bf16 or fp32."""
    step: int | None = None
    """Step of the run's checkpoint; None means the newest."""


@dataclass(frozen=True)
class Texts:
    """What a model wrote."""

    model: Path
    step: int | None
    """Completed steps of the checkpoint; None for a Hugging Face folder."""
    prompt: str
    texts: tuple[str, ...]
    """Each continues the prompt."""
