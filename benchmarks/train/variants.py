"""The variants among which each side is tuned, as specifications of worker processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.train.ours import has_setting, initial_weights
from benchmarks.train.report import Options
from benchmarks.train.shapes import SHAPES, Shape
from benchmarks.train.sides import Spec, specs

OURS = "benchmarks.train.ours:run"
PLAIN = "benchmarks.train.peer_plain:run"
TENSOR = "benchmarks.train.peer_tensor:run"
PIPE = "benchmarks.train.peer_pipe:run"
LIMIT = "benchmarks.train.limit:run"


def shape_of(options: Options, name: str) -> Shape:
    """The named shape, or the tiny one."""
    return SHAPES["tiny" if options.tiny else name]


def micro_batches(options: Options, shape: Shape, world: int = 1) -> list[int]:
    """Micro-batch sizes to try: all of a process's sequences at once, and half of them."""
    most = shape.batch // world
    return [most] if options.tiny else [most, most // 2]


def save_weights(options: Options, shape: Shape, folder: Path) -> Path:
    """The file of weights that every side begins with."""
    path = folder / f"{shape.name}.pt"
    torch.save(initial_weights(shape, options.dtype), path)
    return path


def ours(
    options: Options,
    shape: Shape,
    *,
    world: int = 1,
    threads: int = 1,
    micros: Sequence[int],
    variants: Sequence[Mapping[str, Any]] = ({},),
) -> list[Spec]:
    """Our side with each of ``variants`` (settings of the run), each micro-batch size, and compiled
    and not where this version of Headway can compile."""
    given = dict(_parse(text) for text in options.settings)
    compiles: list[dict[str, Any]] = [{}]
    if has_setting("train.compile") and "train.compile" not in given:
        compiles = [{"train.compile": value} for value in options_of(options)]
    found = []
    for variant, micro, compiled in itertools.product(variants, micros, compiles):
        settings = {
            "train.dtype": options.dtype,
            "train.micro_batch_size": micro,
            **variant,
            **compiled,
            **given,
        }
        words = [f"{key.split('.')[1]}={value}" for key, value in {**variant, **compiled}.items()]
        name = " ".join(["headway", f"micro={micro}", *words])
        found.append(Spec(name, OURS, shape.to_dict(), world, threads, {"settings": settings}))
    return found


def options_of(options: Options) -> list[bool]:
    """Values of ``compile`` to try."""
    return [True, False] if options.compiles else [False]


def peer(
    run: str,
    options: Options,
    shape: Shape,
    weights: Path,
    *,
    world: int = 1,
    threads: int = 1,
    micros: Sequence[int],
    precision: str = "",
    **choices: Sequence[Any],
) -> list[Spec]:
    """A peer with every combination of ``choices`` and micro-batch sizes."""
    precision = precision or ("autocast" if options.is_narrow else "fp32")
    found = []
    for micro, *values in itertools.product(micros, *choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        words = [f"{key}={value}" for key, value in chosen.items()]
        how = {"micro": micro, "precision": precision, "weights": str(weights), **chosen}
        name = " ".join([run.split(".")[2].split(":")[0], precision, f"micro={micro}", *words])
        found.append(Spec(name, run, shape.to_dict(), world, threads, how))
    return found


def limits(options: Options, shape: Shape, threads: int, micros: Sequence[int]) -> list[Spec]:
    """The products and the attention of a step alone."""
    return specs("limit", LIMIT, shape, micros, threads=threads, dtype=options.dtype)


def _parse(text: str) -> tuple[str, Any]:
    key, _, raw = text.partition("=")
    try:
        return key, json.loads(raw)
    except json.JSONDecodeError:
        return key, raw
