"""CUDA contexts that a process holds on GPUs of which it will use one, and gives up again.

The primary context of a device is what CUDA's runtime, and so torch, works in. Creating one takes
some tenths of a second, holds about half a GiB of the GPU and cannot be undone through torch. The
driver counts who retains it and ends it with the last one (CUDA driver API, "Primary Context
Management").
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
_DEFAULT_MODE = 0  # CU_COMPUTEMODE_DEFAULT


class Contexts:
    """The primary contexts that this object retains; indices are those of torch.

    Raises:
        OSError: there is no driver. RuntimeError: it cannot be used.
    """

    def __init__(self, library: Any = None) -> None:
        self._cuda = ctypes.CDLL(LIBRARY) if library is None else library
        self._held: set[int] = set()
        self._call("cuInit", 0)

    def is_shared(self, index: int) -> bool:
        """Whether several processes may use the device at a time (its compute mode)."""
        mode = ctypes.c_int()
        args = ctypes.byref(mode), _COMPUTE_MODE, self._device(index)
        self._call("cuDeviceGetAttribute", *args)
        return mode.value == _DEFAULT_MODE

    def retain(self, index: int) -> None:
        """Create the context, unless the process has it. Takes some tenths of a second."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        self._held.add(index)

    def release_all_but(self, index: int) -> None:
        """End the contexts of all devices but this one, whose context the process uses now."""
        for other in sorted(self._held - {index}):
            self._call("cuDevicePrimaryCtxRelease_v2", self._device(other))
        self._held &= {index}

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        return device

    def _call(self, name: str, *args: object) -> None:
        code = int(getattr(self._cuda, name)(*args))
        if code:
            raise RuntimeError(f"{name} failed with CUDA's error {code}")
