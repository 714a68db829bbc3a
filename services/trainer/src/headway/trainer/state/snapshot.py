"""Copies the flat state to the arena and back: in the background, sealed before the all-reduces.

A snapshot numbered s holds the state after s completed steps. It is copied while step s
computes, which reads parameters and writes gradients but leaves master weights and moments alone
until its optimizer.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from headway.common.errors import CorruptError, InputError
from headway.common.log import get_logger
from headway.common.node.arena import Arena, ArenaSlot, SlotInfo
from headway.common.node.failpoints import failpoint
from headway.trainer.errors import BadSnapshotError
from headway.trainer.state.copy_stream import CopyStream
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.slot_layout import offsets
from headway.trainer.state.train_state import TrainState

log = get_logger("snapshot")


class Snapshots:
    """Seals the chunks' state into ``arena``; without one every call succeeds and keeps nothing."""

    def __init__(self, arena: Arena | None, flats: Sequence[FlatChunk]) -> None:
        self._arena, self._flats = arena, flats
        self._starts, size = offsets(flats)
        if arena is not None and arena.slot_bytes != size:
            raise CorruptError(
                f"{arena.path} has slots of {arena.slot_bytes} bytes, this model needs {size}",
                remedy="remove it: it belongs to another configuration",
            )
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._running: _Job | None = None
        self._sealed = -1
        self.lacks_room = False
        """Whether there was no memory for a third slot when a snapshot was last marked durable."""
        self._thread: threading.Thread | None = None
        device = flats[0].state.device
        self._gpu = CopyStream(device) if arena is not None and device.type == "cuda" else None

    def lock(self) -> None:
        """Page-lock the slots that snapshots will use, on GPUs; those that are locked stay so.

        It is called before anything waits for a peer, so that no step has to wait for it: before
        the first step, and in each step before the optimizer, behind which parameters are gathered.

        Raises:
            InputError: shared memory is full.
        """
        if self._gpu is not None and self._arena is not None:
            for data in self._arena.resident():
                self._gpu.lock(data)

    @property
    def sealed(self) -> int:
        """Newest snapshot known to be sealed, -1 for none."""
        return self._sealed

    @property
    def busy(self) -> bool:
        """Whether the store has not yet released the last durable snapshot."""
        return self._arena is not None and self._arena.busy()

    def begin(
        self,
        step: int,
        generation: int,
        extra: TrainState,
        *,
        durable: bool,
        is_last: bool = False,
        is_doubtful: bool = False,
    ) -> None:
        """Start sealing snapshot ``step``; the state must not change before ``finish`` returned.

        A durable one keeps its slot until the store has read it, so that the next ones need a
        third, unless it ``is_last``; after ``finish``, ``lacks_room`` says if there is no memory.
        ``is_doubtful``: as for ``judge``, until the next step has used the state.
        """
        self.finish()
        if self._arena is None:
            self._sealed = step
            return
        failpoint("snapshot.before_seal", step=step)
        written = self._gpu.mark() if self._gpu is not None else None
        slot = self._free_slot(self._arena, step, generation)
        if self._gpu is not None:
            self._gpu.lock(slot.data)
        job = _Job(slot, extra.pack(), durable, durable and not is_last, is_doubtful, written)
        self._running = job
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="snapshot", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def finish(self) -> float | None:
        """Wait until the current snapshot is sealed; the seconds that it took, None without one.

        That is a memory copy, which depends on no other process.

        Raises:
            HeadwayError: sealing failed.
        """
        job = self._running
        if job is None:
            return None
        job.done.wait()
        self._running = None
        if job.trims and self._arena is not None:
            self._trim(self._arena)
        if job.error is not None:
            raise job.error
        self._sealed = job.slot.step
        return job.took_s

    @property
    def awaits_commit(self) -> bool:
        """Whether a snapshot is marked durable but not committed, so that no store has seen it."""
        return bool(self._unseen())

    def withdraw(self) -> bool:
        """Remove the durable mark of the uncommitted snapshot; False if there is none."""
        unseen = self._unseen()
        for info in unseen:
            assert self._arena is not None
            self._arena.release(info)
        return bool(unseen)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a sealed snapshot is not committed yet."""
        return bool(self._uncommitted())

    def judge(self, *, is_doubtful: bool) -> None:
        """Record whether what is not committed yet is good for recovery only.

        Then no store makes a checkpoint of it when its machine is about to end.
        """
        for info in self._uncommitted():
            assert self._arena is not None
            self._arena.doubt(info, is_doubtful)

    def _unseen(self) -> list[SlotInfo]:
        return [info for info in self._uncommitted() if info.wanted and not info.released]

    def _uncommitted(self) -> list[SlotInfo]:
        if self._arena is None:
            return []
        committed = self._arena.committed
        return [info for info in self._arena.sealed() if info.step > committed]

    def commit(self, step: int) -> None:
        """Commit ``step``, because all ranks have sealed it."""
        if self._arena is not None and step >= 0:
            self._arena.commit(step)

    def restore(self, step: int) -> TrainState:
        """Verify snapshot ``step`` of the arena, load it and drop every newer one.

        If it does not match its digest, it is marked bad, and so are all others that do not match,
        so that the next restore point is usable. The state is not changed then.

        Raises:
            BadSnapshotError: the arena has no intact snapshot of that step.
        """
        assert self._arena is not None
        data, extra = self._verified(self._arena, step)
        self.load(data)
        self._arena.invalidate_newer(step)
        failpoint("snapshot.mid_restore", step=step)
        self._arena.commit(step)  # a recovery restores what every rank has sealed
        self._sealed = step
        return extra

    def check(self) -> None:
        """Raises CorruptError if the arena's file was damaged, removed or replaced."""
        if self._arena is not None:
            self._arena.check()

    def forget(self, step: int = -1) -> None:
        """Drop every snapshot after ``step``: the state was restored from another source."""
        if self._arena is not None:
            self._arena.invalidate_newer(step)
        self._sealed = -1

    def load(self, data: npt.NDArray[np.uint8]) -> None:
        """Copy a slot's bytes into the chunks' state.

        Raises:
            CorruptError: ``data`` has another size than this model's state.
        """
        _, size = offsets(self._flats)
        if data.nbytes != size:
            raise CorruptError(f"a snapshot has {data.nbytes} bytes, this model needs {size}")
        for flat, start in zip(self._flats, self._starts, strict=True):
            piece = data[start : start + flat.state.nbytes]
            flat.state.copy_(_as_tensor(piece).view(flat.state.dtype))

    def _verified(self, arena: Arena, step: int) -> tuple[npt.NDArray[np.uint8], TrainState]:
        infos = arena.sealed()
        wanted = [info for info in infos if info.step == step]
        if not wanted:
            held = f"it holds no snapshot of that step, only {[info.step for info in infos]}"
            raise BadSnapshotError(step, arena.path, arena.replaced or held)
        reasons = []
        for info in reversed(wanted):  # the last step of a run is sealed twice
            try:
                arena.verify(info)
                data, extra = arena.read(info)
                return data, TrainState.unpack(extra)
            except CorruptError as error:
                log.error("a snapshot in memory is damaged", reason=error.message)
                reasons.append(error.message)
                arena.mark_bad(info)
        _mark_others(arena)
        raise BadSnapshotError(step, arena.path, "; ".join(reasons))

    def close(self) -> None:
        """End the thread, after the snapshot under way, and unlock its memory; may be repeated."""
        self._jobs.put(None)
        thread, self._thread = self._thread, None
        if thread is not None and self._gpu is not None:
            thread.join()  # a copy, which depends on no other process
        if self._gpu is not None:
            self._gpu.unlock_all()

    def _free_slot(self, arena: Arena, step: int, generation: int) -> ArenaSlot:
        """Return a slot to write.

        If there is no memory for it although one is being read, that one is given up: a snapshot in
        memory matters more than a checkpoint.
        """
        try:
            return arena.begin(step, generation)
        except InputError as error:
            wanted = [info for info in arena.sealed() if not info.released]
            if not wanted:
                raise
            for info in wanted:
                arena.release(info)
            steps = [info.step for info in wanted]
            log.warning("a checkpoint is given up", steps=steps, reason=error.message)
            return arena.begin(step, generation)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            began_s = time.monotonic()
            try:
                self._copy(job)
                job.took_s = time.monotonic() - began_s
            except Exception as error:
                job.error = error
            job.done.set()
            del job

    def _copy(self, job: _Job) -> None:
        assert self._arena is not None
        target, gpu = torch.from_numpy(job.slot.data), self._gpu
        behind: AbstractContextManager[None] = (
            nullcontext() if gpu is None else gpu.copying(job.written)
        )
        with behind:
            for flat, start in zip(self._flats, self._starts, strict=True):
                piece = target[start : start + flat.state.nbytes].view(flat.state.dtype)
                piece.copy_(flat.state, non_blocking=gpu is not None)
                failpoint("snapshot.mid_seal", step=job.slot.step)
        self._arena.seal(job.slot, job.extra, job.durable, doubtful=job.doubtful)
        if job.reserve:
            self._reserve(self._arena, job.slot.step)
        elif not job.durable and gpu is None:
            self._trim(self._arena)
        else:
            job.trims = not job.durable

    def _trim(self, arena: Arena) -> None:
        """Give back the memory of a third slot. With a GPU the thread that trains does it."""
        gpu = self._gpu
        arena.trim(before=lambda data: None if gpu is None else gpu.unlock(data))

    def _reserve(self, arena: Arena, step: int) -> None:
        try:
            arena.reserve()
        except InputError as error:
            if not self.lacks_room:
                log.warning(
                    "checkpoints are postponed until there is memory for a third slot",
                    step=step,
                    reason=error.message,
                    remedy=error.remedy,
                )
            self.lacks_room = True
        else:
            self.lacks_room = False


def _as_tensor(piece: npt.NDArray[np.uint8]) -> torch.Tensor:
    """A tensor over memory that may be read-only, for the caller to read.

    torch has no read-only tensors. A GPU copies from a slot that is page-locked at full speed, and
    without a second copy on the host.
    """
    memory = (ctypes.c_uint8 * piece.nbytes).from_address(piece.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _mark_others(arena: Arena) -> None:
    for info in arena.sealed():
        try:
            arena.verify(info)
        except CorruptError as error:
            log.error("another snapshot is damaged too", reason=error.message)
            arena.mark_bad(info)


class _Job:
    def __init__(
        self,
        slot: ArenaSlot,
        extra: bytes,
        durable: bool,
        reserve: bool,
        doubtful: bool,
        written: Any,
    ) -> None:
        self.slot, self.extra, self.written = slot, extra, written
        self.durable, self.reserve, self.doubtful = durable, reserve, doubtful
        self.trims = False
        self.took_s = 0.0
        self.done = threading.Event()
        self.error: BaseException | None = None
