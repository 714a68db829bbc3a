"""What a step works with: the rank's model and state, and the groups of its generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from headway.common.node.failpoints import failpoint
from headway.common.node.flight_record import WAITING
from headway.common.plan.collectives import GroupKind, Op
from headway.common.plan.grid import Coordinates
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.agreement import Sums, all_reduce_sums
from headway.trainer.comm.every_rank import EveryRank
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchReader, MicroBatch, Split
from headway.trainer.device.recorder import Recorder
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.tied import TiedTable
from headway.trainer.parallel.data import DataParallel
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.snapshot import Snapshots


@dataclass
class StepContext:
    """What a rank trains with; ``groups`` belongs to one generation, the rest is kept."""

    config: RunConfig
    rank: int
    chunks: Sequence[Chunk]
    flats: Sequence[FlatChunk]
    """The memory of all buckets of the chunks, in order."""
    tp: TensorParallel
    groups: Groups
    snapshots: Snapshots
    recorder: Recorder
    device: torch.device
    tied: TiedTable
    fingerprints: Mapping[Split, str]
    """Fingerprints of the data read so far in this run; stored in snapshots."""

    @property
    def place(self) -> Coordinates:
        """The rank's coordinates."""
        return self.config.parallel.grid.coordinates(self.rank)

    def buckets_of(self, chunk: int) -> range:
        """The places of a chunk's buckets in ``flats``."""
        first = sum(len(one.buckets) for one in self.chunks[:chunk])
        return range(first, first + len(self.chunks[chunk].buckets))

    def take_batches(
        self, reader: BatchReader, start: int, batch_size: int, num_batches: int = 1
    ) -> list[MicroBatch]:
        """This replica's micro-batches of global batches of ``batch_size`` samples.

        The first one begins with global sample ``start``. Micro-batch j of each belongs to replica
        j mod dp.

        Raises:
            Aborted: the generation was fenced.
        """
        size, channels = self.config.train.micro_batch_size, self.groups.channels
        own = range(self.place.dp * size, batch_size, self.config.parallel.dp * size)
        samples = [start + n * batch_size + at for n in range(num_batches) for at in own]
        return reader.take(samples, lambda: channels.aborted)

    def data_parallel(self) -> DataParallel:
        """The collectives over the buckets, with the switches of the configuration."""
        parallel = self.config.parallel
        return DataParallel(
            self.flats,
            [
                (number, bucket if len(chunk.buckets) > 1 else -1)
                for number, chunk in enumerate(self.chunks)
                for bucket in range(len(chunk.buckets))
            ],
            self.groups["dp"],
            self.recorder,
            overlap_gather=parallel.overlap_param_gather,
            overlap_reduce=parallel.overlap_grad_reduce,
            reduce_in=torch.bfloat16 if parallel.grad_reduce == "bf16" else None,
        )

    def sum_over_ranks(
        self,
        norm_square: torch.Tensor | float,
        loss_sum: torch.Tensor,
        num_tokens: float,
        step: int,
    ) -> Sums:
        """Return the sums over all ranks.

        Each tp rank of a last stage holds the whole loss, so only the first one's counts.

        Raises:
            Aborted: the generation was fenced.
        """
        values = torch.zeros(3, dtype=torch.float64, device=self.device)
        values[0] = norm_square
        if self.place.tp == 0:
            values[1], values[2] = loss_sum, num_tokens
        name = self.groups.line(GroupKind.EVERY_RANK).coming(Op.ALL_REDUCE)
        with self.recorder.record(Kind.SUMS, step=step, flags=WAITING, collective=name):
            return all_reduce_sums(self.groups.every_rank, self.groups.channels, values)

    def agreement(self, step: int) -> AbstractContextManager[int]:
        """The record of a reduction by which all ranks agree on something."""
        name = self.groups.line(GroupKind.EVERY_RANK).coming(Op.ALL_REDUCE)
        return self.recorder.record(Kind.AGREEMENT, step=step, flags=WAITING, collective=name)

    def sum_over_stage(self, values: torch.Tensor, step: int) -> None:
        """Add ``values`` in place over the ranks that hold pieces of the same parameters.

        Those are the ranks of tp and dp; all get the same bits. The sum is recorded as a wait, so
        that a hang is not blamed on this rank.

        Raises:
            Aborted: the generation was fenced.
        """
        comms, grid = (self.groups["tp"], self.groups["dp"]), self.config.parallel.grid
        place, line = self.place.dp * grid.tp + self.place.tp, self.groups.line(GroupKind.STAGE)
        stage = EveryRank(comms, place, grid.tp * grid.dp, line)
        nbytes = values.nbytes
        with self.recorder.record(
            Kind.ALL_GATHER,
            step=step,
            nbytes=nbytes,
            flags=WAITING,
            collective=line.coming(Op.ALL_REDUCE),
        ):
            failpoint("worker.stage_sum", step=step)
            stage.all_reduce(values).wait()
