"""Checks that matrix products are exact: on every GPU through cupy, else on the CPU through numpy.

Entries are integers small enough that every partial sum is exact in float32, in any order of
addition. So every product is the same on any hardware, to the bit. Two things are compared: the
sums of rows and columns with those that the factors imply (the idea of algorithm-based fault
tolerance, Huang and Abraham, IEEE TC 1984), which says how much is wrong; and a checksum of all
products with the recorded one of the exact integer products, which this machine has not computed.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.health.checks.base import CheckSettings, Finding
from headway.health.measure.gpus import find_gpus

SIZE = 512
"""Rows and columns: |entry| <= 7, so a sum of 512 products is below 2**24 and exact in float32."""
ROUNDS = 8
SEED = 2402
CHECKSUM = 0xCF8C6B10
"""CRC-32 of the 8 products as int32, row by row; a test computes it in integers."""


@dataclass(frozen=True)
class Multiplied:
    """What a device made of the fixed products."""

    num_wrong: int
    """Row and column sums that are wrong."""
    gflops: float
    """Billions of floating-point operations per second."""
    checksum: int

    @property
    def is_exact(self) -> bool:
        return not self.num_wrong and self.checksum == CHECKSUM


def check(settings: CheckSettings) -> Finding:
    """Multiply on each device in turn, and compare sums and checksum exactly."""
    devices = list(_gpus()) or [("CPU (numpy)", np, None)]
    return judge({name: multiply(xp, device) for name, xp, device in devices}, settings)


def judge(measured: dict[str, Multiplied], _settings: CheckSettings) -> Finding:
    """The finding about the products of each device."""
    values: dict[str, float | str] = {}
    bad: list[str] = []
    for name, done in measured.items():
        values[f"{name} GFLOP/s"] = round(done.gflops, 1)
        values[f"{name} checksum"] = f"{done.checksum:08x}"
        if not done.is_exact:
            bad.append(f"{name}: {done.num_wrong} wrong sums, checksum {done.checksum:08x}")
    if bad:
        return Finding(False, "; ".join(bad), "the device computes wrongly: drain the node", values)
    best = ", ".join(f"{key} {value}" for key, value in values.items() if key.endswith("/s"))
    return Finding(True, f"{ROUNDS} products of {SIZE} x {SIZE} exact on {best}", values=values)


def factors() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The pairs of matrices: entries of -7 to 7 in int64.

    They are made of the raw stream of PCG64, which stays the same in every numpy (NEP 19).
    """
    stream = np.random.PCG64(SEED)
    for _ in range(ROUNDS):
        raw = stream.random_raw(2 * SIZE * SIZE) % np.uint64(15)
        left, right = raw.astype(np.int64).reshape(2, SIZE, SIZE) - 7
        yield left, right


def multiply(xp: Any, device: Any) -> Multiplied:
    """Multiply the fixed matrices with the array module ``xp``."""
    num_wrong, checksum, busy_s = 0, 0, 0.0
    for left, right in factors():
        on_left, on_right = (xp.asarray(one.astype(np.float32)) for one in (left, right))
        began_s = time.perf_counter()
        product = on_left @ on_right
        if device is not None:
            device.synchronize()
        busy_s += time.perf_counter() - began_s
        on_host = _to_host(product)
        num_wrong += count_wrong_sums(left, right, on_host)
        checksum = add_to_checksum(on_host, checksum)
    return Multiplied(num_wrong, ROUNDS * 2 * SIZE**3 / busy_s / 1e9, checksum)


def add_to_checksum(product: Any, checksum: int) -> int:
    """CRC-32 of what came before and this product; entries that int32 cannot hold change it too."""
    with np.errstate(invalid="ignore"):
        return zlib.crc32(np.asarray(product).astype("<i4").tobytes(), checksum)


def count_wrong_sums(left: Any, right: Any, product: Any) -> int:
    """Number of row and column sums of ``product`` that are wrong.

    A sum is wrong if it differs from the one implied by the factors.
    """
    a, b, c = (np.asarray(matrix, dtype=np.int64) for matrix in (left, right, product))
    rows = c.sum(axis=1) != a @ b.sum(axis=1)
    columns = c.sum(axis=0) != a.sum(axis=0) @ b
    return int(rows.sum() + columns.sum())


def _gpus() -> Iterator[tuple[str, Any, Any]]:
    gpus = find_gpus()
    for index in range(gpus.count):
        device = gpus.cupy.cuda.Device(index)
        yield f"GPU {index} (cupy)", _OnDevice(gpus.cupy, index), device


class _OnDevice:
    """cupy with a device chosen."""

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy, self._index = cupy, index

    def asarray(self, array: Any) -> Any:
        self._cupy.cuda.Device(self._index).use()
        return self._cupy.asarray(array)


def _to_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array
