"""The shared-memory side of ``CheckpointClient``: one arena of this process, flushed by the node's daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import DeadlineError, InputError
from headway.common.node.arena import Arena
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import Flush, StoreStatus, StoreStatusReply

POLL_S = 0.005
BUSY_LIMIT_S = 600.0
EXTRA_BYTES = 65536


class DaemonArena:
    """Snapshots of ``rank`` for the daemon at ``endpoint``; the arena outlives this object and this process.

    Raises:
        DeadlineError: no daemon answers.
    """

    def __init__(self, endpoint: str, rank: int) -> None:
        self._client = Client(endpoint)
        try:
            status = self._status()
        except BaseException:
            self._client.close()
            raise
        self.checkpoints = Path(status.checkpoints)
        self._path = Path(status.shm_dir) / f"arena-{rank}.bin"
        self._run_id = status.run_id
        self._rank = rank
        self._arena: Arena | None = None

    def save(
        self,
        step: int,
        generation: int,
        layout: Mapping[str, Any],
        nbytes: int,
        pack: Callable[[npt.NDArray[np.uint8]], None],
        extra: bytes,
    ) -> None:
        """Copy a state into a slot (``pack`` fills it) and ask for it to be made durable.

        Waits, at most ``BUSY_LIMIT_S``, while the snapshot before has not left its slot.

        Raises:
            DeadlineError: the daemon does not get rid of the snapshot before.
            InputError: shared memory is full.
        """
        raw = json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()
        arena = self._fitting(raw, nbytes, len(extra))
        self._until_free(arena)
        arena.invalidate_newer(step - 1)
        slot = arena.begin(step, generation)
        slot.data[:] = 0
        pack(slot.data)
        arena.seal(slot, extra, wanted=True)
        arena.commit(step)
        self._client.notify(Flush())

    def wait(self, step: int, timeout_s: float) -> None:
        """Poll until ``step`` is complete. Raises DeadlineError."""
        deadline_s = time.monotonic() + timeout_s
        while (status := self._status()).complete_step < step:
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    f"step {step} is not complete after {timeout_s} s: {status.last_error or 'no error'}",
                    remedy=status.last_remedy or "are all ranks saving, and their daemons up?",
                )
            time.sleep(POLL_S)

    def close(self) -> None:
        """Unmap and disconnect."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._client.close()

    def _status(self) -> StoreStatusReply:
        return self._client.call(StoreStatus(), StoreStatusReply)

    def _fitting(self, layout: bytes, nbytes: int, extra_nbytes: int) -> Arena:
        """The arena, made or made again if the state's shape has changed."""
        if self._arena is None and self._path.exists():
            self._arena = Arena.open(self._path)
            self._arena.claim()  # first: below an arena of another shape is replaced
        arena = self._arena
        if arena is not None:
            if (arena.layout, arena.slot_bytes) == (
                layout,
                nbytes,
            ) and extra_nbytes <= arena.extra_bytes:
                return arena
            self._until_free(arena)
            arena.close()
            arena.unlink()
        if not self._run_id:
            raise InputError(
                "the daemon serves no run", remedy="start it with --run-id, 8 hex characters"
            )
        room = max(EXTRA_BYTES, 2 * extra_nbytes)
        self._arena = Arena.create(
            self._path,
            run_id=self._run_id,
            rank=self._rank,
            slot_bytes=nbytes,
            layout=layout,
            extra_bytes=room,
        )
        return self._arena

    def _until_free(self, arena: Arena) -> None:
        deadline_s = time.monotonic() + BUSY_LIMIT_S
        while arena.busy():
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    f"the snapshot before is still in shared memory after {BUSY_LIMIT_S} s",
                    remedy="is the daemon running, and is its disk fast enough?",
                )
            time.sleep(POLL_S)
