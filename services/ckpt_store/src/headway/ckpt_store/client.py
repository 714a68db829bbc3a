"""What other programs import: save and restore a state, find and read checkpoints.

``CheckpointClient("checkpoints/")`` works on a folder by itself; ``CheckpointClient("ipc://...")``
passes snapshots to a daemon through shared memory and returns before they are on disk. A trainer
with its own arenas uses ``newest`` and ``read_shard_into`` only.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.agreement import Agree
from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.files import Files, is_no_space
from headway.ckpt_store.folder import (
    CheckpointInfo,
    complete,
    find,
    keep,
    mark_generation,
    newest,
)
from headway.ckpt_store.folder_client import FolderWriter
from headway.ckpt_store.generations import SCRATCH, Generations, obsolete
from headway.ckpt_store.incarnation import Incarnation
from headway.ckpt_store.packing import lay_out, leaves_of, pack
from headway.ckpt_store.restoring import Restorer, read_state
from headway.ckpt_store.saved import Saved, saved
from headway.ckpt_store.tensors import CheckpointTensors, write_tensors
from headway.ckpt_store.tree import Flat
from headway.ckpt_store.upkeep import apply_retention, clear_killed
from headway.ckpt_store.verify import (
    check_part,
    read_part,
    read_shard,
    read_shard_into,
    verify,
)
from headway.common.errors import DeadlineError, InputError
from headway.common.log import get_logger

__all__ = [
    "CheckpointClient",
    "CheckpointInfo",
    "CheckpointTensors",
    "Saved",
    "apply_retention",
    "check_part",
    "complete",
    "find",
    "keep",
    "mark_generation",
    "newest",
    "read_part",
    "read_shard",
    "read_shard_into",
    "verify",
    "write_tensors",
]

POLL_S = 0.05
LOCAL_RUN = "00000000"

log = get_logger("checkpoints")


class CheckpointClient:
    """Saves and restores a process's state: ``save(step, state)``, ``restore() -> (step, state)``.

    ``target`` is a checkpoints folder or the endpoint of a daemon. ``rank`` and ``world_size``
    select the part of the state that this process saves: a step counts once all ranks have saved
    it. All ranks open their client before the first step is saved, so that parts of two starts of a
    job are never combined into one checkpoint. With ``read_only`` nothing is written, which is safe
    in the folder of a running job.

    Raises:
        InputError: ``target`` is a file, or no daemon answers.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        keep: int = 3,
        run_id: str = LOCAL_RUN,
        read_only: bool = False,
    ) -> None:
        if not 0 <= rank < world_size:
            raise InputError(
                f"rank {rank} of {world_size} is impossible", remedy="count ranks from 0"
            )
        self.rank = rank
        self.world_size = world_size
        self._read_only = read_only
        self._arena: Any = None
        if str(target).startswith(("ipc://", "tcp://", "inproc://")):
            from headway.ckpt_store.daemon_client import DaemonArena

            self._arena = DaemonArena(str(target), rank)
            self.checkpoints = self._arena.checkpoints
        else:
            self.checkpoints = Path(target).absolute()  # scripts change their working folder
            if self.checkpoints.exists() and not self.checkpoints.is_dir():
                raise InputError(
                    f"{target} is not a folder", remedy="give a folder or an ipc:// endpoint"
                )
        self._files = self._open_files(f"r{rank}")
        self._generations = Generations(self._files, self.checkpoints)
        self._folder = FolderWriter(
            self._files, self.checkpoints, rank, world_size, StoreConfig(keep=keep).keep, run_id
        )
        self._incarnation: Incarnation | None = None
        # A single rank with a daemon needs no token, as its arena has one writing process.
        if not read_only and (world_size > 1 or self._arena is None):
            self._incarnation = Incarnation(self._files, self.checkpoints, rank, world_size)
            if self._arena is None and not self._incarnation.may_be_held():
                clear_killed(self._files, self.checkpoints, rank)
            self._unless_full(self._incarnation.join)

    def prepare(self, state: Any) -> int:
        """Check before the first step that ``save`` can keep ``state``, and return its bytes.

        Nothing is written, and no tensor is read or copied. A later state of the same types and
        shapes is accepted and comes back as it was.

        Raises:
            InputError: a value that cannot be kept, by its path: a DTensor, a complex or float8
                tensor, or an object; ``save`` would raise the same error.
        """
        flat = leaves_of(state, is_outline=True)
        return lay_out(flat, self.rank, self.world_size)[1]

    def save(self, step: int, state: Any, *, generation: int | None = None) -> Saved:
        """Save a nested dict of tensors, arrays, numbers and text as checkpoint ``step``.

        With a folder the state is durable when this returns; with a daemon it is in shared memory,
        and ``wait`` reports the rest. May block: on the disk, or while a daemon still writes the
        snapshot before. With a full disk, or a daemon without progress, this checkpoint is lost, as
        reported in the result and in the log; a failed removal of old checkpoints is reported too.

        A start that has not restored a step begins a history of its own: from its first complete
        checkpoint on, the steps that earlier starts left are obsolete, and retention keeps them
        only until there are ``keep`` new ones. ``generation`` sets the history's number instead;
        all ranks pass the same one.

        Raises:
            InputError: a value that cannot be saved. HeadwayError: ``step`` is complete with other
            content, or another live process saves as this rank. OSError: from the disk; earlier
            checkpoints are kept.
        """
        if step < 0 or (generation is not None and generation < 0):
            raise InputError(
                f"step {step}, generation {generation}: below 0", remedy="count from 0"
            )
        if self._read_only:
            raise InputError("this client only reads", remedy="open it without read_only")
        flat = leaves_of(state)
        layout, nbytes = lay_out(flat, self.rank, self.world_size)
        if generation is None:
            generation = self._own_generation()
        incarnation = ""
        try:
            if self._incarnation is not None:
                incarnation = self._incarnation.stamp()
            self._generations.record()
            if problem := obsolete(self.checkpoints, step, generation):
                return saved(step, generation, False, False, problem)
            if self._arena is not None:
                problem = self._hand_over(step, generation, flat, layout, nbytes, incarnation)
                return saved(step, generation, not problem, False, problem)
            outcome = self._folder.save(
                (step, generation), flat, layout, nbytes, incarnation, self._is_ours
            )
        except OSError as error:
            if not is_no_space(error):
                raise
            problem = (
                f"no room for step {step} in {self.checkpoints}: {error.strerror}; free space "
            )
            outcome = False, False, problem + "or lower keep, the next save tries again"
        return saved(step, generation, *outcome)

    def restore(
        self, step: int | None = None, *, agree: Agree | None = None
    ) -> tuple[int, Any] | None:
        """(step, state) of the newest complete checkpoint, or of ``step``; None if there is none.

        Every byte is checked against its digest. Tensors come back on the CPU. Without ``step``, a
        damaged checkpoint is skipped for the one before. Several ranks must do that together: with
        ``agree``, a function that returns the minimum over all ranks (see ``torch_client.agree``),
        they choose the same one, and whatever error ends it on one rank ends it on all; without it
        the rank with the damage records it in the folder and fails, and after a restart all ranks
        skip that checkpoint. The newest one is the last of the newest start's history, whatever
        steps earlier starts reached; by its number any ``step`` in the folder can be restored. A
        checkpoint that is removed while it is read is passed over for a newer one.

        Raises:
            CorruptError: no readable checkpoint is left, or this rank's shard is damaged
                and ``agree`` is None.
            InputError: ``step`` does not exist, or was saved by another number of ranks.
            HeadwayError: with ``agree``, another rank failed; the message has its number and error.
        """
        restorer = Restorer(
            self._files,
            self.checkpoints,
            self.rank,
            self.world_size,
            self._read,
            read_only=self._read_only,
        )
        return restorer.restore(step, agree, self._continue_from)

    def wait(self, step: int, timeout_s: float = 60.0) -> None:
        """Block until checkpoint ``step``, or a later one, is complete on disk.

        Raises:
            DeadlineError: it is not complete within ``timeout_s``, or was given up;
                the message says why.
        """
        if self._arena is not None:
            self._arena.wait(step, timeout_s, self._is_complete)
            return
        deadline_s = time.monotonic() + timeout_s
        while not self._is_complete(step):
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    f"step {step} is not complete after {timeout_s} s",
                    remedy="have all ranks saved it, and had all opened their client before?",
                )
            time.sleep(POLL_S)

    def close(self) -> None:
        """Release the connection and the buffer; the daemon still flushes what is pending."""
        self._folder.close()
        self._generations.close()
        if self._incarnation is not None:
            self._incarnation.leave()
        if self._arena is not None:
            self._arena.close()

    def __enter__(self) -> CheckpointClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_files(self, owner: str) -> Files:
        """The disk that this client writes to; tests inject faults here."""
        return Files(owner)

    def _own_generation(self) -> int:
        try:
            if not self._generations.is_chosen:
                self._generations.choose(SCRATCH)
        except OSError:
            if self._arena is None:
                raise  # else the daemon reports a folder that cannot be listed
        return self._generations.number

    def _is_ours(self) -> bool:
        return self._incarnation is None or self._incarnation.is_current()

    def _hand_over(
        self,
        step: int,
        generation: int,
        flat: Flat,
        layout: dict[str, Any],
        nbytes: int,
        incarnation: str,
    ) -> str:
        def fill(data: npt.NDArray[np.uint8]) -> None:
            pack(flat, layout, data)

        if incarnation:
            layout = {**layout, "incarnation": incarnation}
        problem: str = self._arena.save(step, generation, layout, nbytes, fill, flat.extra())
        return problem

    def _is_complete(self, step: int) -> bool:
        """Whether ``step`` or a later one of this client's history is complete on disk."""
        oldest = self._generations.number
        found = complete(self.checkpoints)
        return any(info.step >= step and info.generation >= oldest for info in found)

    # ---- restoring ------------------------------------------------------------------------------
    def _read(self, info: CheckpointInfo) -> Any:
        return read_state(info, self.rank, self.world_size)

    def _continue_from(self, step: int) -> None:
        self._generations.choose(step)
        if not self._read_only:
            self._unless_full(self._generations.record)

    def _unless_full(self, write: Callable[[], None]) -> None:
        """A job may start on a full disk; ``save`` tries again."""
        try:
            write()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise InputError(
                    f"cannot write in {self.checkpoints}: {error.strerror}",
                    remedy="make it writable, or open it with read_only=True",
                ) from error
            if not is_no_space(error):
                raise
            log.warning("the disk of the checkpoints is full", reason=str(error))
