"""One rank of a trial: joins its peers, trains from the first weights, and reports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from headway.common.node.files import replace_file
from headway.dataloader.client import DataClient
from headway.trainer.comm import nccl_profile
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchSource, DataFactory, NumpyBatch, Split
from headway.trainer.device.choose import take_device
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.device.locality import bind_near, pci_address
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.trials.order import Outcome
from headway.trainer.trials.passes import Passes
from headway.trainer.trials.stand_in import sleeping
from headway.trainer.worker.memory import MemoryMeter
from headway.trainer.worker.node_resources import data_readers, replica_stream

LOOK_S = 0.002
"""Between two looks for the file with the address of rank 0's store."""


@dataclass(frozen=True)
class Place:
    """Where a rank of a trial finds the others and its data."""

    rank: int
    generation: int
    """Number of the trial, by which a data daemon distinguishes streams."""
    folder: Path
    """The trial's own folder, where rank 0 writes the address of its store."""
    endpoint: str = ""
    """The data daemon's; "" reads in this process."""
    passes: Sequence[Sequence[Passes]] | None = None
    """The passes that a stand-in plays, by pipeline rank and chunk."""


def train(config: RunConfig, place: Place) -> Outcome:
    """Train ``config`` to its last step.

    Raises:
        HeadwayError: the data cannot be read, or the device cannot be used.
        RuntimeError: a peer failed.
    """
    torch.set_num_threads(config.launch.threads_per_rank)
    if config.train.deterministic:
        make_deterministic()
    device = _take_device(config, place.rank)
    meter = MemoryMeter(device)
    session = Session(config, place.rank, data_factory=_data(config, place), device=device)
    clock = _Clock(lambda: session.groups.limit(config.recovery.group_timeout_s))
    try:
        session.join(_groups(config, place, device))
        if place.passes is not None:
            own = place.passes[config.parallel.grid.coordinates(place.rank).pp]
            session.chunks = sleeping(session.chunks, own, config.train.micro_batch_size)
        session.load("init")
        meter.restart()
        session.run(clock)
        session.groups.meet()
    finally:
        session.leave()
    if place.passes is not None:
        return Outcome(clock.step_s)
    return Outcome(clock.step_s, clock.eval_loss, meter.peak())


def _take_device(config: RunConfig, rank: int) -> torch.device:
    """The rank's device, with NCCL's profile and next to the CPUs that a run's rank has, too."""
    if config.train.device != "gpu":
        return torch.device("cpu")
    nccl_profile.apply(config.parallel)
    device = take_device(rank)
    if device.type == "cuda":
        bind_near(pci_address(device))
    return device


class _Clock(StepHooks):
    """Takes the time of each step, from the end of the one before."""

    def __init__(self, after_first: Callable[[], object]) -> None:
        self.step_s: list[float] = []
        self.eval_loss: float | None = None
        self._ended_s = 0.0
        self._after_first = after_first

    def on_step(self, result: StepResult) -> None:
        """A step is complete."""
        now_s = time.monotonic()
        if not self.step_s:
            self._after_first()
        self.step_s.append(now_s - self._ended_s if self.step_s else result.duration_s)
        self._ended_s = now_s

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """The last one counts."""
        del step, sequence
        self.eval_loss = loss


def _groups(config: RunConfig, place: Place, device: torch.device) -> Groups:
    return build(
        place.generation,
        config.parallel.grid,
        place.rank,
        host="127.0.0.1",
        announce=lambda endpoint: _announce(place.folder, endpoint),
        lookup=lambda: _look_up(place.folder),
        channels=Channels(),
        timeout_s=config.recovery.group_timeout_s,
        first_timeout_s=config.recovery.first_step_timeout_s,
        join_timeout_s=config.limits.join_timeout_s,
        device=device,
        joins_ends=config.exchanges_table,
        ctas=Ctas.of(config.parallel),
    )


def _announce(folder: Path, endpoint: StoreEndpoint) -> None:
    words = json.dumps([endpoint.host, endpoint.port, endpoint.secret])
    replace_file(folder / "store", words, mode=0o600)


def _look_up(folder: Path) -> StoreEndpoint:
    """Wait for rank 0; its death ends this process."""
    while not (folder / "store").exists():
        time.sleep(LOOK_S)
    host, port, secret = json.loads((folder / "store").read_text())
    return StoreEndpoint(str(host), int(port), str(secret))


def _data(config: RunConfig, place: Place) -> DataFactory:
    def make(split: Split, start: int, generation: int, fingerprint: str) -> BatchSource:
        dp_rank = config.parallel.grid.coordinates(place.rank).dp
        if place.passes is not None:
            return _Blank(
                config, dp_rank, config.train.eval_batches if split == "validation" else 0
            )
        readers = data_readers(config, place.rank) if place.endpoint else [place.rank]
        spec = replica_stream(config, split, start, generation, dp_rank, len(readers), fingerprint)
        return DataClient(
            place.endpoint or None,
            spec=spec,
            reader=readers.index(place.rank),
            timeout_s=config.data.wait_timeout_s,
            copy=False,
        )

    return make


@dataclass(frozen=True)
class _BlankBatch:
    tokens: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    labels: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    mask: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    sample: int


class _Blank:
    """Batches of token 0, which a stand-in does not look at; every label counts.

    They begin anew after ``cycle`` global batches, 0 for never.
    """

    fingerprint = "stand-in"

    def __init__(self, config: RunConfig, dp_rank: int, cycle: int) -> None:
        size, seq_len = config.train.micro_batch_size, config.model.seq_len
        self._tokens = np.zeros((size, seq_len), np.int32)
        self._mask = np.ones((size, seq_len), np.uint8)
        self._batch_size, self._dp = config.train.global_batch_size, config.parallel.dp
        self._dp_rank, self._size, self._cycle = dp_rank, size, cycle
        self._count = config.micro_batches_of(self._batch_size, dp_rank)
        self._taken = 0

    def next(self, abort: Callable[[], bool] | None = None) -> NumpyBatch:
        """The next micro-batch."""
        del abort
        batch, local = divmod(self._taken, self._count)
        self._taken += 1
        if self._cycle:
            batch %= self._cycle
        sample = batch * self._batch_size + (local * self._dp + self._dp_rank) * self._size
        return _BlankBatch(self._tokens, self._tokens, self._mask, sample)

    def close(self) -> None:
        """Nothing to close."""
