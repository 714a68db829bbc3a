"""What can be set while a run is live, and which values are refused. Imports nothing heavy."""

from __future__ import annotations

import math

from headway.common.errors import InputError
from headway.trainer.config import RunConfig

SETTINGS = ("lr",)
MAX_LR_RATIO = 100.0
"""A learning rate above this many times ``optim.lr`` is taken for a slip of the keyboard."""


def check_name(name: str) -> None:
    """Raises InputError unless ``name`` is a setting of a live run."""
    if name not in SETTINGS:
        raise InputError(
            f"cannot set {name!r}",
            remedy=f"only {', '.join(SETTINGS)} can be set while a run is live",
        )


def check_setting(name: str, value: float, config: RunConfig, *, force: bool = False) -> None:
    """Raises InputError for an unknown setting or an absurd value; ``force`` takes any above 0."""
    check_name(name)
    if not 0 < value < math.inf:
        raise InputError(f"cannot set lr to {value:g}", remedy="set lr to a number above 0")
    limit = MAX_LR_RATIO * config.optim.lr
    if value > limit > 0 and not force:
        raise InputError(
            f"lr={value:g} is more than {MAX_LR_RATIO:g} times optim.lr={config.optim.lr:g}",
            remedy=f"set lr to {limit:g} or less, or repeat it with --force",
        )
