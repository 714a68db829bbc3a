"""Measures the peak memory of this process's rank, and explains a failure for want of it.

On a GPU torch counts it. On a CPU it is the peak of the process's anonymous memory over what the
process had before the model was built: the kernel's high-water mark (VmHWM) less mapped files and
shared memory, which are the libraries and the snapshots.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from headway.common.errors import ConfigError
from headway.common.node.process import return_free_memory
from headway.common.plan.memory import advise, describe, predict, size
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape
from headway.trainer.errors import MemoryTooSmallError
from headway.trainer.worker.link import WorkerStatus

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


FIRST_STEPS = 4
"""Steps before the peak is reported: by then every slot of the arena has been used once."""
GROWTH = 1.02
"""Factor by which the peak must grow to be reported again."""
OWN_BEYOND_TORCH = 2 << 30
"""Bytes on a GPU that this process may hold outside torch's allocator: CUDA's context, its
libraries, and NCCL's buffers."""


class MemoryWatch:
    """Reports one rank's peak through the worker's beats."""

    def __init__(self, config: RunConfig, rank: int, device: torch.device) -> None:
        self._config, self._rank = config, rank
        self._meter = MemoryMeter(device)
        self._num_steps = 0

    def begin(self) -> None:
        """A generation's steps begin: a restore has other peaks."""
        self._meter.restart()
        self._num_steps = 0

    def after_step(self, view: WorkerStatus) -> None:
        """Put the peak into ``view``, if it is new."""
        self._num_steps += 1
        if self._num_steps < FIRST_STEPS:
            return
        peak = self._meter.peak()
        if peak > view.memory_bytes * GROWTH:
            if self._config.model.architecture.own_block is None:
                place = self._config.parallel.grid.coordinates(self._rank)
                shape = memory_shape(self._config, dp_rank=place.dp)
                view.memory_predicted = predict(shape, place.pp).total
            view.memory_bytes = peak


def held_by_others() -> int:
    """Bytes of this process's GPU that other processes hold, if they are many; else 0.

    A process that was killed a moment ago may still hold its memory, so running out then proves
    nothing about the run.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    free, total = torch.cuda.mem_get_info()
    foreign = total - free - torch.cuda.memory_reserved()
    return foreign if foreign > OWN_BEYOND_TORCH else 0


def short_of(rank: int, error: BaseException, others: int) -> str:
    """What a rank reports that ran out of memory while other processes hold ``others`` bytes."""
    return (
        f"rank {rank} ran out of memory while other processes hold {size(others)} of its GPU: "
        f"{_said(error)} (nvidia-smi lists them: end what does not belong to the run)"
    )


def too_small(config: RunConfig, rank: int, error: BaseException) -> MemoryTooSmallError:
    """The end of a run that needs more memory than there is, with what would help most."""
    said = _said(error)
    what = f"rank {rank} ran out of memory"
    if config.model.architecture.own_block is not None:
        return MemoryTooSmallError(f"{what}: {said}", remedy="use a smaller micro-batch")
    try:
        place = config.parallel.grid.coordinates(rank)
        shape = memory_shape(config, dp_rank=place.dp)
        memory = predict(shape, place.pp)
        savings = [f"{one.change} (saves {size(one.nbytes)})" for one in advise(shape)]
    except ConfigError:  # a type that was never resolved: the failure itself must be reported
        return MemoryTooSmallError(f"{what}: {said}", remedy="use a smaller micro-batch")
    return MemoryTooSmallError(
        f"{what}; predicted are {size(memory.total)}: {describe(memory)}; {said}",
        remedy=f"the worst rank would need less with {', or '.join(savings)}"
        if savings
        else "use a smaller model or more memory",
    )


def _said(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class MemoryMeter:
    """Bytes that a rank uses, counted from the construction on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart()
        self._base = self._gpu_now() if device.type == "cuda" else _fields()["RssAnon"]

    def restart(self) -> None:
        """Forget earlier peaks, such as that of a restore."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        return_free_memory()
        with contextlib.suppress(OSError):  # a container may forbid it; then the peak is of all
            _CLEAR.write_text(_RESET_PEAK)

    def peak(self) -> int:
        """The most so far, in bytes; after some steps, when all shared memory has been touched."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device)) - self._base
        now = _fields()
        most = now["VmHWM"] - now["RssFile"] - now["RssShmem"]
        return max(0, max(most, now["RssAnon"]) - self._base)

    def _gpu_now(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))


def _fields() -> dict[str, int]:
    """The memory fields of this process, in bytes."""
    wanted = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
    found = dict.fromkeys(wanted, 0)
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) << 10
    return found
