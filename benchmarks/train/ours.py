"""Our side: a ``Session`` driven step by step, alone or as one rank of several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from headway.common.config import load
from headway.testkit.trainer.pool import WorkerContext
from headway.testkit.trainer.synthetic import SyntheticBatch
from headway.testkit.trainer.training import build_groups
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import DataFactory, Split
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

from benchmarks.train.shapes import Shape, rows
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job

GROUP_TIMEOUT_S = 300.0
"""Long enough for a rank that compiles while the others wait."""
LEARNING_RATE = 3e-4


def configure(
    shape: Shape,
    settings: Mapping[str, Any],
    words: Sequence[str] = (),
    *,
    world: int = 1,
    threads: int = 1,
) -> RunConfig:
    """The run of ``shape`` with a constant learning rate; ``settings`` are dotted keys that win,
    and ``words``, as of ``--set``, win over these.

    Raises:
        ConfigError: a setting that does not exist, or that does not fit the shape.
    """
    values: dict[str, Any] = {
        "model.layers": shape.layers,
        "model.hidden": shape.hidden,
        "model.heads": shape.heads,
        "model.vocab_size": shape.vocab,
        "model.seq_len": shape.seq,
        "model.init_std": shape.init_std,
        "launch.ranks_per_node": world,
        "launch.threads_per_rank": threads,
        "train.steps": 1_000_000,
        "train.global_batch_size": shape.batch,
        "train.eval_batches": 1,
        "ckpt.durable_every": 1_000_000,
        "optim.lr": LEARNING_RATE,
        "optim.min_lr": LEARNING_RATE,
        "optim.warmup_steps": 0,
    } | dict(settings)
    own = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return load(RunConfig, [], [*own, *words])


def has_setting(key: str) -> bool:
    """Whether this version of Headway knows ``table.name``."""
    table, name = key.split(".")
    part = getattr(RunConfig(), table)
    return name in {field.name for field in dataclasses.fields(part)}


class _Source:
    """The measured samples of one replica, every label of which counts."""

    fingerprint = "benchmark"

    def __init__(self, config: RunConfig, shape: Shape, dp_rank: int) -> None:
        self._size, self._dp = config.train.micro_batch_size, config.parallel.dp
        self._shape, self._sample = shape, dp_rank * self._size
        self._mask = np.ones((self._size, shape.seq), np.uint8)

    def next(self, abort: Callable[[], bool] | None = None) -> SyntheticBatch:
        """The next micro-batch."""
        del abort
        sample, self._sample = self._sample, self._sample + self._dp * self._size
        found = rows(self._shape, sample, self._size)
        return SyntheticBatch(found[:, :-1], found[:, 1:], self._mask, sample)

    def close(self) -> None:
        """Nothing to close."""


def data(config: RunConfig, shape: Shape, rank: int) -> DataFactory:
    """The data factory of ``rank``."""
    dp_rank = config.parallel.grid.coordinates(rank).dp

    def make(split: Split, start_sample: int, generation: int, fingerprint: str) -> _Source:
        del split, start_sample, generation, fingerprint
        return _Source(config, shape, dp_rank)

    return make


class _Hooks(StepHooks):
    """Reports each step; waits for the next turn where the control side would look for commands."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_step(self, result: StepResult) -> None:
        """A step is complete."""
        self._turns.done(result.loss)


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns. Option ``settings``: dotted keys of the run.

    The validation before step 0 is part of the first turn, which is never measured.
    """
    config = configure(
        job.model, job.options.get("settings", {}), world=job.world, threads=job.threads
    )
    session = Session(config, job.rank, data_factory=data(config, job.model, job.rank))
    context = WorkerContext()
    turns.ready()
    turns.begin()
    session.join(build_groups(context, config, job.rank, 0, job.folder, GROUP_TIMEOUT_S))
    session.load("init")
    session.run(_Hooks(turns))


def initial_weights(shape: Shape, dtype: str) -> dict[str, torch.Tensor]:
    """The weights that a run begins with, by name, in the type of the master."""
    config = configure(shape, {"train.dtype": dtype})
    session = Session(config, 0, data_factory=data(config, shape, 0))
    session.join(Groups.alone())
    session.load("init")
    found = {}
    for flat in session.flats:
        item = flat.state.element_size()
        for entry in flat.layout_entries():
            if entry["field"] == "master":
                start = entry["offset"] // item
                piece = flat.master[start : start + entry["nbytes"] // item]
                found[entry["name"]] = piece.view(entry["global_shape"]).clone()
    session.leave()
    session.close()
    return found
