"""The folder side of ``CheckpointClient``: writes one rank's parts without a daemon."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from headway.ckpt_store.attempts import Key
from headway.ckpt_store.files import Files, is_no_space
from headway.ckpt_store.flush import Snapshot, StaleSnapshotError, write_manifest, write_shard
from headway.ckpt_store.folder import look
from headway.ckpt_store.generations import obsolete
from headway.ckpt_store.manifest import (
    MANIFEST_NAME,
    gave_up_name,
    step_dir_name,
)
from headway.ckpt_store.packing import pack
from headway.ckpt_store.tree import Flat
from headway.ckpt_store.upkeep import apply_retention, clear_beyond, clear_dead
from headway.common.errors import CorruptError

Outcome = tuple[bool, bool, str]
"""Whether the part is stored, whether the step is complete, and what went wrong."""


class FolderWriter:
    """Saves the state of ``rank`` in ``checkpoints``, and applies retention there."""

    def __init__(
        self, files: Files, checkpoints: Path, rank: int, world_size: int, keep: int, run_id: str
    ) -> None:
        self._files, self._checkpoints = files, checkpoints
        self._rank, self._world_size, self._keep, self._run_id = rank, world_size, keep, run_id
        self._is_settled = False
        self._late: set[Key] = set()
        """Steps with all their parts whose manifest could not be written."""
        self._own: set[Key] = set()
        """Steps of which this client has stored its part, whichever rank completes them."""
        self._buffer = np.empty(0, np.uint8)

    def save(
        self,
        key: Key,
        flat: Flat,
        layout: dict[str, Any],
        nbytes: int,
        incarnation: str,
        is_ours: Callable[[], bool],
    ) -> Outcome:
        """Write this rank's part, and the manifest if it was the last one.

        ``is_ours``: called at the end; whether no other process saves as this rank by now.

        Raises:
            HeadwayError: the step is complete with other content. OSError: from the disk,
                except for missing space.
        """
        problem = self._prepare(key, incarnation)
        try:
            self._write(key, flat, layout, nbytes, incarnation, is_ours)
        except StaleSnapshotError as error:  # another rank has given up this step
            return False, False, error.message
        except OSError as error:
            if not is_no_space(error):
                raise
            self.give_up(key, incarnation)
            raise
        self._own.add(key)
        is_complete, trouble = self._commit(key)
        return True, is_complete, trouble or problem

    def give_up(self, key: Key, incarnation: str) -> None:
        """Remove this rank's part, with a note to the other ranks that theirs are useless."""
        folder = self._checkpoints / step_dir_name(*key)
        if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
            return
        self._files.discard_part(folder, self._rank)
        if self._world_size > 1:
            self._files.leave_note(folder / gave_up_name(self._rank), incarnation)
        else:
            self._files.remove_empty_dir(folder)

    def close(self) -> None:
        """Release the buffer."""
        self._buffer = np.empty(0, np.uint8)

    def _prepare(self, saving: Key, incarnation: str) -> str:
        """Make folder names durable, write late manifests, free space. Returns what went wrong."""
        try:
            if not self._is_settled:
                self._files.settle_dir(self._checkpoints)
                if self._rank == 0:
                    clear_beyond(self._files, self._checkpoints, self._world_size)
                self._is_settled = True
            for key in sorted(self._late):
                self._commit(key)
            clear_dead(self._files, self._checkpoints, self._rank, saving, incarnation)
            with contextlib.suppress(CorruptError):  # this save may replace the damaged one
                self._retain()  # a process may have been killed before it did
        except OSError as error:
            return f"cannot clear up {self._checkpoints}: {error}"
        return ""

    def _write(
        self,
        key: Key,
        flat: Flat,
        layout: dict[str, Any],
        nbytes: int,
        incarnation: str,
        is_ours: Callable[[], bool],
    ) -> None:
        if self._buffer.nbytes != nbytes:
            # Anonymous, so page aligned, as O_DIRECT requires; kept, so mapped at the next save.
            self._buffer = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        pack(flat, layout, self._buffer)
        manifest = self._checkpoints / step_dir_name(*key) / MANIFEST_NAME
        was_complete = manifest.exists()

        def still_valid() -> bool:
            return is_ours() and (was_complete or not manifest.exists())

        extra = flat.extra()
        snapshot = Snapshot(
            self._run_id, *key, layout, self._buffer, extra, still_valid, incarnation
        )
        write_shard(self._files, self._checkpoints, snapshot)

    def _commit(self, key: Key) -> tuple[bool, str]:
        """Write the manifest if all parts exist, then apply retention.

        Returns whether the step is complete, and what went wrong.
        """
        name = step_dir_name(*key)
        try:
            attempt = look(self._checkpoints).find(key)
            self._late.discard(key)
            if attempt is not None and attempt.is_mixed:
                return (
                    False,
                    f"{name} is not complete: its parts are of different starts of the job",
                )
            if attempt is None or not (attempt.has_all_parts or attempt.is_complete):
                return False, ""
            self._late.add(key)
            write_manifest(self._files, self._checkpoints / name)
            self._late.discard(key)
        except (OSError, CorruptError) as error:
            return False, f"{name} is not complete, its manifest could not be written: {error}"
        if problem := obsolete(self._checkpoints, *key):  # since this save began
            return False, problem
        try:
            self._retain()
        except (OSError, CorruptError) as error:
            problem = f"old checkpoints could not be removed: {error}"
        if not (self._checkpoints / name / MANIFEST_NAME).exists():
            return False, f"{name} was removed by another process: a later start saves here"
        return True, problem

    def _retain(self) -> None:
        self._own = {k for k in self._own if (self._checkpoints / step_dir_name(*k)).exists()}
        apply_retention(self._checkpoints, self._keep, files=self._files, own=self._own)
