"""What may be set and asked while a run is live; the console checks it, and the driver again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headway.common.errors import InputError
from headway.trainer.config.run import RunConfig

SETTINGS = ("lr",)
MAX_LR_RATIO = 100.0
"""A learning rate above this many times ``optim.lr`` is taken for a typing error."""


def check_name(name: str) -> None:
    """Raises InputError unless ``name`` is a setting of a live run."""
    if name not in SETTINGS:
        raise InputError(
            f"cannot set {name!r}",
            remedy=f"only {', '.join(SETTINGS)} can be set while a run is live",
        )


def check_setting(name: str, value: float, config: RunConfig, *, force: bool = False) -> None:
    """InputError for an unknown setting or an absurd value; ``force`` accepts any above 0."""
    check_name(name)
    if not 0 < value < math.inf:
        raise InputError(f"cannot set lr to {value:g}", remedy="set lr to a number above 0")
    limit = MAX_LR_RATIO * config.optim.lr
    if value > limit > 0 and not force:
        raise InputError(
            f"lr={value:g} is more than {MAX_LR_RATIO:g} times optim.lr={config.optim.lr:g}",
            remedy=f"set lr to {limit:g} or less, or repeat it with --force",
        )


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
