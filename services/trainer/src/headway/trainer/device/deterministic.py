"""Makes a process compute the same bits each time it does the same work on a GPU."""

from __future__ import annotations

import os

import torch

_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it cuBLAS may choose among its workspaces, and so among its kernels, by what else runs
(cuBLAS, "Results reproducibility"). A user's own setting wins; torch refuses an unfit one."""


def make_deterministic() -> None:
    """Allow deterministic kernels only, for the rest of the process.

    An operation that has none raises RuntimeError. Call this before anything uses CUDA.

    Of attention's kernels, flash and the memory-efficient one then have a backward without atomics,
    and cuDNN's is left out (pytorch ``sdp_utils.cpp`` and PR 182551).
    """
    for name, value in _CUBLAS.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # new memory need not be filled: nothing reads it before it is written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
