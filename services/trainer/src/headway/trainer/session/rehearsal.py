"""One evaluation and one step of a rank, alone and on zeros, before anything waits for a peer.

CUDA loads a kernel at its first launch (CUDA C++ programming guide, "Lazy Loading"), and the host
stays in that launch until everything that is queued on the device has ended. The same holds while
memory is page-locked, and when torch's allocator has to get or to free memory. A receive that is
posted ahead ends when a peer sends, and that peer may wait for this rank: in the first step on GPUs
every pipeline would hang. So a rank first runs the code of a real step, with groups and messages
that only copy: it loads and compiles every kernel and leaves the allocators with the memory that a
step needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import LANES
from headway.trainer.comm.every_rank import EveryRank
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Comm, Done, Op, SingleRank, Ticket
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchReader
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.model.rehearsal import Echo, alone
from headway.trainer.model.tied import TiedTable
from headway.trainer.session.commands import ControlLoop
from headway.trainer.session.commits import Commits
from headway.trainer.session.context import StepContext
from headway.trainer.session.evaluation import Evaluation
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.step import TrainStep
from headway.trainer.state.snapshot import Snapshots
from headway.trainer.state.train_state import TrainState

SHORT_DOCUMENT = 16
"""Tokens, fewer than ``kernels.varlen`` packs."""


def rehearse_step(context: StepContext, progress: Callable[[int], object]) -> None:
    """Evaluate and train once; parameters, gradients and optimizer state are garbage afterwards.

    ``progress`` is called with 1 between the passes and before each compiled operation, and what it
    raises ends the rehearsal.

    Raises:
        Aborted: the generation was fenced.
        RefusedError: the compiler failed, as it would again after a restart.
    """
    with alone(context.tp, progress):
        parts = _alone(context)
        _lock_batches(parts)
        progress(1)
        few = dataclasses.replace(parts, config=_short(parts.config))
        data, state, hooks = few.data_parallel(), TrainState(step=0, samples=0), StepHooks()
        Evaluation(few, data).loss(0, _reader(few))
        progress(1)
        commits = Commits(few, state, hooks)
        control = ControlLoop(few, state, hooks, commits)
        TrainStep(few, state, data, _reader(few), control, commits).run()
        progress(1)


class Kept(Done):
    """A message under way that keeps its tensor until it is waited for.

    A send to a late peer does so, too; this way the allocator learns of as much memory as a step
    may need.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def done(self) -> bool:
        """Never, so the pipeline has as many at once as it allows."""
        return False


class EchoLane(SingleRank):
    """A lane in which every message is there at once, and zero."""

    def send(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Send nothing."""
        del peer, tag, line
        return Kept(tensor)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Zero ``tensor``."""
        del peer, tag, line
        tensor.zero_()
        return Done()


class EchoPipe(PipeComm):
    """A pipeline of such lanes."""

    def __init__(self, rank: int, size: int, *, is_v: bool = False) -> None:
        super().__init__({lane: EchoLane() for lane in LANES}, rank, size, is_v=is_v)


class EchoWorld(EveryRank):
    """All ranks, of which the others contribute nothing but a token that counts.

    A step without such a token is skipped, and its optimizer with it.
    """

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Sums are 1 at least."""
        super().all_reduce(tensor, op).wait()
        if op == "sum":
            tensor.clamp_(min=1.0)
        return Done()


def _alone(context: StepContext) -> StepContext:
    """Return the context with groups that reach nobody, and without snapshots and records."""
    true, recorder = context.groups, NoRecorder()
    comms: dict[str, Comm] = {
        axis: Echo(comm.rank, comm.size) if comm.size > 1 else comm
        for axis, comm in true.comms.items()
    }
    pipe = EchoPipe(true.pipe.rank, true.pipe.size, is_v=true.pipe.stage_map.is_v)
    every_rank = EchoWorld(list(comms.values()), true.every_rank.rank, true.every_rank.size)
    groups = Groups(true.generation, true.channels, comms, pipe, every_rank)  # type: ignore[arg-type]
    is_used = context.config.exchanges_table
    return dataclasses.replace(
        context,
        groups=groups,
        recorder=recorder,
        snapshots=Snapshots(None, context.flats),
        tied=TiedTable(context.chunks, pipe, recorder, is_used=is_used),
    )


def enough(schedule: str, pp: int, num_micro_batches: int) -> int:
    """Return how many micro-batches put as many in flight at once as a real step does.

    A real step has ``num_micro_batches``. With GPipe all are in flight, with the other schedules
    two per stage at most.
    """
    return num_micro_batches if schedule == "gpipe" else min(num_micro_batches, 2 * pp)


def _short(config: RunConfig) -> RunConfig:
    """A run of the same shapes that takes no more micro-batches than it has to."""
    train, parallel = config.train, config.parallel
    count = enough(parallel.schedule, parallel.pp, config.num_micro_batches)
    if config.model.document_end is not None:
        count = max(count, 3)
    size = count * train.micro_batch_size * parallel.dp
    train = dataclasses.replace(train, global_batch_size=size, batch_ramp=(), eval_batches=1)
    health = dataclasses.replace(config.health, replay_every=min(config.health.replay_every, 1))
    return dataclasses.replace(config, train=train, health=health)


def _lock_batches(context: StepContext) -> None:
    """Have as much page-locked memory as the largest pass needs; torch keeps what is freed."""
    config = context.config
    count = max(1, config.train.eval_batches)
    context.take_batches(_reader(context), 0, config.train.global_batch_size, count)
    for chunk in context.chunks:
        chunk.reserve_positions(max(config.num_micro_batches, count), config.train.micro_batch_size)


def _reader(context: StepContext) -> BatchReader:
    is_first = any(chunk.is_first for chunk in context.chunks)
    is_last = any(chunk.is_last for chunk in context.chunks)
    return BatchReader(
        _Zeros(context.config, context.place.dp)
        if is_first or is_last or context.config.model.every_stage_reads
        else None,
        first=is_first,
        last=is_last,
        device=context.device,
        document_end=context.config.model.document_end,
    )


@dataclasses.dataclass(frozen=True)
class _Batch:
    tokens: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    labels: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    mask: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    sample: int


class _Zeros:
    """Tokens of one kind, which ends no document, and labels 0.

    In every other micro-batch a half of the labels does not count, and documents end in the middle.
    In every third one documents are so short that other kernels are used, see ``kernels.varlen``.
    """

    fingerprint = ""

    def __init__(self, config: RunConfig, dp_rank: int) -> None:
        self._config, self._dp_rank, self._taken = config, dp_rank, 0

    def next(self, abort: Callable[[], bool] | None = None) -> _Batch:
        """The next micro-batch."""
        del abort
        size, seq_len = self._config.train.micro_batch_size, self._config.model.seq_len
        batch_size = self._config.train.global_batch_size
        count = self._config.micro_batches_of(batch_size, self._dp_rank)
        batch, local = divmod(self._taken, count)
        sample = batch * batch_size + (local * self._config.parallel.dp + self._dp_rank) * size
        end = self._config.model.document_end
        tokens = np.full((size, seq_len), 1 if end == 0 else 0, np.int32)
        mask = np.ones((size, seq_len), np.uint8)
        if end is not None and self._taken % 3 == 2:
            tokens[:, ::SHORT_DOCUMENT] = end
        if self._taken % 2:
            mask[:, : seq_len // 2] = 0
            if end is not None:
                tokens[:, seq_len // 2] = end
        self._taken += 1
        return _Batch(tokens, np.zeros_like(tokens), mask, sample)

    def close(self) -> None:
        """Nothing to give up."""
