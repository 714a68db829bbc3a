"""Checks that matrix products are exact: on every GPU through cupy, else on the CPU through numpy.

Entries are integers small enough that every partial sum is exact in float32, in any order of
addition. So the checksum of the product must equal the product of the checksums bit for bit (the
idea of algorithm-based fault tolerance, Huang and Abraham, IEEE TC 1984), on any hardware.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from headway.health.checks.base import CheckSettings, Finding

SIZE = 512
"""Rows and columns: |entry| <= 7, so a sum of 512 products is below 2**24 and exact in float32."""
ROUNDS = 8


def check(_settings: CheckSettings) -> Finding:
    """Multiply on each device in turn and compare row and column sums exactly."""
    devices = list(_gpus()) or [("CPU (numpy)", np, None)]
    values: dict[str, float | str] = {}
    bad: list[str] = []
    for name, xp, device in devices:
        num_wrong, gflops = multiply(xp, device)
        values[f"{name} GFLOP/s"] = round(gflops, 1)
        if num_wrong:
            bad.append(f"{name}: {num_wrong} wrong sums")
    if bad:
        return Finding(False, "; ".join(bad), "the device computes wrongly: drain the node", values)
    best = ", ".join(f"{name} {value}" for name, value in values.items())
    return Finding(True, f"{ROUNDS} products of {SIZE} x {SIZE} exact on {best}", values=values)


def multiply(xp: Any, device: Any) -> tuple[int, float]:
    """(row and column sums that are wrong, GFLOP/s) with the array module ``xp``."""
    chance = np.random.default_rng(2402)
    num_wrong, busy_s = 0, 0.0
    for _ in range(ROUNDS):
        left, right = (chance.integers(-7, 8, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
        on_left, on_right = xp.asarray(left), xp.asarray(right)
        began_s = time.perf_counter()
        product = on_left @ on_right
        if device is not None:
            device.synchronize()
        busy_s += time.perf_counter() - began_s
        num_wrong += count_wrong_sums(left, right, _to_host(product))
    return num_wrong, ROUNDS * 2 * SIZE**3 / busy_s / 1e9


def count_wrong_sums(left: Any, right: Any, product: Any) -> int:
    """Number of row and column sums of ``product`` that are wrong.

    A sum is wrong if it differs from the one implied by the factors.
    """
    a, b, c = (np.asarray(matrix, dtype=np.int64) for matrix in (left, right, product))
    rows = c.sum(axis=1) != a @ b.sum(axis=1)
    columns = c.sum(axis=0) != a.sum(axis=0) @ b
    return int(rows.sum() + columns.sum())


def _gpus() -> list[tuple[str, Any, Any]]:
    try:
        import cupy  # an extra; absent on CPU machines
    except ImportError:
        return []
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return []  # cupy without a GPU
    return [
        (f"GPU {index} (cupy)", _OnDevice(cupy, index), cupy.cuda.Device(index))
        for index in range(count)
    ]


class _OnDevice:
    """cupy with a device chosen."""

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy, self._index = cupy, index

    def asarray(self, array: Any) -> Any:
        self._cupy.cuda.Device(self._index).use()
        return self._cupy.asarray(array)


def _to_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array
