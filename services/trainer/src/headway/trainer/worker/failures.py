"""Classifies the exception that ended a step: lost peer, transport, broken device, or own error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from headway.trainer.comm.interface import PeerLost, StuckTransport

Reason = Literal["peer", "transport", "error"]
"""Reasons of ``LeftGeneration``: the failure of a peer, or of the reporting rank itself, or one of
the transport, which may be either."""

_NCCL_PEER = "ncclRemoteError"
_NCCL_UNCLEAR = ("ncclSystemError", "ncclInternalError")
_MEMORY_WORDS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough")
_DEVICE_WORDS = ("CUDA error", "ncclUnhandledCudaError", "CUDNN_STATUS_EXECUTION_FAILED")


def reason_of(error: BaseException) -> Reason:
    """Return the reason that ``error`` stands for: a lost peer, the transport, or this rank.

    It is ``peer`` for what our store and channels raise when a connection ends, and for the one
    NCCL code that means a remote process; ``transport`` for two codes that NCCL gives for a
    connection that a dead peer has closed, and for a fault of this machine as well (a socket, an
    adapter).

    torch has one type for all NCCL errors, so the code is read from the text. Other codes (a CUDA
    error during a collective, a bad argument) are this rank's own failures.
    """
    if isinstance(error, PeerLost):
        return "peer"
    if not isinstance(error, RuntimeError):
        return "error"
    if _NCCL_PEER in str(error):
        return "peer"
    return "transport" if any(code in str(error) for code in _NCCL_UNCLEAR) else "error"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out on the device that computes.

    ``error`` is then of CUDA's own type or Python's, or is the RuntimeError of torch's allocator
    for CPUs, which has no type and is known by its text.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _MEMORY_WORDS)


def breaks_device(error: BaseException) -> bool:
    """Whether CUDA has failed or NCCL is stuck.

    This is looked for in ``error`` and in the errors during whose handling it was raised.

    Most CUDA errors (an illegal access, an uncorrectable ECC error, a GPU off the bus) stay in the
    process's context, and every later call fails with them; CUDA does not report which ones. So
    after any of them the process is not used again. Running out of memory does not count.
    """
    return any(_is_of_device(link) for link in _chain(error))


def context_is_broken() -> bool:
    """Whether every further CUDA call of this process fails, whatever raised.

    Some libraries raise errors of their own (Triton, cuDNN's frontend), and an abort may come
    first. Only asks how far the stream is, because a collective of a lost peer may never end.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.current_stream().query()
    except RuntimeError:
        return True
    return False


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, torch.AcceleratorError | StuckTransport):
        return True
    # an error of a library or from another thread is a plain RuntimeError
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _DEVICE_WORDS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
