"""The disk thread: runs one job at a time and hands back its result, then a fresh listing.

So the daemon's main thread answers messages and beats while a flush of many gigabytes runs; digests
and writes release the interpreter lock.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.events import (
    Check,
    DropParts,
    EmptyTrash,
    Event,
    FlushSlot,
    FolderSeen,
    FolderUnseen,
    Job,
    JobDone,
    JobFailed,
    Remove,
    WriteManifest,
)
from headway.ckpt_store.files import Files, is_no_space
from headway.ckpt_store.flush import Snapshot, StaleSnapshotError, write_manifest, write_shard
from headway.ckpt_store.folder import look, open_checkpoint
from headway.ckpt_store.manifest import (
    MANIFEST_NAME,
    gave_up_name,
    step_dir_name,
)
from headway.ckpt_store.verify import verify
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.wire.side_thread import SideThread

_log = get_logger("store")
CLOSE_LIMIT_S = 30.0


class Disk:
    """Starts its thread at once, whose callbacks pass each event to ``handle``."""

    def __init__(
        self,
        checkpoints: Path,
        files: Files,
        config: StoreConfig,
        handle: Callable[[Event], object],
    ) -> None:
        self.checkpoints = checkpoints
        self.bytes_written = 0
        self.progress = 0
        """Moves with every piece written or read back, and with every job finished."""
        self.thread = SideThread("ckpt-disk")
        self._files, self._handle = files, handle
        self._incarnation = ""
        """Incarnation of the snapshot flushed last.

        An attempt given up is dropped before the next one is flushed, so this is its own.
        """
        self._deep = config.verify_before_remove == "digests"
        self._is_look_ordered = False

    def submit(self, job: Job, snapshot: Snapshot | None = None) -> None:
        """Order a job; ``snapshot`` belongs to ``FlushSlot``.

        It is answered by Done or JobFailed, then FolderSeen.
        """
        self._order(partial(self._carry_out, job, snapshot))
        self._order(self._list)

    def look(self) -> None:
        """Order a listing, unless one is on order."""
        if not self._is_look_ordered:
            self._is_look_ordered = True
            self._order(self._list)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> bool:
        """Finish the jobs on order and end the thread; False if that took too long.

        The next start then cleans up.
        """
        return self.thread.close(limit_s)

    def _order(self, work: Callable[[], Event]) -> None:
        def then(event: Event | None, error: Exception | None) -> None:
            if event is not None:
                self._handle(event)
            else:  # a bug; the next listing is tried all the same
                _log.error("the disk thread failed", error=repr(error), exc_info=error)

        self.thread.submit(work, then)

    def _list(self) -> Event:
        self._is_look_ordered = False
        try:
            return FolderSeen(look(self.checkpoints))
        except OSError as error:
            message = f"{self.checkpoints} cannot be listed: {error}"
            return FolderUnseen(message, _remedy(error, self.checkpoints))

    def _carry_out(self, job: Job, snapshot: Snapshot | None) -> Event:
        try:
            self._do(job, snapshot)
            return JobDone(job)
        except StaleSnapshotError as error:
            return JobFailed(job, error.message, is_stale=True)
        except HeadwayError as error:
            return JobFailed(job, error.message, error.remedy)
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError) and not isinstance(job, FlushSlot)
            return JobFailed(
                job, str(error), _remedy(error, self.checkpoints), is_no_space(error), is_gone
            )
        except Exception as error:  # the store must outlive a bug in one job
            _log.exception("job failed", job=repr(job))
            return JobFailed(job, repr(error), "report this as a bug")
        finally:
            self.progress += 1

    def _do(self, job: Job, snapshot: Snapshot | None) -> None:
        match job:
            case FlushSlot():
                assert snapshot is not None
                self._incarnation = snapshot.incarnation
                write_shard(self._files, self.checkpoints, snapshot, self._wrote)
            case WriteManifest(key):
                write_manifest(self._files, self.checkpoints / step_dir_name(*key))
            case DropParts(key, ranks, gave_up):
                note = self._incarnation if gave_up else None
                drop_parts(self._files, self.checkpoints, key, ranks, note=note)
            case Check(key):
                problems = verify(
                    open_checkpoint(self.checkpoints, *key), deep=self._deep, progress=self._moved
                )
                if problems:
                    raise HeadwayError(
                        problems[0].message, remedy="inspect it with `headway ckpt verify`"
                    )
            case Remove(key, is_dead):
                unless = MANIFEST_NAME if is_dead else ""
                self._files.remove_tree(self.checkpoints / step_dir_name(*key), unless=unless)
            case EmptyTrash(names):
                for name in names:
                    self._files.remove_tree(self.checkpoints / name)

    def _wrote(self, nbytes: int) -> None:
        self.bytes_written += nbytes
        self.progress += 1

    def _moved(self, _: int) -> None:
        self.progress += 1


def drop_parts(
    files: Files,
    checkpoints: Path,
    key: tuple[int, int],
    ranks: tuple[int, ...],
    *,
    note: str | None = None,
) -> None:
    """Remove what ``ranks`` wrote for an attempt that will not be completed.

    An attempt whose parts are all there stays.

    With a ``note``, the incarnation of the parts, the other nodes learn of it, if the
    disk takes the note.
    """
    attempt = look(checkpoints).find(key)
    if attempt is None or attempt.is_complete or attempt.has_all_parts:
        return
    folder = checkpoints / step_dir_name(*key)
    for rank in ranks:
        files.discard_part(folder, rank)
    if note is not None and ranks:
        files.leave_note(folder / gave_up_name(ranks[0]), note)
    files.remove_empty_dir(folder)


def _remedy(error: OSError, checkpoints: Path) -> str:
    if is_no_space(error):
        return f"free space for {checkpoints} or lower ckpt.keep; the next durable step tries again"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"make {checkpoints} readable and writable for this user"
    if error.errno == errno.EROFS:
        return f"remount {checkpoints} writable"
    return f"check the disk of {checkpoints}; the next durable step tries again"
