"""GPT training over tensor, pipeline and data parallelism that recovers in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.trainer.config import RunConfig

__all__ = ["RunConfig"]

__getattr__, __dir__ = lazy(__name__, config="RunConfig")
