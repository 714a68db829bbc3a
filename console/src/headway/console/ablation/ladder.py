"""The variants of a configuration: a baseline, each rung alone, each on top of those before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.config import load
from headway.common.errors import InputError
from headway.console.ablation.place import check_fits_here
from headway.console.ablation.rungs import BATCH_FACTOR, READ_AHEAD, RUNGS, Rung, Value
from headway.console.machine.corpus_folder import own_corpus_folder
from headway.trainer.client import resolve_auto
from headway.trainer.config import RunConfig

WARMUP_STEPS = 4
"""Steps of the baseline that are not counted: one of a batch that is 4 times as large."""
BASELINE = "baseline"

Settings = Mapping[str, Value]


@dataclass(frozen=True)
class Variant:
    """One configuration of the ladder."""

    rungs: tuple[str, ...]
    """What is on, from the ground up; empty for the baseline."""
    config: RunConfig
    settings: Settings
    """In which it differs from the file."""
    reads_ahead: bool
    warmup_steps: int
    """Its own steps before those that count: as many tokens for every variant."""

    @property
    def name(self) -> str:
        """``block + window``, or ``baseline``."""
        return " + ".join(self.rungs) or BASELINE

    @property
    def tokens_per_step(self) -> int:
        """Tokens that all replicas together take in a step."""
        return self.config.train.global_batch_size * self.config.model.seq_len


@dataclass(frozen=True)
class Ladder:
    """All variants of one configuration."""

    rungs: tuple[Rung, ...]
    variants: tuple[Variant, ...]
    """The baseline, each rung alone, then each on top of those before."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Rung -> why it does not apply."""
    device: str = ""
    """A line that reports device and compute type."""


def climb(
    file: Path, overrides: Sequence[str], rungs: Iterable[Rung], *, steps: int, stand_in: bool
) -> Ladder:
    """The ladder of the configuration in ``file``; every variant trains on the same tokens.

    Args:
        steps: those of the baseline that count; a multiple of ``BATCH_FACTOR``.

    Raises:
        ConfigError: the configuration is wrong.
        InputError: no rung applies to it, its ranks do not fit on this machine, or ``steps`` is
            not such a multiple.
    """
    if steps < 1 or steps % BATCH_FACTOR:
        raise InputError(
            f"--steps {steps} is not a multiple of {BATCH_FACTOR}, the factor of LAMB's batch",
            remedy=f"use {max(BATCH_FACTOR, steps - steps % BATCH_FACTOR)}",
        )
    make = _Maker(file, overrides, steps, stand_in=stand_in)
    fitting = [rung for rung in rungs if make.fits(rung)]
    if not fitting:
        reasons = "; ".join(f"{name}: {why}" for name, why in make.left_out.items())
        raise InputError(f"no rung applies to {file} ({reasons})", remedy="choose other --rungs")
    alone = [(rung,) for rung in fitting]
    on_top = [tuple(fitting[: count + 1]) for count in range(1, len(fitting))]
    variants = [make.variant(chosen) for chosen in [(), *alone, *on_top]]
    return Ladder(tuple(fitting), tuple(variants), make.left_out, make.line)


def turns(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[int, Variant]]:
    """Round and variant; every other round is in the opposite order, so that drift hits all."""
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            yield number, variant


class _Maker:
    def __init__(self, file: Path, overrides: Sequence[str], steps: int, *, stand_in: bool) -> None:
        self._file, self._stand_in = file, stand_in
        self._overrides = [*overrides, "train.device=cpu"] if stand_in else overrides
        self._steps = WARMUP_STEPS + steps
        own = own_corpus_folder(load(RunConfig, [file], self._overrides))
        self._own, self.line = resolve_auto(own, ranks=own.parallel.world_size)
        check_fits_here(self._own)
        self._off: dict[str, Value] = {}
        self.left_out: dict[str, str] = {}
        for rung in RUNGS:  # also those that were not chosen
            if not self._obstacle(rung):
                self._off |= self._values(rung)[0]

    def fits(self, rung: Rung) -> bool:
        """Whether the rung applies; otherwise it is in ``left_out``."""
        if why := self._obstacle(rung):
            self.left_out[rung.name] = why
        return not why

    def _obstacle(self, rung: Rung) -> str:
        """Why the rung does not apply; "" if it does."""
        if why := rung.lacks(self._own):
            return why
        if self._stand_in and not rung.in_stand_in:
            return "a stand-in reads no data"
        off, on = self._values(rung)
        try:
            self._load({**self._off, **off})
            self._load({**self._off, **off, **on})
        except InputError as error:
            return error.message
        return ""

    def variant(self, rungs: tuple[Rung, ...]) -> Variant:
        """The variant in which these are on."""
        settings = dict(self._off)
        for rung in rungs:
            settings |= self._values(rung)[1]
        config = self._load(settings)
        factor = config.train.global_batch_size // self._own.train.global_batch_size
        names = tuple(rung.name for rung in rungs)
        reads_ahead = bool(settings.pop(READ_AHEAD, True))
        return Variant(names, config, settings, reads_ahead, WARMUP_STEPS // factor)

    def _values(self, rung: Rung) -> tuple[dict[str, Value], dict[str, Value]]:
        found = {
            switch.key: switch.values(self._own)
            for switch in rung.switches
            if switch.when(self._own)
        }
        return {k: off for k, (off, _) in found.items()}, {k: on for k, (_, on) in found.items()}

    def _load(self, settings: Settings) -> RunConfig:
        own = {key: value for key, value in settings.items() if key != READ_AHEAD}
        words = [*self._overrides, *_words(self._trial(own)), *_words(own)]
        config, ranks = load(RunConfig, [self._file], words), self._own.parallel.world_size
        return resolve_auto(config, ranks=ranks, gpus=ranks)[0]

    def _trial(self, settings: Settings) -> dict[str, Value | list[int]]:
        """What every trial has: all ranks here, a short schedule, and nothing beside training.

        The schedule is as long as the trial, in tokens, and so are the evaluations.
        """
        own = self._own
        batch = int(settings.get("train.global_batch_size", own.train.global_batch_size))
        factor = batch // own.train.global_batch_size
        steps = self._steps // factor
        found: dict[str, Value | list[int]] = {
            "launch.nodes": 1,
            "launch.ranks_per_node": own.parallel.world_size,
            "data.path": own.data.path,
            "train.device": own.train.device,
            "train.dtype": own.train.dtype,
            "train.steps": steps,
            "train.batch_ramp": [],
            "train.eval_every": 0,
            "train.eval_batches": 1 if self._stand_in else BATCH_FACTOR // factor,
            "train.on_spike": "ignore",
            "health.digest_every": 0,
            "health.replay_every": 0,
            "optim.warmup_steps": min(own.optim.warmup_steps, steps // 4),
        }
        if own.optim.schedule == "wsd":
            found["optim.decay_steps"] = max(1, min(own.optim.decay_steps, steps // 4))
        return found


def _words(settings: Mapping[str, Value | list[int]]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
