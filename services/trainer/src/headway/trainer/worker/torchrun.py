"""The trainer without other services: one process per rank, started by torchrun or by hand.

Data are read in the process and there is no steering; a lost rank ends the run, as usual under
torchrun. For recovery, checkpoints and monitoring use ``headway run``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from headway.common.config import load
from headway.common.errors import InputError
from headway.dataloader.client import DataClient
from headway.trainer.comm import nccl_profile
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import DataFactory, Split
from headway.trainer.device.choose import take_device
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.device.machine import resolve_auto
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.worker.failures import is_out_of_memory
from headway.trainer.worker.memory import too_small
from headway.trainer.worker.node_resources import replica_stream

GENERATION = 0
STORE_KEY = "headway/store"
AUTO_KEY = "headway/auto"


@dataclass(frozen=True)
class Place:
    """The environment that torchrun sets for this process; without torchrun, a world of one."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def from_environment(cls) -> Place:
        """Read the variables that torchrun sets."""
        env = os.environ
        if "WORLD_SIZE" not in env:
            return cls()
        return cls(
            rank=int(env["RANK"]),
            local_rank=int(env["LOCAL_RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            local_world_size=int(env["LOCAL_WORLD_SIZE"]),
            address=env["MASTER_ADDR"],
            port=int(env["MASTER_PORT"]),
        )

    @property
    def host(self) -> str:
        """The address to listen on.

        It is loopback on one machine, else the address of the route to the master.
        """
        if self.world_size == self.local_world_size:
            return "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))
            return str(probe.getsockname()[0])


class Progress(StepHooks):
    """Prints on rank 0; SIGTERM and SIGINT end the run after the step."""

    def __init__(
        self, config: RunConfig, *, speaks: bool, after_first: Callable[[], object]
    ) -> None:
        self._steps, self._speaks = config.train.steps, speaks
        self._after_first: Callable[[], object] | None = after_first
        self._stop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask_stop())

    def stop_requested(self) -> bool:
        """A signal came."""
        return self._stop

    def on_step(self, result: StepResult) -> None:
        """One line per step."""
        if self._after_first is not None:
            self._after_first()
            self._after_first = None
        rate = result.num_tokens / max(result.duration_s, 1e-9)
        skipped = f"  skipped: {result.spike or 'not finite'}" if result.skipped else ""
        self.say(
            f"step {result.step + 1}/{self._steps}  loss {result.loss:.4f}  norm "
            f"{result.grad_norm:.3f}  "
            f"lr {result.lr:.2e}  {rate:,.0f} tokens/s{skipped}"
        )

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """One line per validation."""
        del sequence
        self.say(f"validation loss after {step} steps: {loss:.4f}")

    def say(self, line: str) -> None:
        """Print on the reporting rank."""
        if self._speaks:
            print(line, flush=True)

    def _ask_stop(self) -> None:
        self._stop = True


def train(files: list[Path], overrides: list[str]) -> int:
    """Train the configuration's whole run as this process's rank.

    Raises:
        InputError: the configuration is bad, does not fit the world, or its data are missing.
    """
    place = Place.from_environment()
    gpus = torch.cuda.device_count()
    config, line = resolve_auto(
        load(RunConfig, files, overrides), ranks=place.local_world_size, gpus=gpus
    )
    if config.parallel.world_size != place.world_size:
        raise InputError(
            f"the configuration has {config.parallel.world_size} ranks, {place.world_size} were "
            "started",
            remedy=f"use torchrun --nproc-per-node {config.parallel.world_size} -m "
            "headway.trainer train ...",
        )
    if config.train.on_spike == "rollback":
        raise InputError(
            "train.on_spike=rollback needs a driver, which goes back to a checkpoint",
            remedy="use `headway run`, or skip or stop",
        )
    meeting = None
    if place.world_size > 1:
        meeting = Meeting(place, config.limits.join_timeout_s)
        config = meeting.alike(config)
    torch.set_num_threads(config.launch.threads_per_rank)
    if config.train.deterministic:
        make_deterministic()
    device = torch.device("cpu")
    if config.train.device == "gpu":
        nccl_profile.apply(config.parallel)
        device = take_device(place.local_rank)
    limit_s = config.recovery.group_timeout_s
    progress = Progress(
        config, speaks=place.rank == 0, after_first=lambda: session.groups.limit(limit_s)
    )
    progress.say(line)
    session = Session(config, place.rank, data_factory=_data(config, place.rank), device=device)
    try:
        session.join(_groups(config, place, device, meeting))
        session.load("init")
        session.run(progress)
        if session.is_complete and config.train.sample_tokens:
            _show_sample(session, progress)
        session.groups.meet()
        if session.spike is not None:
            raise session.spike
    except Exception as error:
        if is_out_of_memory(error):
            raise too_small(config, place.rank, error) from error
        raise
    finally:
        session.leave()
    return 0


def _groups(
    config: RunConfig, place: Place, device: torch.device, meeting: Meeting | None
) -> Groups:
    """The groups, built through torchrun's own store; a world of one needs none."""
    if meeting is None:
        return Groups.alone(GENERATION)
    return build(
        GENERATION,
        config.parallel.grid,
        place.rank,
        host=place.host,
        announce=meeting.announce,
        lookup=meeting.lookup,
        channels=Channels(),
        timeout_s=config.recovery.group_timeout_s,
        first_timeout_s=config.recovery.first_step_timeout_s,
        join_timeout_s=config.limits.join_timeout_s if device.type == "cuda" else None,
        device=device,
        joins_ends=config.exchanges_table,
        ctas=Ctas.of(config.parallel),
    )


class Meeting:
    """What ranks tell each other through the store that torchrun's agent serves."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        self._is_first = place.rank == 0
        dist: Any = torch.distributed
        self._store = dist.TCPStore(
            place.address, place.port, is_master=False, timeout=timedelta(seconds=timeout_s)
        )

    def alike(self, config: RunConfig) -> RunConfig:
        """The configuration with the type and ``compile`` of rank 0.

        Each rank resolves ``auto`` on its own machine, and one may lack a compiler. Such a rank
        refuses to run where rank 0 has one (``Session.load``).
        """
        train = config.train
        if self._is_first:
            self._store.set(AUTO_KEY, json.dumps([train.dtype, train.compile]))
        dtype, compiles = json.loads(self._store.get(AUTO_KEY))
        train = dataclasses.replace(train, dtype=dtype, compile=compiles)
        return dataclasses.replace(config, train=train)

    def announce(self, endpoint: StoreEndpoint) -> None:
        """Rank 0 publishes where our store listens."""
        self._store.set(STORE_KEY, json.dumps([endpoint.host, endpoint.port, endpoint.secret]))

    def lookup(self) -> StoreEndpoint:
        """The others wait."""
        host, port, secret = json.loads(self._store.get(STORE_KEY))
        return StoreEndpoint(str(host), int(port), str(secret))


def _data(config: RunConfig, rank: int) -> DataFactory:
    """Batches read in this process; the same as a data daemon's."""
    dp_rank = config.parallel.grid.coordinates(rank).dp

    def make(split: Split, start_sample: int, generation: int, fingerprint: str) -> DataClient:
        spec = replica_stream(config, split, start_sample, generation, dp_rank, 1, fingerprint)
        return DataClient(None, spec=spec, copy=False)

    return make


def _show_sample(session: Session, progress: Progress) -> None:
    """A few tokens of the trained model, as text where the corpus has its tokenizer."""
    folder = Path(session.config.data.path)
    prompt = [int(json.loads((folder / "meta.json").read_text())["eod_id"])]
    started_s = time.monotonic()
    tokens = session.sample(prompt, session.config.train.sample_tokens)
    text = str(tokens)
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens)
    progress.say(f"sample ({time.monotonic() - started_s:.1f} s):\n{text}")
    sys.stdout.flush()
