"""The file of an ablation, ``ablate.json``: what was measured, where, and of what."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from headway.common.errors import CorruptError, InputError
from headway.common.node.files import replace_file
from headway.console.ablation.figures import Gain, gain
from headway.console.machine.peak import processor_name, usable_threads

FILE = "ablate.json"
FORMAT = "headway-ablation/1"
STAND_IN = (
    "STAND-IN: computation slept for its measured time, messages were real. These are the gains "
    "where each rank has a processor of its own, not this machine's; losses and memory mean "
    "nothing and are left out."
)
READABLE = 0o666


@dataclass(frozen=True)
class Measured:
    """One trial of a variant."""

    round: int
    step_s: list[float]
    """Seconds of each step, those of the warm-up included."""
    eval_loss: float | None
    peak_bytes: int | None


@dataclass
class Measurements:
    """A variant and its trials."""

    rungs: list[str]
    settings: dict[str, Any]
    tokens_per_step: int
    warmup_steps: int
    flops_per_token: int
    """Model FLOPs, windows counted."""
    full_flops_per_token: int
    """Model FLOPs as if no layer had a window."""
    trials: list[Measured] = field(default_factory=list)
    error: str = ""
    """Why it was given up; its trials before that count."""

    @property
    def rates(self) -> dict[int, float]:
        """Tokens/s of each round, without the warm-up."""
        found = {}
        for trial in self.trials:
            counted = trial.step_s[self.warmup_steps :]
            found[trial.round] = len(counted) * self.tokens_per_step / sum(counted)
        return found

    @property
    def eval_loss(self) -> float | None:
        """Validation loss after all its tokens; every trial trains the same."""
        return self.trials[-1].eval_loss if self.trials else None

    @property
    def peak_bytes(self) -> int | None:
        """The most of all trials, of the rank that uses most."""
        return max((t.peak_bytes for t in self.trials if t.peak_bytes is not None), default=None)


@dataclass
class Record:
    """Everything of an ablation; ``Ablation`` shows it."""

    titles: dict[str, str]
    """Rung -> its title, from the ground up."""
    left_out: dict[str, str]
    config: dict[str, Any]
    """The baseline's."""
    variants: list[Measurements]
    rounds: int
    tokens: int
    """That every variant is trained on in each round, the warm-up included."""
    stand_in: bool
    machine: dict[str, Any] = field(default_factory=lambda: facts())
    peak_flops: float | None = None
    """Measured, of all ranks together."""
    sheet_flops: float | None = None
    """From the data sheet, of all ranks together."""
    interrupted: bool = False
    took_s: float = 0.0
    format: str = FORMAT
    note: str = ""

    @property
    def baseline(self) -> Measurements:
        """The variant without any rung."""
        return self.variants[0]

    def variant(self, rungs: list[str]) -> Measurements:
        """The variant with these rungs."""
        return next(one for one in self.variants if one.rungs == rungs)

    def alone(self, rung: str) -> Gain | None:
        """Gain of a rung over the baseline; None while it is not measured."""
        return gain(self.variant([rung]).rates, self.baseline.rates)

    def on_top(self, rung: str) -> Gain | None:
        """Gain of a rung over all before it; None while it is not measured."""
        before, up_to = self.below(rung)
        return gain(up_to.rates, before.rates)

    def below(self, rung: str) -> tuple[Measurements, Measurements]:
        """The variants up to the rung before, and up to this one."""
        names = list(self.titles)
        at = names.index(rung)
        return self.variant(names[:at]), self.variant(names[: at + 1])

    def write(self, folder: Path) -> Path:
        """Replace the file in ``folder``; an interrupted ablation keeps what it has."""
        path = folder / FILE
        plain = {**msgspec.to_builtins(self), "gains": self._gains()}
        replace_file(path, json.dumps(plain, indent=1) + "\n", mode=READABLE)
        return path

    def _gains(self) -> dict[str, Any]:
        """What follows from the times, for readers of the file; ``read`` computes it anew."""
        return {
            rung: {"alone": _plain(self.alone(rung)), "on_top": _plain(self.on_top(rung))}
            for rung in self.titles
        }


def read(path: Path) -> Record:
    """The record in ``ablate.json``, or in a folder with one.

    Raises:
        InputError: there is none. CorruptError: it is another file.
    """
    file = path / FILE if path.is_dir() else path
    try:
        return msgspec.convert(json.loads(file.read_bytes()), Record)
    except FileNotFoundError as error:
        raise InputError(f"there is no {file}", remedy="`headway ablate` makes one") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise CorruptError(f"{file} is not an ablation: {error}") from error


def facts() -> dict[str, Any]:
    """Processor, versions, date and load of this machine."""
    names = ("headway-console", "headway-trainer", "torch", "numpy")
    return {
        "processor": processor_name("cpu"),
        "threads": usable_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(found: Gain | None) -> dict[str, Any] | None:
    return None if found is None else {**vars(found), "within_spread": found.is_within_spread}
