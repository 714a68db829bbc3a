"""What NVIDIA's management library reports of a machine's GPUs; it may hang, or not tell the truth.

Only ``gpu_process`` calls it, in a process of its own. A function that the library lacks, or that
a GPU does not support, leaves its value out. Numbers and structures: nvml.h of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

LIBRARY: Final = "libnvidia-ml.so.1"
MAX_GPUS: Final = 64
"""More than any machine has; a larger count is not believed."""
MAX_LINKS: Final = 18
"""NVML_NVLINK_MAX_LINKS."""
MAX_EVENTS: Final = 64
"""Taken in one reading."""
GPU_IS_LOST: Final = 15
"""NVML_ERROR_GPU_IS_LOST."""
_XID_EVENT: Final = 0x8
_RECOVERY_FIELD: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_UNCORRECTED, _VOLATILE = 1, 0
LINK_ERRORS: Final = "nvlink_"
"""Beginning of the names of the error counters of links."""
_LINK_COUNTERS: Final = (0, 1, 2, 3)
"""Replays, recoveries, and checksum errors of flits and of data."""
_TEXT_BYTES: Final = 96
_UNSIGNED_INT: Final = 1
"""NVML_VALUE_TYPE_UNSIGNED_INT."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. ``values`` has what could be read, by the names that ``gpus`` compares."""

    index: int
    pci: str
    uuid: str = ""
    name: str = ""
    is_lost: bool = False
    """The driver says so, with its code for it."""
    error: str = ""
    """Why it could not be read, if the driver says anything else; empty if it could."""
    values: dict[str, int] = {}
    inactive_links: tuple[int, ...] = ()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs, and the Xids since the reading before: (PCI address, number)."""

    driver: str = ""
    gpus: tuple[GpuReading, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()
    error: str = ""
    """Why there is no reading; empty if there is one."""


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``: what is asked for, and the answer."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )

    @property
    def number(self) -> int:
        """The value, of which only 32 bits may be meant."""
        is_narrow = self.value_type == _UNSIGNED_INT
        return int(self.value) & 0xFFFFFFFF if is_narrow else int(self.value)


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("event_type", ctypes.c_ulonglong),
        ("event_data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(slots=True)
class Nvml:
    """The library, once it is initialised.

    Raises:
        OSError: the library is missing, or cannot be initialised.
    """

    library: str = LIBRARY
    _lib: Any = None
    _events: ctypes.c_void_p | None = None
    _known: dict[int, GpuReading] = field(default_factory=dict)
    """By index, as first read: a lost GPU no longer says who it is."""

    def __post_init__(self) -> None:
        self._lib = ctypes.CDLL(self.library)
        code = self.call("nvmlInit_v2")
        if code:
            raise OSError(f"nvmlInit_v2 of {self.library} failed with code {code}")

    def read(self) -> Reading:
        """One reading of all GPUs."""
        count = ctypes.c_uint()
        code = self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code:
            return Reading(error=f"NVML does not count the GPUs: code {code}")
        if count.value > MAX_GPUS:
            return Reading(error=f"NVML reports {count.value} GPUs")
        gpus = tuple(filter(None, (self._gpu(index) for index in range(count.value))))
        self._register()
        driver = self._text("nvmlSystemGetDriverVersion")
        return Reading(driver=driver, gpus=gpus, xids=tuple(self._xids()))

    def handles(self) -> Iterator[tuple[int, str, ctypes.c_void_p]]:
        """Index, PCI address and handle of each GPU that the library gives out at present."""
        count = ctypes.c_uint()
        if self.call("nvmlDeviceGetCount_v2", ctypes.byref(count)):
            return
        for index in range(min(count.value, MAX_GPUS)):
            handle = ctypes.c_void_p()
            code = self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            pci = "" if code else self._pci(handle)
            if pci:
                yield index, pci, handle

    def _gpu(self, index: int) -> GpuReading | None:
        handle = ctypes.c_void_p()
        code = self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        known = self._known.get(index)
        if code and known is not None:
            is_lost = code == GPU_IS_LOST
            error = "" if is_lost else f"code {code}"
            return msgspec.structs.replace(known, is_lost=is_lost, error=error)
        pci = "" if code else self._pci(handle)
        if not pci:
            return None
        uuid = self._text("nvmlDeviceGetUUID", handle)
        name = self._text("nvmlDeviceGetName", handle)
        values, is_lost = self._values(handle)
        first = GpuReading(index=index, pci=pci, uuid=uuid, name=name)
        self._known[index] = first
        links = tuple(link for link, is_on in self._links(handle) if not is_on)
        return msgspec.structs.replace(first, is_lost=is_lost, values=values, inactive_links=links)

    def _values(self, handle: ctypes.c_void_p) -> tuple[dict[str, int], bool]:
        """What can be read of a GPU, and whether the driver has lost it."""
        values: dict[str, int] = {}
        lost = False
        wide, narrow = ctypes.c_ulonglong, ctypes.c_uint
        for name, function, arguments, kind in (
            ("ecc", "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE), wide),
            ("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", (), wide),
            ("power_mw", "nvmlDeviceGetPowerUsage", (), narrow),
            ("temperature", "nvmlDeviceGetTemperature", (0,), narrow),
            ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), narrow),
            ("pcie_replays", "nvmlDeviceGetPcieReplayCounter", (), narrow),
        ):
            value = kind()
            code = self.call(function, handle, *arguments, ctypes.byref(value))
            lost = lost or code == GPU_IS_LOST
            if not code:
                values[name] = value.value
        rows = [ctypes.c_uint() for _ in range(4)]
        if not self.call("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows)):
            values |= {"remap_pending": rows[2].value, "remap_failed": rows[3].value}
        wanted = FieldValue(field_id=_RECOVERY_FIELD)
        code = self.call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(wanted))
        if not code and not wanted.result:
            values["recovery"] = int(wanted.value) & 0xFFFFFFFF
        return values | dict(self._link_errors(handle)), lost

    def _links(self, handle: ctypes.c_void_p) -> Iterator[tuple[int, bool]]:
        for link in range(MAX_LINKS):
            state = ctypes.c_uint()
            if not self.call("nvmlDeviceGetNvLinkState", handle, link, ctypes.byref(state)):
                yield link, bool(state.value)

    def _link_errors(self, handle: ctypes.c_void_p) -> Iterator[tuple[str, int]]:
        """Each counter of each link by itself: a sum would grow when one more can be read."""
        function = "nvmlDeviceGetNvLinkErrorCounter"
        for link in range(MAX_LINKS):
            for counter in _LINK_COUNTERS:
                value = ctypes.c_ulonglong()
                if not self.call(function, handle, link, counter, ctypes.byref(value)):
                    yield f"{LINK_ERRORS}{link}_{counter}", value.value

    def _register(self) -> None:
        """Ask for events of every GPU, once."""
        if self._events is not None:
            return
        events = ctypes.c_void_p()
        self._events = events
        if self.call("nvmlEventSetCreate", ctypes.byref(events)):
            return
        for index in self._known:
            handle = ctypes.c_void_p()
            if not self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
                self.call(
                    "nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(_XID_EVENT), events
                )

    def _xids(self) -> Iterator[tuple[str, int]]:
        if not self._events:
            return
        for _ in range(MAX_EVENTS):
            data = _EventData()
            if self.call("nvmlEventSetWait_v2", self._events, ctypes.byref(data), 0):
                return  # most often a timeout: there are no more
            pci = self._pci(ctypes.c_void_p(data.device))
            if data.event_type == _XID_EVENT and pci:
                yield pci, data.event_data

    def _pci(self, handle: ctypes.c_void_p) -> str:
        info = _PciInfo()
        if self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info)):
            return ""
        return bytes(info.bus_id).decode(errors="replace").lower()

    def _text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if self.call(function, *arguments, buffer, _TEXT_BYTES - 1):
            return ""
        return buffer.value.decode(errors="replace")

    def call(self, function: str, *arguments: object) -> int:
        """Return the code of a function: 0 is success, and -1 that the library does not have it."""
        try:
            return int(getattr(self._lib, function)(*arguments))
        except AttributeError:
            return -1
