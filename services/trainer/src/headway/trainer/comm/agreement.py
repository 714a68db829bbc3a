"""The two small world all-reduces of a step: sums over the ranks, and their agreement.

They replace every round trip to a driver: after them each rank has the same norm and loss, the
newest command that all ranks have, and the newest snapshot that all ranks have sealed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.interface import Comm, Reducer
from headway.trainer.comm.nccl import read_when_ready


@dataclass(frozen=True)
class Sums:
    """World sums of the squared gradient norm, of the loss, and of the tokens that count.

    The norm is that before any scaling; the loss is summed over tokens.
    """

    norm_square: float
    loss_sum: float
    num_tokens: float

    @property
    def mean_loss(self) -> float:
        """Mean loss per counted token, in nats; NaN without tokens."""
        return self.loss_sum / self.num_tokens if self.num_tokens else math.nan


@dataclass(frozen=True)
class Agreement:
    """One rank's part of the agreement, or the result of it."""

    command: int
    """Newest steering command received; 0 for none."""
    sealed: int
    """Newest snapshot sealed; -1 for none."""
    every: int = 1
    """Steps between two snapshots that this rank proposes."""
    stop: bool = False
    """Whether this rank wants the run to end with this step."""
    bad: bool = False
    """Whether this rank saw a value that is not finite, or a spike that is to be skipped."""
    busy: bool = False
    """Whether this rank's store still works on the last durable snapshot."""
    moved: bool = False
    """Whether this rank's store made progress since the last round; only at the end of a run."""
    full: bool = False
    """Whether this rank has no memory for snapshots beside the one that is marked durable."""


def all_reduce_sums(world: Reducer, channels: Channels, values: torch.Tensor) -> Sums:
    """Sum fp64 [3] (norm square, loss sum, tokens) over the world, in place.

    Raises:
        Aborted: the generation was fenced.
    """
    world.all_reduce(values).wait()
    return Sums(*read_when_ready(values, channels))


def all_reduce_agreement(
    world: Reducer, channels: Channels, mine: Agreement, device: torch.device
) -> Agreement:
    """Return the agreement of all ranks.

    It has the oldest command and snapshot, the longest distance between snapshots, and every flag
    that any rank set. When it returns, each
    rank has sealed the snapshot it names: that one is committed.

    Raises:
        Aborted: the generation was fenced.
    """
    values = torch.tensor(
        [
            *(-mine.command, -mine.sealed, mine.every),
            *(mine.stop, mine.bad, mine.busy, mine.moved, mine.full),
        ],
        dtype=torch.float64,
    ).to(device)
    world.all_reduce(values, "max").wait()
    command, sealed, every, *flags = read_when_ready(values, channels)
    return Agreement(int(-command), int(-sealed), int(every), *(flag > 0 for flag in flags))


def least(world: Reducer, channels: Channels, number: float, device: torch.device) -> float:
    """Return the smallest number of all ranks, each a whole number below 2^53 or infinity.

    Raises:
        Aborted: the generation was fenced.
    """
    values = torch.tensor([-number], dtype=torch.float64).to(device)
    world.all_reduce(values, "max").wait()
    return -read_when_ready(values, channels)[0]


def gathered(comm: Comm, mine: torch.Tensor) -> torch.Tensor:
    """Return every member's flat ``mine`` [n] as [size * n], in rank order.

    Raises:
        Aborted: the generation was fenced.
    """
    everyone = torch.empty(comm.size * len(mine), dtype=mine.dtype, device=mine.device)
    comm.all_gather(everyone, mine).wait()
    return everyone


def total(
    world: Reducer, channels: Channels, numbers: Sequence[float], device: torch.device
) -> list[float]:
    """Return the sums of equally many numbers of all ranks.

    Raises:
        Aborted: the generation was fenced.
    """
    values = torch.tensor(numbers, dtype=torch.float64).to(device)
    world.all_reduce(values).wait()
    return read_when_ready(values, channels)


def readers_of_other_data(
    world: Reducer, channels: Channels, fingerprint: str, device: torch.device
) -> list[int]:
    """Ranks whose data differ from those of the lowest reading rank; equal on all ranks.

    Once per generation and split, by all ranks together; "" on a rank that reads nothing.

    Raises:
        Aborted: the generation was fenced.
    """
    values = torch.full((world.size,), -1.0, dtype=torch.float64)
    if fingerprint:
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=6).digest()
        values[world.rank] = int.from_bytes(digest, "little")  # 48 bits: exact in fp64
    values = values.to(device)
    world.all_reduce(values, "max").wait()
    found = {r: v for r, v in enumerate(read_when_ready(values, channels)) if v >= 0}
    return [rank for rank, value in found.items() if value != found[min(found)]]
