"""A kernel that holds a GPU's stream until the host releases it, as a hanging kernel does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

LIMIT_TICKS = 20_000_000_000
"""About 10 s of a GPU's clock: the kernel ends by itself then, if its host is gone."""
_SOURCE = """
extern "C" __global__ void hold(unsigned long long address, long long limit) {
    volatile int* released = (volatile int*)address;
    long long began = clock64();
    while (!*released && clock64() - began < limit) {}
}
"""


class HeldStream:
    """One kernel on torch's current stream, which waits for a word of page-locked memory."""

    def __init__(self) -> None:
        import cupy  # an extra of GPU machines

        self._memory: Any = cupy.cuda.alloc_pinned_memory(4)
        self._released = np.frombuffer(self._memory, dtype=np.int32, count=1)
        self._released[0] = 0
        kernel = cupy.RawKernel(_SOURCE, "hold")
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            kernel((1,), (1,), (np.uint64(self._memory.ptr), np.int64(LIMIT_TICKS)))

    def release(self) -> None:
        """Let the stream continue."""
        self._released[0] = 1
