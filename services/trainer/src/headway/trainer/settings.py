"""Checks of what people ask of a live run, made by the console and again by the driver."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headway.common.errors import InputError
from headway.trainer.config import RunConfig


def check_sample(prompt: Sequence[int], count: int, temperature: float, config: RunConfig) -> None:
    """Raises InputError unless the model can write ``count`` tokens after ``prompt``."""
    vocabulary = config.model.vocab_size
    if not prompt:
        raise InputError("the prompt has no token", remedy="begin it with the end-of-text token")
    if unknown := [token for token in prompt if not 0 <= token < vocabulary]:
        raise InputError(
            f"token {unknown[0]} of the prompt is not in the vocabulary of {vocabulary}",
            remedy="encode the prompt with the tokenizer of the run's corpus",
        )
    if count < 1:
        raise InputError(f"cannot write {count} tokens", remedy="ask for 1 token or more")
    tp = config.parallel.tp
    longest = config.model.seq_len // tp * tp
    if len(prompt) + count > longest:
        raise InputError(
            f"a prompt of {len(prompt)} tokens and {count} more exceed the model's {longest}",
            remedy="shorten the prompt or ask for fewer tokens",
        )
    if not 0 <= temperature < math.inf:
        raise InputError(
            f"temperature {temperature:g} is out of range",
            remedy="use 0 for the likeliest token, 0.8 for a varied text",
        )
