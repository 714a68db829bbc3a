"""A rank's training across generations: join, restore, run, leave; the model stays in memory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.arena import Arena
from headway.common.node.compiler import INSTALL_COMPILER, lack_for_compiling
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.nccl import settle
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchReader, DataFactory, Split
from headway.trainer.data.data_streams import DataStreams
from headway.trainer.device.recorder import NoRecorder, Recorder
from headway.trainer.errors import RefusedError, SpikeError, SpikeRollback
from headway.trainer.exchange.first_weights import load_first_weights
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.tied import TiedTable
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model
from headway.trainer.session.context import StepContext
from headway.trainer.session.evaluation import Evaluation
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.loop import run_steps
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.layout_check import difference
from headway.trainer.state.slot_layout import layout, offsets
from headway.trainer.state.snapshot import Snapshots
from headway.trainer.state.train_state import TrainState

ArenaFactory = Callable[[int, bytes], Arena]
"""``(slot_bytes, layout)`` -> the rank's arena, created or opened; a damaged one or one
with another layout is replaced by an empty one. Called when its size is known, and again if
it is damaged later."""

Source = Literal["init", "arena", "durable"]

log = get_logger("session")


class Session:
    """One rank's model and state.

    ``join`` -> ``load`` -> ``run`` -> ``leave``, repeatedly; ``leave`` may follow any of them, also
    if it raised. All calls are made on the main thread.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        *,
        data_factory: DataFactory,
        open_arena: ArenaFactory | None = None,
        recorder: Recorder | None = None,
        device: torch.device | str = "cpu",
        rehearses: bool | None = None,
        store_moved: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a session without a model, which the first ``join`` builds.

        ``store_moved``: whether the node's store made progress since the last call. ``rehearses``:
        whether a whole step is rehearsed before the first one; None means on GPUs.
        """
        self.config, self.rank = config, rank
        self.device = torch.device(device)
        self._data_factory = data_factory
        self._recorder = recorder or NoRecorder()
        self._open_arena = open_arena
        self._store_moved = store_moved
        self._tp: TensorParallel | None = None
        self._data: DataStreams | None = None
        self.chunks: list[Chunk] = []
        self.flats: list[FlatChunk] = []
        self._arena: Arena | None = None
        self._snapshots: Snapshots | None = None
        self._groups: Groups | None = None
        self._state = TrainState(step=0, samples=0)
        self._is_used = False
        self._compiles = config.train.compile is True
        self._rehearses = self.device.type == "cuda" if rehearses is None else rehearses
        self.is_last_wanted = False
        """Whether ``run`` could mark its last snapshot durable."""
        self.is_complete = False
        """Whether ``run`` has done the last step of the run."""
        self.spike: SpikeError | SpikeRollback | None = None
        """The spike that ended ``run``; to be raised once all ranks' last snapshots are durable, if
        they are wanted."""

    def join(self, groups: Groups) -> None:
        """Use ``groups`` from now on; the first call builds the model."""
        self._groups = groups
        self._recorder.set_generation(groups.generation)
        if self._tp is None:
            parallel = self.config.parallel
            tp = TensorParallel(
                groups["tp"],
                pieces=parallel.tp_pieces,
                keeps_whole=parallel.tp_keep == "whole",
            )
            place = parallel.grid.coordinates(self.rank)
            self.chunks, self.flats = build_model(self.config, place, tp, self.device)
            self._data = DataStreams(
                self._data_factory,
                self._recorder,
                self.device,
                rank=self.rank,
                path=self.config.data.path,
                first=any(chunk.is_first for chunk in self.chunks),
                last=any(chunk.is_last for chunk in self.chunks),
                document_end=self.config.model.document_end,
            )
            self._tp = tp  # last: what runs out of memory above is tried again
        self._tp.comm = groups["tp"]

    def rehearse_again(self) -> None:
        """What the rehearsal had the allocator keep was given back."""
        self._rehearses = self._rehearses or self.device.type == "cuda"

    def load(
        self,
        source: Source,
        step: int = 0,
        state: tuple[npt.NDArray[np.uint8], bytes] | None = None,
        *,
        skip_to: int = 0,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Put the state after ``step`` completed steps in place.

        ``init`` draws the first weights, or reads those of ``train.init_from`` (``step`` is 0),
        ``arena`` takes the rank's own arena, ``durable`` takes ``state``: data and extra as the
        checkpoint store's ``read_shard`` returns them. ``progress`` is called with the bytes of the
        state that each piece of the first weights has completed, and while kernels are compiled;
        what it raises ends the load. ``skip_to`` is the position from which the data continue, if
        that of the state is before it.

        Raises:
            BadSnapshotError: the arena has no intact snapshot of that step; ``load`` may be called
                again with another source.
            CorruptError: ``state`` does not fit this model.
            RefusedError: the weights of ``train.init_from`` do not; or there is no compiler here
                for ``train.compile``.
        """
        snapshots = self._sound_snapshots()
        with self._recorder.record(Kind.RESTORE, step=step):
            if self._is_used:
                self._renew_memory()
            self._is_used = True
            if self._compiles and (lack := lack_for_compiling(on_gpu=self.device.type == "cuda")):
                raise RefusedError(
                    f"train.compile: on {platform.node()} {lack}", remedy=INSTALL_COMPILER
                )
            if self._rehearses:  # leaves garbage, so before the state
                from headway.trainer.session.rehearsal import rehearse_step

                rehearse_step(self._context(), progress)
                self._rehearses = self._compiles = False
            snapshots.lock()
            extra = TrainState(step=0, samples=0)
            if source == "arena":
                extra = snapshots.restore(step)
            else:
                snapshots.forget()
                if source == "durable":
                    assert state is not None
                    snapshots.load(state[0])
                    extra = TrainState.unpack(state[1])
                elif folder := self.config.train.init_from:
                    load_first_weights(self.flats, Path(folder), progress)
                else:
                    for flat in self.flats:
                        flat.load_master_from_init(self.config.train.seed, progress)
            for flat in self.flats:
                flat.cast_shard_to_params()
            if self._compiles:
                # it loads torch's compiler, which takes seconds and 100 MiB
                from headway.trainer.model.rehearsal import rehearse

                rehearse(self.chunks, self.config.train.micro_batch_size, progress)
                self._compiles = False
        if extra.step != step:
            raise ValueError(f"the snapshot asked for as {step} says it is {extra.step}")
        extra.samples = max(extra.samples, skip_to)
        self._state = extra
        assert self._data is not None
        self._data.fingerprints["train"] = extra.fingerprint
        self._data.fingerprints["validation"] = extra.validation_fingerprint

    def _renew_memory(self) -> None:
        """Take fresh memory: an abandoned operation may still write to the old buffers."""
        settle(self.device)
        flats = iter(self.flats)
        for chunk in self.chunks:
            chunk.unbind()
            memory = [next(flats) for _ in chunk.buckets]
            for flat in memory:
                flat.renew()
            chunk.bind(*memory)

    def check_layout(self, found: Mapping[str, Any], where: str) -> None:
        """Raises RefusedError, naming the first difference, unless the layout is this model's."""
        if unequal := difference(self._layout(), found):
            raise RefusedError(
                f"{where} holds another model's state: {unequal}",
                remedy="resume with the configuration and the Headway version that saved it, or "
                "start a new run under another --name",
            )

    def run(self, hooks: StepHooks, until: int | None = None) -> None:
        """Train from ``self.step`` to the end of the run, to ``until`` steps, or to a stop.

        ``until`` counts completed steps.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
            RefusedError: the data are not those that the run began with, or differ between ranks.
            DivergedError: ``train.max_skipped_steps`` steps in a row were skipped.
        """
        context, state, moved = self._context(), self._state, self._store_moved
        ending = run_steps(context, state, hooks, self._reader, until=until, store_moved=moved)
        self.is_complete, self.is_last_wanted = ending.is_complete, ending.is_last_wanted
        self.spike = ending.spike

    def leave(self) -> None:
        """Release the generation; never blocks.

        This frees groups, data, and what an abandoned operation may hold.
        """
        if self._snapshots is not None:
            try:
                self._snapshots.finish()
            finally:
                if self._data is not None:
                    self._data.close()
        if self._groups is not None:
            self._groups.release()
            self._groups = None

    def close(self) -> None:
        """After ``leave``: end the snapshot thread."""
        if self._snapshots is not None:
            self._snapshots.close()

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._state.step

    @property
    def samples(self) -> int:
        """Global samples consumed in ``step`` steps."""
        return self._state.samples

    @property
    def groups(self) -> Groups:
        """The generation's groups; after ``join``, before ``leave``."""
        assert self._groups is not None
        return self._groups

    def sample(self, prompt: list[int], count: int) -> list[int]:
        """Tokens that the model writes after ``prompt``; right after ``run``, on all ranks."""
        context = self._context()
        return Evaluation(context, context.data_parallel()).sample(self.step, prompt, count)

    def ready_snapshots(self) -> Snapshots:
        """Return the snapshotter of the rank's arena; called after ``join``.

        The first call creates or opens the arena.
        """
        if self._snapshots is None:
            if self._open_arena is not None:
                self._arena = self._open_arena(offsets(self.flats)[1], self._layout())
            self._snapshots = Snapshots(self._arena, self.flats)
        return self._snapshots

    def _sound_snapshots(self) -> Snapshots:
        """Return the snapshotter, with a new arena if this one was damaged since it was opened.

        A survivor that kept using a damaged arena would lose its state at every later recovery.
        """
        snapshots = self.ready_snapshots()
        try:
            snapshots.check()
        except CorruptError as error:
            log.error("this rank's arena is damaged and is replaced", reason=error.message)
            snapshots.close()
            if self._arena is not None:
                self._arena.close()
            self._snapshots = self._arena = None
            snapshots = self.ready_snapshots()
        return snapshots

    def _layout(self) -> bytes:
        return layout(self.flats, self.config.parallel.grid, self.rank)

    def _context(self) -> StepContext:
        assert self._tp is not None and self._data is not None
        return StepContext(
            config=self.config,
            rank=self.rank,
            chunks=self.chunks,
            flats=self.flats,
            tp=self._tp,
            groups=self.groups,
            snapshots=self.ready_snapshots(),
            recorder=self._recorder,
            device=self.device,
            tied=TiedTable(
                self.chunks,
                self.groups.pipe,
                self._recorder,
                is_used=self.config.exchanges_table,
            ),
            fingerprints=self._data.fingerprints,
        )

    def _reader(self, split: Split) -> BatchReader:
        assert self._data is not None
        start = self._state.samples if split == "train" else 0
        return self._data.reader(split, self.groups, step=self.step, start=start)
