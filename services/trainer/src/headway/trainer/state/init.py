"""Initial parameter values: equal on every grid, bit for bit.

A value is a function of (seed, parameter name, index in the global tensor) alone. A tensor is drawn
in blocks of 4,096 elements; each block has its own counter range of one Philox stream (Salmon et
al., SC'11), so that a rank draws only the blocks of its piece.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
from headway.trainer.state.params import ParamSpec

BLOCK = 4096
_Array = npt.NDArray[np.float64]


def initial_values(spec: ParamSpec, seed: int, start: int, stop: int) -> _Array:
    """Elements [start, stop) of the flattened local piece of ``spec``, in fp64,
    shape [stop - start]."""
    if spec.init_std == 0.0:
        return np.full(stop - start, spec.init_value)
    return spec.init_std * _local_normals(spec, seed, start, stop)


def _local_normals(spec: ParamSpec, seed: int, start: int, stop: int) -> _Array:
    inner = math.prod(spec.shape[spec.tp_dim :]) if spec.tp_dim is not None else spec.numel
    global_inner = inner * spec.tp_size if spec.tp_dim is not None else inner
    if inner == spec.numel:  # the piece is contiguous in the global tensor
        offset = spec.tp_rank * inner if spec.tp_dim is not None else 0
        return _normals(seed, spec.name, offset + start, offset + stop)
    first_row, last_row = start // inner, -(-stop // inner)
    rows = _normals(seed, spec.name, first_row * global_inner, last_row * global_inner)
    piece = rows.reshape(-1, global_inner)[
        :, spec.tp_rank * inner : (spec.tp_rank + 1) * inner
    ].reshape(-1)
    return piece[start - first_row * inner : stop - first_row * inner]


def _normals(seed: int, name: str, start: int, stop: int) -> _Array:
    """Standard normals [start, stop) of the stream of ``(seed, name)``."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    first, last = start // BLOCK, -(-stop // BLOCK)
    out = np.empty((last - first, BLOCK))
    for row, block in enumerate(range(first, last)):
        counter = np.array([0, 0, block, 0], dtype=np.uint64)
        np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(
            out=out[row]
        )
    return out.reshape(-1)[start - first * BLOCK : stop - first * BLOCK]
