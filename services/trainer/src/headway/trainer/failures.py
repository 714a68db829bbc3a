"""Classifies the exception that ended a step: lost peer, broken device, or own error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from headway.trainer.parallel.comm import PeerLost

Reason = Literal["peer", "error"]
"""As in ``LeftGeneration``: reported by a survivor about another rank, or a failure of
the reporter's own."""

_NCCL_PEER = "ncclRemoteError"
_DEVICE_WORDS = ("CUDA error", "ncclUnhandledCudaError", "CUDNN_STATUS_EXECUTION_FAILED")


def reason_of(error: BaseException) -> Reason:
    """``peer`` for what our store and channels raise when a connection ends, and for NCCL's one
    code that means a remote process.

    torch has one type for all errors of NCCL, so its code is read in the text. The others (a CUDA
    error during a collective, a bad argument) are this rank's own.
    """
    if isinstance(error, PeerLost):
        return "peer"
    return "peer" if isinstance(error, RuntimeError) and _NCCL_PEER in str(error) else "error"


def breaks_device(error: BaseException) -> bool:
    """Whether CUDA has failed, in ``error`` or in what it was raised while handling.

    Most CUDA errors (an illegal access, an uncorrectable ECC error, a GPU off the bus) stay in the
    process's context, and every later call fails with them; CUDA does not say which. So after any
    of them the process is not used again. Memory that the allocator cannot give does not count.
    """
    return any(_is_of_device(link) for link in _chain(error))


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    # a library's error, or one that came from another thread, is a plain RuntimeError
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _DEVICE_WORDS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
