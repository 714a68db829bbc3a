"""This machine's highest matrix-product rate, which MFU is measured against.

Measured once with torch in a process of its own (the console never imports torch) and kept in
``~/.cache/headway/peak.json`` by processor, torch version and threads. ``HEADWAY_CACHE`` sets
another folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from headway.common.errors import CorruptError, HeadwayError
from headway.common.node.files import replace_json

MEASURE_LIMIT_S = 120.0
IDLE = 0.05
"""Up to this share of time spent waiting for a processor, the machine counts as idle."""

_PROGRAM = """
import glob, json, sys, time, torch
threads, least_s = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(threads)
on_gpu = sys.argv[3] == "gpu"
device = "cuda" if on_gpu else "cpu"
def waited_s():
    total = 0.0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with open(path) as file:
            total += int(file.read().split()[1]) / 1e9
    return total
def once(a, b):
    start = time.perf_counter()
    a @ b
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start
def rate(dtype):
    best = 0.0
    for n in (4096, 8192, 16384) if on_gpu else (256, 512, 1024, 2048):
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        end, tries = time.perf_counter() + least_s, [once(a, b)]
        while time.perf_counter() < end:
            tries.append(once(a, b))
        shortest = min(tries)
        best = max(best, 2.0 * n**3 / shortest)
        if shortest * 8 > 4 * least_s:
            break
    return best
rate(torch.float32)  # threads and frequency settle
began, waited = time.perf_counter(), waited_s()
flops = {"bf16": rate(torch.bfloat16), "fp32": rate(torch.float32)}
waited = (waited_s() - waited) / (time.perf_counter() - began)
print(json.dumps({"flops": flops, "waited": waited}))
"""
"""Square products of growing size; without bf16 units growth ends early."""


@dataclass(frozen=True)
class Peak:
    """Matrix-product rates in FLOP/s: of one GPU, or of all ``threads`` of the processor."""

    device: str
    """``gpu`` or ``cpu``, as ``train.device`` says."""
    name: str
    """The processor's or GPU's own name."""
    threads: int
    flops: dict[str, float]
    """By compute type: ``bf16``, ``fp32``."""
    waited: float = 1.0
    """Share of the time that the products were ready to run and waited for a processor.

    Above ``IDLE`` other programs ran and the figures may be too low. 0 where the kernel does not
    record it (``/proc/*/schedstat``).
    """

    @property
    def is_idle(self) -> bool:
        """Whether no other program took the processor meanwhile."""
        return self.waited <= IDLE

    def of_run(self, dtype: str, world_size: int) -> float:
        """The peak that a run of ``world_size`` ranks has at its disposal, FLOP/s.

        On GPUs each rank has one; on the processor all ranks share all threads. fp64 is measured
        against fp32.
        """
        one = self.flops[dtype if dtype in self.flops else "fp32"]
        return one * world_size if self.device == "gpu" else one


def cached_peak(device: str = "cpu") -> Peak | None:
    """Figures measured earlier on such a GPU or processor; None before the first time."""
    found = _read().get(_key(device))
    try:
        return msgspec.convert(found, Peak) if found else None
    except msgspec.ValidationError:
        return None


def machine_peak(device: str = "cpu", least_s: float = 0.4) -> Peak:
    """Figures of this machine, measured now (some seconds) unless known from an idle moment.

    Of several measurements the best figures are kept.

    Args:
        device: ``gpu`` or ``cpu``.
        least_s: seconds spent on each size and type.

    Raises:
        HeadwayError: torch is not installed or the measurement failed.
    """
    known = cached_peak(device)
    if known is not None and known.is_idle:
        return known
    command = [sys.executable, "-c", _PROGRAM, str(usable_threads()), str(least_s), device]
    env = {**os.environ, "OMP_NUM_THREADS": str(usable_threads())}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MEASURE_LIMIT_S, env=env
        )
        figures = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise HeadwayError(
            f"the peak of this machine could not be measured ({type(error).__name__})",
            remedy="check `python -c 'import torch'`; MFU is left out meanwhile",
        ) from error
    flops = {name: max(rate, known.flops.get(name, 0.0) if known else 0.0)
             for name, rate in figures["flops"].items()}  # fmt: skip
    peak = Peak(device, processor_name(device), usable_threads(), flops, float(figures["waited"]))
    _write(peak)
    return peak


def usable_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def processor_name(device: str) -> str:
    """The first GPU's name, or the processor's."""
    for file in (
        sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")) if device == "gpu" else ()
    ):
        found = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1].strip() if found else f"{os.uname().machine} {device}"


def cache_file() -> Path:
    """Where the figures are kept."""
    root = os.environ.get("HEADWAY_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "headway") / "peak.json"


def _key(device: str) -> str:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return f"{processor_name(device)} | torch {torch} | {usable_threads()} threads"


def _read() -> dict[str, dict[str, object]]:
    try:
        known = json.loads(cache_file().read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptError(f"{cache_file()} is not readable", remedy="remove it") from error
    return dict(known) if isinstance(known, dict) else {}


def _write(peak: Peak) -> None:
    file = cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_json(file, {**_read(), _key(peak.device): vars(peak)})
    except OSError:
        return  # a read-only home: measured again the next time
