"""The shared-memory side of ``CheckpointClient``.

It is one arena of this process, flushed by the node's daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, DeadlineError, InputError
from headway.common.log import get_logger
from headway.common.node.arena import Arena
from headway.common.node.arena_file import remove
from headway.common.polling import HighWater
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import Flush, StoreStatus, StoreStatusReply

_log = get_logger("checkpoints")

POLL_S = 0.005
WAIT_POLL_S = 0.05
STALL_LIMIT_S = 30.0
"""So long without any progress of the daemon, and a save no longer waits for it."""
_ASK_S = 1.0
EXTRA_BYTES = 65536
_LONGEST_SOCKET_NAME = 107
"""Bytes in the address of a Unix socket (unix(7)); a longer one works only relative."""


class DaemonArena:
    """Snapshots of ``rank`` for the daemon at ``endpoint``.

    The arena outlives this object and this process.

    Raises:
        DeadlineError: no daemon answers.
    """

    def __init__(self, endpoint: str, rank: int) -> None:
        self._client = Client(_absolute(endpoint))
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
    ) -> str:
        """Copy a state into a slot (``pack`` fills it) and ask for it to be made durable.

        Waits while the snapshot before has not left its slot and the daemon gets on. Returns why
        nothing was handed over: no room in shared memory, or a daemon that is dead or stuck;
        empty when all is well.

        Raises:
            InputError: the daemon serves no run.
        """
        if not self._run_id:
            raise InputError(
                "the daemon serves no run", remedy="start it with --run-id, 8 hex characters"
            )
        raw = json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()
        self._arena = self._sound()
        if self._arena is not None and not self._is_free(self._arena):
            return f"the daemon has not written the snapshot before for {STALL_LIMIT_S:g} s"
        try:
            arena = self._fitting(raw, nbytes, len(extra))
        except InputError as error:
            return str(error)
        arena.invalidate_newer(step - 1)
        slot = arena.begin(step, generation)
        pack(slot.data)
        arena.seal(slot, extra, wanted=True)
        arena.commit(step)
        self._client.notify(Flush())
        return ""

    def wait(self, step: int, timeout_s: float, is_complete: Callable[[int], bool]) -> None:
        """Poll until ``is_complete(step)``.

        It is only asked once the daemon has completed ``step`` or a later step.

        Raises:
            DeadlineError: it took longer than ``timeout_s``; at once if the daemon gave the
                step up.
        """
        deadline_s = time.monotonic() + timeout_s
        while (status := self._status()).complete_step < step or not is_complete(step):
            if status.last_step == step:
                raise DeadlineError(
                    f"step {step} was given up: {status.last_error}", remedy=status.last_remedy
                )
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    f"step {step} is not complete after {timeout_s} s: "
                    f"{status.last_error or 'no error'}",
                    remedy=status.last_remedy
                    or "check that all ranks save and that their daemons are running",
                )
            time.sleep(WAIT_POLL_S)

    def close(self) -> None:
        """Unmap and disconnect."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._client.close()

    def _status(self) -> StoreStatusReply:
        return self._client.call(StoreStatus(), StoreStatusReply)

    def _sound(self) -> Arena | None:
        """Return the arena, claimed, or None if there is none.

        A file that is damaged is removed. An arena of another shape is replaced by ``_fitting``.
        """
        try:
            if self._arena is not None:
                self._arena.check()
                return self._arena
            arena = Arena.open(self._path)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            _log.error("the arena is damaged, a new one takes its place", error=error.message)
            if self._arena is not None:
                self._arena.close()
            remove(self._path)
            return None
        arena.claim()
        return arena

    def _fitting(self, layout: bytes, nbytes: int, extra_nbytes: int) -> Arena:
        """The arena, made or made again if the state's shape has changed; nothing in it is wanted.

        Raises:
            InputError: shared memory is full.
        """
        arena = self._arena
        if arena is not None:
            fits = (arena.layout, arena.slot_bytes) == (layout, nbytes)
            if fits and extra_nbytes <= arena.extra_bytes:
                return arena
            arena.close()
            arena.unlink()
            self._arena = None
        self._arena = Arena.create(
            self._path,
            run_id=self._run_id,
            rank=self._rank,
            slot_bytes=nbytes,
            layout=layout,
            extra_bytes=max(EXTRA_BYTES, 2 * extra_nbytes),
        )
        return self._arena

    def _is_free(self, arena: Arena) -> bool:
        """Wait for the snapshot before while the daemon gets on; False once it does not."""
        mark, deadline_s = HighWater(), time.monotonic() + STALL_LIMIT_S
        ask_at_s = time.monotonic() + _ASK_S
        while arena.busy():
            now_s = time.monotonic()
            if now_s > deadline_s:
                return False
            if now_s > ask_at_s:
                found = self._progress()
                if found is not None and mark.rises(found):
                    deadline_s = now_s + STALL_LIMIT_S
                ask_at_s = time.monotonic() + _ASK_S
            time.sleep(POLL_S)
        return True

    def _progress(self) -> int | None:
        try:
            return self._client.call(StoreStatus(), StoreStatusReply, timeout_s=_ASK_S).progress
        except DeadlineError:
            return None


def _absolute(endpoint: str) -> str:
    """Return the endpoint with an absolute path.

    The socket is connected again after a restart of the daemon, wherever the working folder is by
    then.
    """
    scheme, _, name = endpoint.partition("://")
    if scheme != "ipc" or name.startswith("@"):
        return endpoint
    path = str(Path(name).absolute())
    return f"ipc://{path}" if len(path.encode()) <= _LONGEST_SOCKET_NAME else endpoint
