"""A rank's training across generations: join, restore, run, leave; the model stays in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.arena import Arena
from headway.common.node.flight import WAITING
from headway.common.node.ring import RingAbortedError
from headway.common.plan.schedule.actions import Kind
from headway.dataloader.client import ChangedDataError
from headway.trainer.batches import BatchReader, BatchSource, DataFactory, Split
from headway.trainer.build import build_model
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.context import StepContext
from headway.trainer.errors import DivergedError, RefusedError
from headway.trainer.hooks import StepHooks, StepResult
from headway.trainer.layout_check import difference
from headway.trainer.model.chunk import Chunk
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.recorder import NoRecorder, Recorder
from headway.trainer.sample import sample_text
from headway.trainer.snapshot import Extra, Snapshots, layout, offsets
from headway.trainer.state.flat import FlatChunk
from headway.trainer.steering import readers_of_other_data
from headway.trainer.step import TrainStep

ArenaFactory = Callable[[int, bytes], Arena]
"""``(slot_bytes, layout)`` -> the rank's arena, created or opened; a damaged one or one
with another layout is replaced by an empty one. Called when its size is known, and again if
it is damaged later."""

Source = Literal["init", "arena", "durable"]

PAUSE_ROUND_S = 0.05
STILL_ROUNDS = 1200
"""Rounds of ``PAUSE_ROUND_S`` without progress of any store that end the wait at a run's end."""

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
        store_moved: Callable[[], bool] = lambda: False,
    ) -> None:
        """``store_moved``: whether the node's store made progress since the last call."""
        self.config, self.rank = config, rank
        self.device = torch.device(device)
        self._data_factory = data_factory
        self._recorder = recorder or NoRecorder()
        self._place = config.parallel.grid.coordinates(rank)
        self._tp: TensorParallel | None = None
        self.chunks: list[Chunk] = []
        self.flats: list[FlatChunk] = []
        self._open_arena = open_arena
        self._store_moved = store_moved
        self._arena: Arena | None = None
        self._snapshots: Snapshots | None = None
        self._groups: Groups | None = None
        self._readers: dict[str, BatchReader] = {}
        self._extra = Extra(step=0, samples=0)
        self._fingerprints: dict[Split, str] = {"train": "", "validation": ""}
        self._is_used = False
        self.step = 0
        self.samples = 0
        """Global samples consumed in ``step`` steps."""
        self.is_last_wanted = False
        """Whether ``run`` could mark its last snapshot durable."""
        self.is_complete = False
        """Whether ``run`` has done the last step of the run."""

    def join(self, groups: Groups) -> None:
        """Use ``groups`` from now on; the first call builds the model."""
        self._groups = groups
        self._recorder.set_generation(groups.generation)
        if self._tp is None:
            self._tp = TensorParallel(groups["tp"], pieces=self.config.parallel.tp_pieces)
            self.chunks, self.flats = build_model(self.config, self._place, self._tp, self.device)
        self._tp.comm = groups["tp"]

    def load(
        self,
        source: Source,
        step: int = 0,
        state: tuple[npt.NDArray[np.uint8], bytes] | None = None,
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Put the state after ``step`` completed steps in place.

        ``init`` makes the first weights (``step`` is 0), ``arena`` takes the rank's own
        arena, ``durable`` takes ``state``: data and extra as the checkpoint store's
        ``read_shard`` returns them. ``progress`` is called with the bytes of the state that each
        piece of the first weights has completed; what it raises ends the load.

        Raises:
            BadSnapshotError: the arena has no intact snapshot of that step; ``load`` may be called
                again with another source.
            CorruptError: ``state`` does not fit this model.
        """
        snapshots = self._sound_snapshots()
        with self._recorder.record(Kind.RESTORE, step=step):
            if self._is_used:
                for chunk, flat in zip(self.chunks, self.flats, strict=True):
                    flat.renew()  # an abandoned operation may still write to the old buffers
                    chunk.bind(flat)
            self._is_used = True
            if source == "arena":
                self._extra = snapshots.restore(step)
            else:
                snapshots.forget()
                self._extra = Extra(step=0, samples=0)
                if source == "durable":
                    assert state is not None
                    snapshots.load(state[0])
                    self._extra = Extra.unpack(state[1])
                else:
                    for flat in self.flats:
                        flat.load_master_from_init(self.config.train.seed, progress)
            for flat in self.flats:
                flat.cast_shard_to_params()
        if self._extra.step != step:
            raise ValueError(f"the snapshot asked for as {step} says it is {self._extra.step}")
        self.step, self.samples = step, self._extra.samples
        self._fingerprints["train"] = self._extra.fingerprint
        self._fingerprints["validation"] = self._extra.validation_fingerprint

    def check_layout(self, found: Mapping[str, Any], where: str) -> None:
        """Raises RefusedError, naming the first difference, unless the layout is this model's."""
        if unequal := difference(self._layout(), found):
            raise RefusedError(
                f"{where} holds another model's state: {unequal}",
                remedy="resume with the configuration and the Headway version that saved it, or "
                "start a new run under another --name",
            )

    def run(self, hooks: StepHooks, until: int | None = None) -> None:
        """Train from ``self.step`` to the end of the run, or to ``until`` completed
        steps, or to a stop.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
            RefusedError: the data are not those that the run began with, or differ between ranks.
            DivergedError: ``train.max_skipped_steps`` steps in a row were not finite.
        """
        trainer = TrainStep(self._context(), hooks, self._reader("train"))
        trainer.applied, trainer.durable_due = self._extra.command, self._extra.durable_due
        trainer.samples = self.samples
        trainer.skipped = self._extra.skipped
        trainer.skipped_in_row = self._extra.skipped_in_row
        trainer.asked = self._extra.asked
        if self.ready_snapshots().sealed < self.step:
            trainer.snapshot(self.step, durable=False)
        trainer.directive = hooks.apply(self.step, trainer.applied, trainer.applied)
        if self.step >= trainer.total_steps:  # it may have been extended since
            trainer.control_round(self.step)
        while not trainer.directive.stop and self.step < (
            trainer.total_steps if until is None else until
        ):
            self._carry_out(trainer)
            if trainer.directive.pause:
                self._pause(trainer, hooks)
                continue
            if self._eval_is_due():
                hooks.on_eval(self.step, trainer.evaluate(self.step, self._reader("validation")))
            result = trainer.run(self.step)
            self.step, self.samples = self.step + 1, trainer.samples
            hooks.on_step(result)
            self._check_divergence(result)
        self._carry_out(trainer)
        self.is_complete = self.step >= trainer.total_steps
        if self.is_complete:
            hooks.on_eval(self.step, trainer.evaluate(self.step, self._reader("validation")))
        self._make_last_durable(trainer)

    def leave(self) -> None:
        """Release the generation: groups, data, and what an abandoned operation
        may hold. Never blocks."""
        if self._snapshots is not None:
            try:
                self._snapshots.finish()
            finally:
                self._close_readers()
        if self._groups is not None:
            self._groups.release()
            self._groups = None

    def close(self) -> None:
        """After ``leave``: end the snapshot thread."""
        if self._snapshots is not None:
            self._snapshots.close()

    @property
    def groups(self) -> Groups:
        """The generation's groups; after ``join``, before ``leave``."""
        assert self._groups is not None
        return self._groups

    def sample(self, prompt: list[int], count: int) -> list[int]:
        """Tokens that the model writes after ``prompt``; right after ``run``, on all ranks."""
        return sample_text(self._context(), prompt, count)

    def ready_snapshots(self) -> Snapshots:
        """The snapshotter of the rank's arena, which the first call creates or
        opens; after ``join``."""
        if self._snapshots is None:
            if self._open_arena is not None:
                self._arena = self._open_arena(offsets(self.flats)[1], self._layout())
            self._snapshots = Snapshots(self._arena, self.flats)
        return self._snapshots

    def _sound_snapshots(self) -> Snapshots:
        """The same with a new arena if this one was damaged since it was opened: a survivor that
        kept using it would lose its state at every later recovery."""
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
        assert self._groups is not None and self._tp is not None
        return StepContext(
            config=self.config,
            rank=self.rank,
            chunks=self.chunks,
            flats=self.flats,
            tp=self._tp,
            groups=self._groups,
            snapshots=self.ready_snapshots(),
            recorder=self._recorder,
            device=self.device,
            fingerprints=self._fingerprints,
        )

    def _reader(self, split: Split) -> BatchReader:
        """The stream of a split, opened by all ranks together when a generation first needs it."""
        if split not in self._readers:
            first = any(chunk.is_first for chunk in self.chunks)
            last = any(chunk.is_last for chunk in self.chunks)
            source = self._open_source(split) if first or last else None
            self._readers[split] = BatchReader(source, first=first, last=last, device=self.device)
            self._agree_on_data(split, source)
        return self._readers[split]

    def _open_source(self, split: Split) -> BatchSource:
        known, start = self._fingerprints[split], self.samples if split == "train" else 0
        try:
            source = self._data_factory(split, start, self.groups.generation, known)
        except RingAbortedError:
            raise Aborted from None
        except ChangedDataError as error:  # the damage may be repaired before the next generation
            raise RefusedError(error.message, remedy=error.remedy) from error
        if known and source.fingerprint != known:
            source.close()
            raise RefusedError(
                f"the {split} data of {self.config.data.path} have changed: fingerprint "
                f"{source.fingerprint}, the run began with {known}",
                remedy="restore the old data, or start a new run",
            )
        self._fingerprints[split] = source.fingerprint
        return source

    def _agree_on_data(self, split: Split, source: BatchSource | None) -> None:
        """Compare the data over ranks, because nodes may have their own copies."""
        groups, mine = self.groups, source.fingerprint if source is not None else ""
        if groups.every_rank.size == 1:
            return
        with self._recorder.record(Kind.NORM, step=self.step, flags=WAITING):
            others = readers_of_other_data(groups.every_rank, groups.channels, mine, self.device)
        if others:
            raise RefusedError(
                f"ranks {others} read other {split} data at {self.config.data.path} than the ranks "
                f"before them (rank {self.rank}: fingerprint {mine or 'none'})",
                remedy="copy the same prepared folder to every node",
            )

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _eval_is_due(self) -> bool:
        every = self.config.train.eval_every
        return self.step == 0 or (every > 0 and self.step % every == 0)

    def _check_divergence(self, result: StepResult) -> None:
        """All ranks have the same counts, so all of them end here together."""
        limit, skipped = self.config.train.max_skipped_steps, result.skipped_in_row
        if limit and skipped >= limit:
            raise DivergedError(
                result.step + 1 - skipped, result.step, result.loss, result.grad_norm
            )

    def _pause(self, trainer: TrainStep, hooks: StepHooks) -> None:
        hooks.on_pause(True)
        while trainer.directive.pause and not trainer.directive.stop:
            time.sleep(PAUSE_ROUND_S)
            trainer.control_round(self.step)
            self._carry_out(trainer)
        hooks.on_pause(False)

    def _carry_out(self, trainer: TrainStep) -> None:
        if trainer.asked:
            trainer.carry_out(self.step, lambda: self._reader("validation"))

    def _make_last_durable(self, trainer: TrainStep) -> None:
        """Commit the last snapshot, marked durable, once every store has released the one before.

        If no store makes progress for ``STILL_ROUNDS``, it stays in the arenas only.
        """
        agreed, num_still = trainer.control_round(self.step, look_at_state=True), 0
        is_good = trainer.skipped_in_row == 0 and not agreed.bad
        # counted, not timed: all ranks must end the loop together
        while agreed.busy and num_still < STILL_ROUNDS:
            time.sleep(PAUSE_ROUND_S)
            agreed = trainer.control_round(self.step, moved=self._store_moved())
            num_still = 0 if agreed.moved else num_still + 1
        self.is_last_wanted = is_good and not agreed.busy
        if not is_good:
            log.warning(
                "the last step is not made durable: its loss or its state is not finite",
                step=self.step,
                skipped_in_row=trainer.skipped_in_row,
            )
        elif agreed.busy:
            log.warning(
                "the last step is not made durable: a store makes no progress with an earlier one",
                step=self.step,
                waited_s=STILL_ROUNDS * PAUSE_ROUND_S,
            )
        trainer.snapshot(self.step, durable=self.is_last_wanted)
        if trainer.control_round(self.step).bad:
            self.is_last_wanted = False
            log.warning(
                "the last step is not made durable: its state is not finite", step=self.step
            )
