"""Reads the counters of all GPUs every 10 ms for a short time: their links, clocks and power.

Only ``gpu_process`` calls this, since a driver may hang. Fields and units: nvml.h of CUDA 12 and
13. The counters of bytes are read within a fraction of a millisecond, while
``nvmlDeviceGetPcieThroughput`` watches for 20 ms by itself; a GPU without these counters has no
such link here. NVML counts neither credits nor congestion of NVLink, so no verdict claims them: a
GPU's link is full, or paused while it repeats or recovers transfers, or free.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from headway.health.rulebook import pci_address
from headway.health.sources.burst import PERIOD_S, Link, LinkBurst, judge
from headway.health.sources.nvml import FieldValue, Nvml

PCIE_SENT, PCIE_RECEIVED, PCIE_REPLAYS = 197, 198, 94
NVLINK_SENT, NVLINK_RECEIVED, NVLINK_REPLAYS, NVLINK_RECOVERIES = 138, 139, 52, 59
NVLINK_SPEED, NVLINK_COUNT = 90, 91
POWER_MW = 186
"""NVML_FI_DEV_POWER_INSTANT; the other one is a mean over a second."""
ALL_LINKS: Final = 0xFFFFFFFF
"""Scope of NVLINK_SENT and NVLINK_RECEIVED: their sum over all links, in KiB."""
FIELDS: Final = (
    PCIE_SENT, PCIE_RECEIVED, PCIE_REPLAYS, NVLINK_SENT, NVLINK_RECEIVED, NVLINK_REPLAYS,
    NVLINK_RECOVERIES, POWER_MW,
)  # fmt: skip
KIB: Final = 1024
LANE_RATES: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second by generation of PCIe, in one direction, after its line code."""
SLOWDOWNS: Final = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "temperature (driver)", 0x40: "temperature",
    0x80: "power brake",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons that keep a busy GPU below its clock."""
SM_CLOCK: Final = 1


class GpuBurst(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU did. Values that it does not report are 0."""

    index: int
    pci: str
    num_readings: int
    mean_w: float
    peak_w: float
    least_mhz: int
    """Lowest and highest clock of its multiprocessors."""
    most_mhz: int
    busy: float
    """Mean share of time in which a kernel ran, 0..1, as NVML measures it over 1/6 s to 1 s."""
    slowed: dict[str, float]
    """Why its clock was held down, with the share of the readings, 0..1."""


class GpuBursts(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and their links; or why there is nothing."""

    gpus: tuple[GpuBurst, ...] = ()
    links: tuple[LinkBurst, ...] = ()
    error: str = ""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Gpu:
    """One GPU and what was read of it."""

    def __init__(self, nvml: Nvml, index: int, pci: str, handle: ctypes.c_void_p) -> None:
        self._nvml, self._index, self._handle = nvml, index, handle
        self.pci = pci_address(pci)
        self._asked = (FieldValue * len(FIELDS))()
        for place, field in enumerate(FIELDS):
            self._asked[place].field_id = field
            if field in (NVLINK_SENT, NVLINK_RECEIVED):
                self._asked[place].scope_id = ALL_LINKS
        self._times: list[float] = []
        self._rows: list[list[float]] = []
        self._clocks: list[int] = []
        self._busy: list[int] = []
        self._slowed: Counter[str] = Counter()

    def read(self) -> None:
        """Add one reading; what cannot be read is not a number."""
        self._times.append(time.monotonic())
        self._rows.append(self._fields())
        clock, reasons, used = ctypes.c_uint(), ctypes.c_ulonglong(), _Utilization()
        call, handle = self._nvml.call, self._handle
        if not call("nvmlDeviceGetClockInfo", handle, SM_CLOCK, ctypes.byref(clock)):
            self._clocks.append(clock.value)
        function = "nvmlDeviceGetCurrentClocksThrottleReasons"
        if not call(function, handle, ctypes.byref(reasons)):
            self._slowed.update(why for bit, why in SLOWDOWNS.items() if reasons.value & bit)
        if not call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(used)):
            self._busy.append(used.gpu)

    def burst(self) -> GpuBurst:
        """What the GPU itself did."""
        watts = [row[-1] / 1e3 for row in self._rows if not np.isnan(row[-1])]
        count = len(self._rows)
        return GpuBurst(
            index=self._index,
            pci=self.pci,
            num_readings=count,
            mean_w=round(float(np.mean(watts)), 1) if watts else 0.0,
            peak_w=round(max(watts, default=0.0), 1),
            least_mhz=min(self._clocks, default=0),
            most_mhz=max(self._clocks, default=0),
            busy=round(float(np.mean(self._busy)) / 100, 3) if self._busy else 0.0,
            slowed={why: round(times / count, 3) for why, times in self._slowed.items()},
        )

    def links(self) -> list[LinkBurst]:
        """Its PCIe link, and all its NVLinks as one; none whose bytes it does not count."""
        times, rows = np.array(self._times), np.array(self._rows, float)
        replays = np.nansum(rows[:, 5:7], axis=1)
        pcie = Link(f"{self.pci} pcie", self._pcie_rate(), 1)
        nvlink = Link(f"{self.pci} nvlink", self._nvlink_rate(), KIB)
        nothing = np.full(len(rows), np.nan)
        found = []
        for link, sent, received, waits in (
            (pcie, _unwrapped(rows[:, 0]), _unwrapped(rows[:, 1]), rows[:, 2]),
            (nvlink, rows[:, 3], rows[:, 4], replays),
        ):
            if not np.isnan(sent).all():
                values = np.column_stack([sent, received, waits, nothing])
                found.append(judge(link, times, values))
        return found

    def _fields(self) -> list[float]:
        code = self._nvml.call(
            "nvmlDeviceGetFieldValues", self._handle, len(FIELDS), ctypes.byref(self._asked)
        )
        return [np.nan if code or one.result else float(one.number) for one in self._asked]

    def _pcie_rate(self) -> float:
        """Bytes per second in one direction, 0.0 if it is not known."""
        generation, width = ctypes.c_uint(), ctypes.c_uint()
        for function, value in (
            ("nvmlDeviceGetCurrPcieLinkGeneration", generation),
            ("nvmlDeviceGetCurrPcieLinkWidth", width),
        ):
            if self._nvml.call(function, self._handle, ctypes.byref(value)):
                return 0.0
        return LANE_RATES.get(generation.value, 0.0) * width.value

    def _nvlink_rate(self) -> float:
        """Bytes per second in one direction of all NVLinks that are up, 0.0 if it is not known."""
        asked = (FieldValue * 2)(FieldValue(NVLINK_SPEED), FieldValue(NVLINK_COUNT))
        call = self._nvml.call
        if call("nvmlDeviceGetFieldValues", self._handle, 2, ctypes.byref(asked)):
            return 0.0
        speed, count = (0 if one.result else one.number for one in asked)
        return float(speed * count) * 1e6


def gpu_burst(nvml: Nvml, seconds: float) -> GpuBursts:
    """Watch every GPU for ``seconds``."""
    gpus = [_Gpu(nvml, *one) for one in nvml.handles()]
    until_s = time.monotonic() + seconds
    began_s = 0.0
    while gpus and time.monotonic() < until_s:
        time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began_s)))
        began_s = time.monotonic()
        for gpu in gpus:
            gpu.read()
    return GpuBursts(
        gpus=tuple(gpu.burst() for gpu in gpus),
        links=tuple(link for gpu in gpus for link in gpu.links()),
    )


def _unwrapped(counter: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A counter of 32 bits as one that only grows: at 50 GB/s it begins again every 86 ms."""
    steps = np.diff(counter)
    found: npt.NDArray[np.float64] = counter + np.concatenate(
        [[0.0], np.cumsum(np.where(steps < 0, 2.0**32, 0.0))]
    )
    return found
