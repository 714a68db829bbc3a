"""Resolves at launch on which device, and in which type, all ranks compute.

Torch is used only if there are GPUs, in a separate process: the console never imports it.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headway.common.errors import InputError
from headway.common.node.compiler import INSTALL_COMPILER, lack_for_compiling
from headway.trainer.config import RunConfig

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU flags of x86 and Arm; without them torch's bf16 is slower than fp32
(measured: 2 and 42 GFLOP/s)."""
COUNT_LIMIT_S = 60.0


def resolve_auto(
    config: RunConfig,
    *,
    ranks: int,
    gpus: int | None = None,
    cpuinfo: str | None = None,
    find_lack: Callable[[bool], str] | None = None,
) -> tuple[RunConfig, str]:
    """Resolve ``auto`` and the paths of the configuration's folders.

    Returns the resolved configuration, and a line that reports the choice.

    Args:
        ranks: number of the run's ranks on one machine. gpus: number of GPUs that torch sees;
            counted if not given. cpuinfo: flags of the processor; this machine's if not given.
        find_lack: says what a compiler lacks where the ranks run, on GPUs or not, as
            ``lack_for_compiling``, which looks at this machine if not given.

    Raises:
        InputError: ``train.device = "gpu"`` and there are fewer GPUs than ranks, or
            ``train.compile`` without a compiler.
    """
    train, said = config.train, []
    if gpus is None:
        gpus = 0 if train.device == "cpu" else usable_gpus()
    if train.device == "gpu" and gpus < ranks:
        raise InputError(
            f"train.device='gpu': torch sees too few here (GPUs: {gpus}, ranks: {ranks})",
            remedy="set train.device=cpu, or parallel.tp, pp and dp to fewer ranks",
        )
    if train.device == "auto":
        device, why = machine_device(ranks, gpus)
        train = dataclasses.replace(train, device=device)
        said.append(f"device auto: {device} ({why})")
    if train.dtype == "auto":
        dtype, why = machine_dtype(cpuinfo, has_gpu=train.device == "gpu")
        train = dataclasses.replace(train, dtype=dtype)
        said.append(f"dtype auto: {dtype} ({why})")
    if train.compile:
        on_gpu = train.device == "gpu"
        lack = find_lack(on_gpu) if find_lack else lack_for_compiling(on_gpu=on_gpu)
        if train.compile is True and lack:
            raise InputError(f"train.compile=true, but {lack}", remedy=INSTALL_COMPILER)
        if train.compile == "auto":
            train = dataclasses.replace(train, compile=on_gpu and not lack)
            if on_gpu:
                said.append(f"compile auto: {'no, ' + lack if lack else 'yes'}")
    if train.init_from:
        train = dataclasses.replace(train, init_from=str(Path(train.init_from).resolve()))
    data = dataclasses.replace(config.data, path=str(Path(config.data.path).resolve()))
    if data.tokenizer:
        data = dataclasses.replace(data, tokenizer=str(Path(data.tokenizer).resolve()))
    line = ", ".join(said) or f"device {train.device}, dtype {train.dtype}"
    return dataclasses.replace(config, train=train, data=data), line


def machine_device(ranks: int, gpus: int) -> tuple[Literal["gpu", "cpu"], str]:
    """The device that ``auto`` means, and why: NCCL does not allow two ranks on one GPU.

    >>> machine_device(4, 1)
    ('cpu', 'GPUs: 1, ranks: 4')
    """
    if gpus == 0:
        return "cpu", "no GPU"
    return "gpu" if gpus >= ranks else "cpu", f"GPUs: {gpus}, ranks: {ranks}"


def machine_dtype(
    cpuinfo: str | None = None, *, has_gpu: bool
) -> tuple[Literal["bf16", "fp32"], str]:
    """The compute type that ``auto`` means here, and why.

    >>> machine_dtype("flags : fpu avx2", has_gpu=False)
    ('fp32', 'this CPU has no bf16 units')
    """
    if has_gpu:
        return "bf16", "GPUs have bf16 units"
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    flags = {
        word
        for line in text.splitlines()
        if line.startswith(("flags", "Features"))
        for word in line.split()
    }
    if flags.intersection(BF16_UNITS):
        return "bf16", "this CPU has bf16 units"
    return "fp32", "this CPU has no bf16 units"


def usable_gpus() -> int:
    """GPUs that torch can use in this environment; 0 also if torch was built without CUDA."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 0
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=COUNT_LIMIT_S
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return 0
