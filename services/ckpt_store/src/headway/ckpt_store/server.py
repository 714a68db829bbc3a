"""The daemon of a node: scans arenas, lets ``state`` decide, passes jobs to the disk thread.

All its state is also in the arenas or in the folder, so a restarted daemon only scans
again. Training never waits for it: a rank whose wanted snapshot is not yet released uses
its other two slots.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.ckpt_store.arenas import Arenas
from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.disk import Disk
from headway.ckpt_store.events import (
    Announce,
    ArenasSeen,
    Event,
    FlushSlot,
    FolderSeen,
    JobDone,
    JobFailed,
    ReleaseSlot,
    Report,
    Slot,
)
from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import FolderView
from headway.ckpt_store.in_memory import candidates
from headway.ckpt_store.saving import Saving
from headway.ckpt_store.state import State, decide
from headway.ckpt_store.upkeep import remove_leftovers
from headway.common.errors import HeadwayError, InputError
from headway.common.log import get_logger
from headway.common.node import failpoints
from headway.common.node.claim import ClaimedError, claim, release
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.ckpt_store import (
    ArenaStatus,
    CheckpointComplete,
    Flush,
    StoreStatus,
    StoreStatusReply,
    StoreTrouble,
)
from headway.common.wire.metrics import Metric, Metrics
from headway.common.wire.server import Server
from headway.common.wire.service import DRAIN_LIMIT_S, Beat, Service

END_LIMIT_S = 80.0
"""How long a daemon of a run's node may take to end; systemd sends SIGKILL after 90 s."""

_log = get_logger("store")


@dataclass(frozen=True)
class ServeOptions:
    """Where a daemon works.

    ``world_size`` shows whether the arenas here are those of all ranks; for a checkpoint the layout
    of its step decides.
    """

    endpoint: str
    shm_dir: Path
    checkpoints: Path
    world_size: int = 1
    executor: str | None = None
    run_id: str = ""
    node: int = 0
    metrics_port: int | None = None


class Store:
    """Connects arenas and folder; the service loop calls ``scan`` and the callbacks of the disk."""

    def __init__(self, options: ServeOptions, config: StoreConfig) -> None:
        files = Files(f"n{options.node}")
        files.settle_dir(options.checkpoints)
        if leftovers := remove_leftovers(files, options.checkpoints):
            _log.info(
                "removed unfinished files of an earlier daemon",
                files=[path.name for path in leftovers],
            )
        self.options = options
        self.disk = Disk(options.checkpoints, files, config, self._seen)
        self.errors = 0
        self._last = Report("flush_failed", "", "")
        self._state = State(keep=config.keep)
        self._arenas = Arenas(options.shm_dir, options.run_id)
        self._saving = Saving(options.world_size)
        self._durable: dict[int, int] = {}
        self._client = Client(options.executor) if options.executor else None
        self.disk.look()

    def drain(self, *, is_signalled: bool = False) -> bool:
        """Whether no snapshot is pending or being written; scans first for newly sealed ones.

        In a run that a signal interrupts, the newest snapshot in memory is pending too: its machine
        may be about to end. At the end of a run the ranks have marked what is to be kept.
        """
        if is_signalled and self.options.executor is not None:
            self._saving.end(time.monotonic())
        self.scan()
        is_listed = self._state.view is not None or self._state.is_unseen
        if self._state.wanted or self._state.job is not None or not is_listed:
            return False
        if not self._saving.is_ending:
            return True
        return self._saving.is_over(time.monotonic(), is_written=self._arenas.is_written())

    @property
    def progress(self) -> int:
        """A counter that moves only while bytes move or jobs end."""
        return self.disk.progress

    def scan(self) -> None:
        """Look at the arenas."""
        ranks = self._arenas.look(keep_mapped=self._state.job is not None)
        if self._saving.is_on and (view := self._view()) is not None:
            held, given_up = self._arenas.holdings(), self._state.given_up
            self._saving.look(held, view, given_up, time.monotonic())
        slots = self._saving.pick(self._arenas.slots(self._saving.target))
        self._take(ArenasSeen(ranks, slots, self._arenas.generation()))

    def _view(self) -> FolderView | None:
        """The checkpoints folder, nothing if it cannot be listed; None until it has been tried."""
        return FolderView() if self._state.is_unseen else self._state.view

    def _seen(self, event: Event) -> None:
        """Process a result of the disk thread."""
        self._note_durable(event)
        self._take(event)

    def status(self, _message: Any = None, _peer: bytes = b"") -> StoreStatusReply:
        """Handler of ``StoreStatus``."""
        step, _ = self._state.announced or (-1, -1)
        return StoreStatusReply(
            run_id=self.options.run_id,
            node=self.options.node,
            world_size=self.options.world_size,
            shm_dir=str(self.options.shm_dir),
            checkpoints=str(self.options.checkpoints),
            arenas=tuple(
                ArenaStatus(
                    rank=rank,
                    committed_step=committed,
                    durable_step=self._durable.get(rank, -1),
                )
                for rank, committed in self._arenas.committed().items()
            ),
            complete_step=step,
            bytes_written=self.disk.bytes_written,
            errors=self.errors,
            last_error=self._last.message,
            last_remedy=self._last.remedy,
            last_step=self._last.key[0] if self._last.key else -1,
            progress=self.disk.progress,
            is_saving=self._saving.is_open,
        )

    def flush(self, message: Flush, _peer: bytes) -> StoreStatusReply:
        """Handler of ``Flush``."""
        if message.newest:
            self._saving.ask()
        self.scan()
        self.disk.look()
        return self.status()

    def describe(self) -> dict[str, str | int | float | bool | None]:
        """Values for ``Description.state``."""
        status = self.status()
        return {
            "checkpoints": status.checkpoints,
            "complete_step": status.complete_step,
            "bytes_written": status.bytes_written,
            "errors": status.errors,
        }

    def metrics(self) -> Metrics:
        """What an operator alerts on."""
        return Metrics(
            Metric(
                "headway_ckpt_written_bytes",
                "Snapshot bytes flushed",
                lambda: self.disk.bytes_written,
                is_counter=True,
            ),
            Metric(
                "headway_ckpt_errors",
                "Failed attempts and other problems",
                lambda: self.errors,
                is_counter=True,
            ),
            Metric(
                "headway_ckpt_complete_step",
                "Newest complete checkpoint, -1 without one",
                lambda: (self._state.announced or (-1,))[0],
            ),
            Metric(
                "headway_ckpt_pending_snapshots",
                "Snapshots waiting for the disk",
                lambda: len(self._state.wanted),
            ),
        )

    def close(self) -> None:
        """End the disk thread and close the arenas, whose files remain."""
        if self._saving.is_ending:
            self._name_lost()
        if self.disk.close():
            self._arenas.close()
        if self._client is not None:
            self._client.close()

    def _take(self, event: Event) -> None:
        self._state, actions = decide(self._state, event, time.monotonic())
        for action in actions:
            match action:
                case ReleaseSlot(slot):
                    self._arenas.release(slot)
                case Announce(key):
                    self._announce(*key)
                case Report():
                    self._report(action)
                case FlushSlot(slot):
                    self._submit_flush(action, slot)
                case _:
                    self.disk.submit(action)

    def _announce(self, step: int, generation: int) -> None:
        is_ours = self._saving.completed((step, generation))
        text = f"checkpoint of step {step} written from memory" if is_ours else ""
        _log.info(text or "checkpoint complete", step=step, generation=generation)
        self._notify(
            CheckpointComplete(
                **self._origin(), step=step, generation=generation, from_memory=is_ours
            )
        )

    def _name_lost(self) -> None:
        """Say what memory holds that is on no disk."""
        view = self._view() or FolderView()
        lost = candidates(self._arenas.holdings(), self.options.world_size, view)
        if lost:
            durable = (self._state.announced or (None,))[0]
            _log.error(
                f"the newest snapshot in memory, of step {lost[0][0]}, is not in a checkpoint",
                newest_checkpoint=durable,
                remedy="the run can resume from memory until this machine ends",
            )

    def _submit_flush(self, job: FlushSlot, slot: Slot) -> None:
        try:
            snapshot = self._arenas.snapshot(slot)
        except HeadwayError as error:
            return self._take(JobFailed(job, error.message, error.remedy))
        if snapshot is None:
            return self._take(JobFailed(job, "the snapshot was withdrawn", is_stale=True))
        return self.disk.submit(job, snapshot)

    def _report(self, report: Report) -> None:
        self.errors += 1
        self._last = report
        step, generation = report.key or (-1, -1)
        trouble = StoreTrouble(
            **self._origin(),
            kind=report.code,
            message=report.message,
            remedy=report.remedy,
            step=step,
            generation=generation,
        )
        _log.error(
            "checkpoint problem, training continues",
            kind=trouble.kind,
            error=trouble.message,
            remedy=trouble.remedy,
            step=step,
            generation=generation,
        )
        self._notify(trouble)

    def _note_durable(self, event: Event) -> None:
        if isinstance(event, JobDone) and isinstance(event.job, FlushSlot):
            slot = event.job.slot
            self._saving.flushed(slot)
            self._durable[slot.rank] = max(slot.step, self._durable.get(slot.rank, -1))
        if isinstance(event, FolderSeen):
            for attempt in event.view.attempts:
                for rank in attempt.ranks:
                    self._durable[rank] = max(attempt.step, self._durable.get(rank, -1))

    def _origin(self) -> dict[str, Any]:
        return {"run_id": self.options.run_id, "node": self.options.node}

    def _notify(self, message: Message) -> None:
        if self._client is not None:
            self._client.notify(message)


def serve(options: ServeOptions, config: StoreConfig) -> int:
    """Run the daemon until SIGTERM, SIGINT or ``Drain``; returns the exit code.

    With an executor it makes the newest snapshot in memory durable after a signal, within
    ``END_LIMIT_S``, whether or not ranks live; further signals do not cut that short.
    Lowers its own priority by ``config.nice`` first: training has priority on every core.

    Raises:
        InputError: another daemon serves ``shm_dir``, a folder cannot be created, or
            the endpoint is in use.
    """
    lock = _only_one(options.shm_dir)
    os.nice(config.nice)
    failpoints.configure(options.shm_dir.parent / "failpoints.bin", node=options.node)
    try:
        store = Store(options, config)
    except OSError as error:
        raise InputError(
            f"cannot use {options.checkpoints}: {error.strerror}",
            remedy="choose a writable --checkpoints",
        ) from error
    try:
        server = Server(options.endpoint, {StoreStatus: store.status, Flush: store.flush})
        beat = (
            Beat(endpoint=options.executor, progress=lambda: store.progress)
            if options.executor
            else None
        )
        service = Service(
            "ckpt_store",
            server,
            beat=beat,
            metrics_port=options.metrics_port,
            describe=store.describe,
            run_id=options.run_id or None,
            drain_limit_s=END_LIMIT_S if options.executor else DRAIN_LIMIT_S,
            is_patient=options.executor is not None,
        )
        service.metrics.register(store.metrics())
        service.every(config.scan_period_s, store.scan)
        service.every(config.folder_period_s, store.disk.look)
        service.watch(store.disk.thread.done_fd, store.disk.thread.run_callbacks)
        service.on_drain(lambda: store.drain(is_signalled=service.is_signalled))
        return service.run()
    finally:
        store.close()
        release(lock)


def _only_one(shm_dir: Path) -> Path:
    """Claim ``shm_dir`` until this process ends; returns the claim's file."""
    path = shm_dir / "ckpt_store.lock"
    try:
        shm_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        claim(path)
    except ClaimedError as error:
        raise InputError(
            f"another checkpoint store serves {shm_dir}: process {error.holder.pid}",
            remedy="stop it first, or choose another --shm-dir",
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot use {shm_dir}: {error.strerror}", remedy="choose a writable --shm-dir"
        ) from error
    return path
