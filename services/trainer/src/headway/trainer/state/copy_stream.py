"""Copies from a GPU into slots of shared memory, on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from headway.common.errors import HeadwayError
from headway.common.log import get_logger

log = get_logger("snapshot")


class CopyStream:
    """A separate stream from a GPU into slots of page-locked memory.

    To lock or unlock memory waits until the device is idle, and meanwhile no other thread can
    launch anything. So both are done on the thread that trains, at the end of a step before its
    optimizer, when nothing that waits for a peer is queued: beside a step they would wait for a
    receive that is posted ahead, and the peer for this rank. A slot that gets its memory only when
    its snapshot begins is locked then: every rank has issued the gathers that this waits for.

    A copy on the computation's stream would wait behind the whole next step, and a copy into
    pageable memory goes through the driver's small buffer. Of the lowest priority, because NCCL's
    streams have the highest: torch assigns the streams of a priority's pool in turn, so two owners
    of one priority may share one, and a copy would wait behind a receive.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device, priority=0)  # type: ignore[no-untyped-call]
        # keyed by address; the views keep it mapped
        self._slots: dict[int, tuple[npt.NDArray[np.uint8], bool]] = {}

    def mark(self) -> Any:
        """An event after everything that the calling thread has queued, such as the optimizer."""
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._stream.device))
        return event

    @contextmanager
    def copying(self, written: Any) -> Iterator[None]:
        """Copies queued in the block run after ``written`` and are done when the block ends."""
        self._stream.wait_event(written)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._stream.synchronize()

    def unlock(self, data: npt.NDArray[np.uint8]) -> None:
        """Unlock a slot that is about to lose its memory.

        Otherwise the GPU would keep writing to the old pages.
        """
        self._unlock(data.ctypes.data)

    def unlock_all(self) -> None:
        """Unlock the slots' memory."""
        for address in list(self._slots):
            self._unlock(address)

    def _unlock(self, address: int) -> None:
        _, locked = self._slots.pop(address, (None, False))
        if not locked:
            return
        with torch.cuda.device(self._stream.device):  # a thread starts on device 0
            answer = int(_cudart().cudaHostUnregister(address))
        if answer != 0:  # the GPU may still write to pages that the slot no longer has
            raise HeadwayError(
                f"a slot of snapshots was not unlocked (CUDA error {answer})",
                remedy="the worker is replaced; look at the GPU if it happens again",
            )

    def lock(self, data: npt.NDArray[np.uint8]) -> None:
        """Page-lock a slot once; if that is refused, its copies are slower."""
        address = data.ctypes.data
        if address in self._slots:
            return
        with torch.cuda.device(self._stream.device):  # a thread starts on device 0
            answer = int(_cudart().cudaHostRegister(address, data.nbytes, 0))
        self._slots[address] = data, answer == 0
        if answer != 0:
            log.warning(
                "a slot was not page-locked: snapshots are slower",
                cuda_error=answer,
                nbytes=data.nbytes,
            )


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
