"""The reading side of ``CheckpointClient``: restores one rank's state and notes damaged shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from headway.ckpt_store.agreement import Agree, end_together
from headway.ckpt_store.choice import (
    DamagedShardError,
    Read,
    restore_alone,
    restore_step,
    restore_together,
)
from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import CheckpointInfo, complete
from headway.ckpt_store.manifest import damaged_name
from headway.ckpt_store.packing import unpack
from headway.ckpt_store.verify import read_part, read_shard_into
from headway.common.errors import CorruptError, InputError


def read_state(info: CheckpointInfo, rank: int, world_size: int) -> Any:
    """The state that ``rank`` saved in this checkpoint, with every digest checked.

    Raises:
        CorruptError: the rank's part or shard is damaged. InputError: another number of ranks, or
            another program, has saved it.
    """
    if info.world_size != world_size:
        raise InputError(
            f"{info.path} was saved by {info.world_size} ranks, this client is one of {world_size}",
            remedy="restore with the number of ranks that saved it",
        )
    part = read_part(info, rank)
    data = np.empty(part.data_bytes, np.uint8)
    extra = read_shard_into(info, rank, data)
    try:
        return unpack(part, data, extra)
    except (
        CorruptError
    ) as error:  # its digests match, so it comes from another program and is not damaged
        raise InputError(f"{info.path}: {error.message}", remedy=error.remedy) from None


class Restorer:
    """One restore of a rank.

    Args:
        files: writes the notes on damage, unless ``read_only``.
        checkpoints: the folder.
        rank: of this process.
        world_size: number of ranks that restore.
        read: reads this rank's state of a checkpoint.
        read_only: nothing is written.
    """

    def __init__(
        self,
        files: Files,
        checkpoints: Path,
        rank: int,
        world_size: int,
        read: Read,
        *,
        read_only: bool,
    ) -> None:
        self._files, self._checkpoints = files, checkpoints
        self._rank, self._world_size = rank, world_size
        self._read, self._read_only = read, read_only

    def restore(
        self, step: int | None, agree: Agree | None, continue_from: Callable[[int], None]
    ) -> tuple[int, Any] | None:
        """(step, state), after ``continue_from(step)``; see ``CheckpointClient.restore``."""
        if agree is not None:
            return self._restore_together(step, agree, continue_from)
        found: tuple[int, Any] | None
        if step is not None:
            found = step, restore_step(self._checkpoints, step, self._read)
        else:
            try:
                found = restore_alone(self._checkpoints, self._world_size, self._read)
            except DamagedShardError as error:
                raise self._with_note(error) from None
            except CorruptError as error:
                raise self._without_notes(error) from None
        if found is not None:
            continue_from(found[0])
        return found

    def _restore_together(
        self, step: int | None, agree: Agree, continue_from: Callable[[int], None]
    ) -> tuple[int, Any] | None:
        folder, failed = self._checkpoints, None
        found: tuple[int, Any] | None = None
        if step is None:
            found = restore_together(folder, self._rank, self._world_size, self._read, agree)
            if found is None:
                return None
        try:
            if step is not None:
                found = step, restore_step(folder, step, self._read)
            assert found is not None
            continue_from(found[0])
        except Exception as error:
            failed = error
        end_together(agree, self._rank, failed)
        return found

    def _with_note(self, error: DamagedShardError) -> CorruptError:
        """Record the damage in the folder; after a restart all ranks skip that checkpoint."""
        path = error.folder / damaged_name(self._rank)
        if self._read_only or not self._files.leave_note(path, error.message):
            return error
        return CorruptError(
            error.message,
            remedy="restart all ranks, which then skip this checkpoint; once it is readable again, "
            "`headway ckpt verify --all` makes it count",
        )

    def _without_notes(self, error: CorruptError) -> CorruptError:
        """No other checkpoint is left, so retry the ones that this rank could not read before."""
        for info in self._noted_by_this_rank():
            try:
                self._read(info)
            except CorruptError:
                continue
            self._files.discard(info.path / damaged_name(self._rank))
            return CorruptError(
                f"{info.path} reads well again", remedy="restart all ranks, which then use it"
            )
        return CorruptError(error.message, remedy="inspect them with `headway ckpt verify --all`")

    def _noted_by_this_rank(self) -> list[CheckpointInfo]:
        if self._read_only or self._world_size == 1:
            return []
        with contextlib.suppress(CorruptError):
            found = complete(self._checkpoints, with_damaged=True)
            return [info for info in found if (info.path / damaged_name(self._rank)).exists()]
        return []
