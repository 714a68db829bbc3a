"""Times the sides of ``gpu``: which plain variant is fastest, and rounds in turns."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Step = Callable[[], float]
Make = Callable[[], Any]
"""Builds a side, which has ``step`` and ``close``."""
TUNING_STEPS = 2


class Clock:
    """Seconds of a call: between two CUDA events, or by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.is_gpu = device.type == "cuda"

    def time(self, work: Step) -> tuple[float, float]:
        """(seconds, what ``work`` returned)."""
        if not self.is_gpu:
            began_s = time.perf_counter()
            value = work()
            return time.perf_counter() - began_s, value
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        value = work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3, value


def peak_flops(device: torch.device, size: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """FLOP/s of the best of ten square products."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    clock, best = Clock(device), float("inf")
    out = torch.empty_like(a)

    def product() -> float:
        torch.mm(a, b, out=out)
        return 0.0

    for _ in range(10):
        best = min(best, clock.time(product)[0])
    return 2.0 * size**3 / best


class Bench:
    """Times, losses and memory by side, over one or more runs."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self._rounds, self._warmup = int(options.rounds), int(options.warmup)
        self._device, self._clock = device, Clock(device)
        self.times: dict[str, list[float]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.tuning: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.runs: list[list[str]] = []
        """Sides of each run that ended well."""

    def fastest(self, makers: Mapping[str, Make]) -> str:
        """The variant with the fastest step, "" if none works; none is left on the device."""
        if len(makers) == 1:
            return next(iter(makers))
        for name, make in makers.items():
            side = None
            try:
                side = make()
                for _ in range(self._warmup):
                    side.step()
                timed = [self._clock.time(side.step)[0] for _ in range(TUNING_STEPS)]
                self.tuning[name] = min(timed)
            except (RuntimeError, ValueError) as error:  # out of memory, or no such kernel
                self.failed[name] = str(error)[:300]
            self._free(side)
            side = None
        return min(self.tuning, key=self.tuning.__getitem__, default="")

    def run(self, makers: Mapping[str, Make]) -> bool:
        """Build, warm up, and take turns; False if there was not enough memory."""
        sides: dict[str, Any] = {}
        self.times.update({name: [] for name in makers})
        try:
            for name, make in makers.items():
                sides[name] = self._start(name, make)
            for index in range(self._rounds):
                for name in list(sides) if index % 2 == 0 else list(reversed(sides)):
                    seconds, loss = self._clock.time(sides[name].step)
                    self.times[name].append(seconds)
                    self.facts[name]["losses"].append(loss)
        except torch.OutOfMemoryError as error:
            self.failed[", ".join(makers)] = str(error)[:300]
            return False
        finally:
            while sides:
                self._free(sides.popitem()[1])
        self.runs.append(list(makers))
        return True

    def _start(self, name: str, make: Make) -> Any:
        """A side after its first steps, with what those took."""
        is_gpu, began_s = self._device.type == "cuda", time.monotonic()
        before = torch.cuda.memory_allocated() if is_gpu else 0
        if is_gpu:
            torch.cuda.reset_peak_memory_stats()
        side = make()
        losses = [self._clock.time(side.step)[1] for _ in range(self._warmup)]
        self.facts[name] = {"start_s": round(time.monotonic() - began_s, 1), "losses": losses}
        if is_gpu:
            used = torch.cuda.max_memory_allocated() - before
            self.facts[name]["peak_gb"] = round(used / 1e9, 2)
        return side

    def _free(self, side: Any) -> None:
        if side is not None:
            side.close()
        del side
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
