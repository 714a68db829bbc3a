"""The device of a rank, and what its process must have set before CUDA starts."""

from __future__ import annotations

import os

import torch

ENVIRONMENT = {
    # torch's watchdog and heartbeat monitor end the process when a peer is lost. The fence and the
    # driver detect that themselves, and the survivors are needed for the next generation.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # After an asynchronous error of a communicator, torch's watchdog sleeps four times this long
    # (by default 60 s in all) for a report that nobody writes here, and holds the lock that
    # queueing a collective takes. The flight ring has what the report would say, and torch's own
    # recorder takes a Python stack for each operation.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    # By default NCCL connects the ranks of a group in the first collective of each algorithm, where
    # the host then waits for the others, and cannot be aborted. Here it does so with the group.
    "NCCL_RUNTIME_CONNECT": "0",
    # Streams that share one of the default 8 hardware queues wait for each other, so a send could
    # still queue behind the receive of another communicator: docs/operations.md, GPUs.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}
"""Settings that a worker needs of torch and the CUDA driver; a user's own setting wins."""


def take_device(index: int) -> torch.device:
    """Select the device of this process's rank: GPU ``index`` modulo their number, or the CPU.

    Call it once, on the main thread. It also sets environment variables that must be set before
    anything uses CUDA (``set_environment``). ``index`` is the rank on its machine, or any number
    that enumerates the ranks of a machine, such as the rank in the world.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return torch.device("cpu")
    set_environment()
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", device_index(index))
    torch.cuda.set_device(device)
    return device


def device_index(index: int) -> int:
    """Which GPU of this machine ``take_device`` selects."""
    return index % torch.cuda.device_count()


def set_environment() -> None:
    """Set ``ENVIRONMENT`` where the user has not."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
