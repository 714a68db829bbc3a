"""The rungs of the ladder: each technique as a change of settings (MegaScale, arXiv 2402.15627).

The order is that of MegaScale's table 3. A new technique is a row of ``RUNGS``, and a new setting
of a technique a line of its row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.common.errors import InputError
from headway.trainer.config import RunConfig
from headway.trainer.config.run import BUCKETS

Value = bool | int | float | str
Setting = Value | Callable[[RunConfig], Value]
"""A value, or a function of the configuration as its file has it."""

READ_AHEAD = "reads_ahead"
"""Not a setting of a run, which always reads ahead: a field of ``Trial``."""
BATCH_FACTOR = 4
"""How much larger LAMB's batch is (MegaScale, section 3.1)."""
LAMB_LR = 0.01
"""LAMB's learning rate is a fraction of a matrix's norm, so it is not AdamW's (docs/howto)."""
WINDOWS = 4
"""A sequence has so many windows where the file names none."""


@dataclass(frozen=True)
class Switch:
    """One setting of a technique.

    ``off`` is the baseline's value. With the technique the setting has the file's value if that is
    another one, otherwise ``on``.
    """

    key: str
    off: Setting
    on: Setting
    when: Callable[[RunConfig], bool] = lambda _: True
    """Whether the setting is part of the technique in this configuration."""

    def values(self, config: RunConfig) -> tuple[Value, Value]:
        """The values without and with the technique."""
        off = self.off(config) if callable(self.off) else self.off
        on = self.on(config) if callable(self.on) else self.on
        given = value_of(config, self.key)
        return off, on if given is None or given == off else given


@dataclass(frozen=True)
class Rung:
    """A technique: a name for the command line, a title for people, and its settings."""

    name: str
    title: str
    switches: tuple[Switch, ...]
    lacks: Callable[[RunConfig], str] = lambda _: ""
    """Why it does not apply to a configuration; "" if it does."""
    in_stand_in: bool = True
    """Whether a stand-in shows anything of it."""


def value_of(config: RunConfig, key: str) -> Any:
    """The value of a dotted key; None for what is not a setting."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part, None)
    return found


def _own(key: str) -> Callable[[RunConfig], Value]:
    """The file's own value."""

    def value(config: RunConfig) -> Value:
        found: Value = value_of(config, key)
        return found

    return value


def _one(axis: str) -> Callable[[RunConfig], str]:
    """Names an axis that has a single rank."""
    key = f"parallel.{axis}"
    return lambda config: f"{key} is 1" if value_of(config, key) == 1 else ""


def _is_own(config: RunConfig) -> str:
    own = config.model.architecture.own_block
    return "" if own is None else "model.block is your own, neither serial nor parallel"


def _is_lamb(config: RunConfig) -> str:
    return "optim.name is lamb, whose lr is not AdamW's" if config.optim.name == "lamb" else ""


RUNGS = (
    Rung("block", "parallel block", (Switch("model.block", "serial", "parallel"),), _is_own),
    Rung(
        "window",
        "sliding window",
        (
            Switch(
                "model.window",
                off=lambda c: c.model.seq_len,  # a window of all tokens
                on=lambda c: max(1, c.model.seq_len // WINDOWS),
            ),
        ),
    ),
    Rung("tp", "tensor-parallel overlap", (Switch("parallel.tp_pieces", 1, 2),), _one("tp")),
    Rung("pp", "pipeline overlap", (Switch("parallel.overlap_p2p", False, True),), _one("pp")),
    Rung(
        "dp",
        "data-parallel overlap",
        (
            Switch("parallel.overlap_grad_reduce", False, True),
            Switch("parallel.overlap_param_gather", False, True),
            Switch(
                "parallel.vp",
                off=1,
                on=lambda c: min(BUCKETS, c.model.layers),
                when=lambda c: c.parallel.pp == 1 and c.parallel.schedule == "1f1b",
            ),
            Switch(
                "parallel.buckets",
                off=1,
                on=lambda c: max(2, BUCKETS // c.parallel.num_chunks),
                when=lambda c: c.parallel.pp > 1,
            ),
        ),
        _one("dp"),
    ),
    Rung("kernels", "fused kernels", (Switch("train.compile", False, True),)),
    Rung(
        "data",
        "read-ahead and planned collections",
        (Switch(READ_AHEAD, False, True), Switch("train.gc_every", 0, 200)),
        in_stand_in=False,
    ),
    Rung(
        "lamb",
        f"LAMB, {BATCH_FACTOR} times the batch",
        (
            Switch("optim.name", "adamw", "lamb"),
            Switch("optim.lr", _own("optim.lr"), LAMB_LR),
            Switch(
                "optim.min_lr",
                _own("optim.min_lr"),
                lambda c: LAMB_LR * c.optim.min_lr / c.optim.lr if c.optim.lr else 0.0,
            ),
            Switch(
                "train.global_batch_size",
                _own("train.global_batch_size"),
                lambda c: BATCH_FACTOR * c.train.global_batch_size,
            ),
        ),
        _is_lamb,
    ),
)
"""From the ground up."""


def choose(names: Sequence[str]) -> list[Rung]:
    """The rungs of these names in this order; all for none.

    Raises:
        InputError: a name is unknown or comes twice.
    """
    known = {rung.name: rung for rung in RUNGS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"use any of {', '.join(known)}"
            raise InputError(f"there is no rung {name!r}", remedy=remedy)
    if len(set(names)) < len(names):
        raise InputError(f"--rungs {','.join(names)} names a rung twice", remedy="name each once")
    return [known[name] for name in names] or list(RUNGS)
