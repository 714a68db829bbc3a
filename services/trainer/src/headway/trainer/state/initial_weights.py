"""Initial parameter values: equal on every grid, bit for bit.

A value is a function of (seed, parameter name, index in the global tensor) alone. A tensor is drawn
in blocks of 4,096 elements; each block has its own counter range of one Philox stream (Salmon et
al., SC'11), so that a rank draws only the blocks that its piece touches. Within a block every value
must be drawn, because the normals (ziggurat) take a varying number of random words. So a row-cut
matrix, whose rows hold the columns of all tensor-parallel ranks, costs up to ``tp_size`` times its
piece while a rank's part of a row is shorter than a block, and about two blocks more than that part
if it is longer.

The threads that draw share nothing but the interpreter: numpy releases its lock while it draws.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from headway.trainer.state.params import ParamSpec

BLOCK = 4096
PIECE = 64 * BLOCK
"""Elements that one thread makes at a time: how long an abort can wait. 5 ms on one core, or up to
``tp_size`` times that in a row-cut matrix."""
MAX_THREADS = 16
_Array = npt.NDArray[np.float64]


def initial_values(spec: ParamSpec, seed: int, start: int, stop: int) -> _Array:
    """Return elements [start, stop) of the flattened local piece of ``spec``.

    They are in fp64, of shape [stop - start].
    """
    if spec.init_from is not None:
        return spec.init_from(seed)[start:stop].astype(np.float64)
    if spec.init_std == 0.0:
        return np.full(stop - start, spec.init_value)
    return spec.init_std * _local_normals(spec, seed, start, stop)


class Drawing:
    """Threads that draw initial values, as many as this process may use cores.

    A context manager: leaving it waits for the pieces that are being drawn and drops the others.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._num_threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
        self._threads = ThreadPoolExecutor(self._num_threads, "first-weights")

    def __enter__(self) -> Drawing:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def values(self, spec: ParamSpec, start: int, stop: int) -> Iterator[tuple[int, _Array]]:
        """Yield (position, values) of the pieces that make up [start, stop), in order.

        A piece has at most ``PIECE`` elements; a few pieces are drawn ahead.
        """
        ahead: deque[tuple[int, Future[_Array]]] = deque()
        for low, high in _pieces(spec, start, stop):
            future = self._threads.submit(initial_values, spec, self._seed, low, high)
            ahead.append((low, future))
            if len(ahead) > 2 * self._num_threads:
                low, future = ahead.popleft()
                yield low, future.result()
        for low, future in ahead:
            yield low, future.result()


def _pieces(spec: ParamSpec, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Split [start, stop), at blocks of the global tensor where the piece is contiguous in it."""
    offset = _layout(spec)[2]
    while start < stop:
        end = min(stop, (start + offset) // PIECE * PIECE + PIECE - offset)
        yield start, end
        start = end


def _layout(spec: ParamSpec) -> tuple[int, int, int]:
    """Return where the local piece is in the flattened global tensor.

    The result is the length of each contiguous run, the distance from run to run, and where the
    first one begins.
    """
    if spec.tp_dim is None:
        return spec.numel, spec.numel, 0
    if spec.rows is not None:
        before = math.prod(spec.global_shape) // spec.tp_size * spec.tp_rank + spec.skipped
        return spec.numel, spec.numel, before
    run = math.prod(spec.shape[spec.tp_dim :])
    return run, run * spec.tp_size, run * spec.tp_rank


def _local_normals(spec: ParamSpec, seed: int, start: int, stop: int) -> _Array:
    run, distance, offset = _layout(spec)
    blocks = _Blocks(seed, spec.name)
    out = np.empty(stop - start)
    position = start
    while position < stop:
        row, column = divmod(position, run)
        length = min(run - column, stop - position)
        at = position - start
        blocks.copy(row * distance + offset + column, out[at : at + length])
        position += length
    return out


class _Blocks:
    """The stream of ``(seed, name)``; keeps the newest block, which the next run may share."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._newest = -1
        self._values = np.empty(BLOCK)

    def copy(self, start: int, out: _Array) -> None:
        """Standard normals from element ``start`` on."""
        done = 0
        while done < len(out):
            block, first = divmod(start + done, BLOCK)
            length = min(BLOCK - first, len(out) - done)
            if length == BLOCK:
                self._draw(block, out[done : done + BLOCK])
            else:
                if block != self._newest:
                    self._draw(block, self._values)
                    self._newest = block
                out[done : done + length] = self._values[first : first + length]
            done += length

    def _draw(self, block: int, out: _Array) -> None:
        counter = np.array([0, 0, block, 0], dtype=np.uint64)
        philox = np.random.Philox(key=self._key, counter=counter)
        np.random.Generator(philox).standard_normal(out=out)
