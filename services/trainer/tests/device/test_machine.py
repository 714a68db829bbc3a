"""What a launch settles for all ranks: the device and the type, by what the machine has."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.config import from_dict
from headway.common.errors import InputError
from headway.common.node.compiler import lack_for_compiling
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig, TrainConfig
from headway.trainer.device import machine
from headway.trainer.device.machine import machine_dtype, resolve_auto, usable_gpus
from headway.trainer.errors import RefusedError
from headway.trainer.session.session import Session


def config(device: str = "auto", dtype: str = "auto") -> RunConfig:
    return dataclasses.replace(RunConfig(), train=TrainConfig(device=device, dtype=dtype))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "device", "dtype", "line"),
    [
        (
            0,
            "cpu",
            "fp32",
            "device auto: cpu (no GPU), dtype auto: fp32 (this CPU has no bf16 units)",
        ),
        (
            1,
            "cpu",
            "fp32",
            "device auto: cpu (GPUs: 1, ranks: 4), dtype auto: fp32 (this CPU has no bf16 units)",
        ),
        (
            4,
            "gpu",
            "bf16",
            (
                "device auto: gpu (GPUs: 4, ranks: 4), dtype auto: bf16 (GPUs have bf16 units), "
                "compile auto: yes"
            ),
        ),
    ],
)
def test_auto_gives_each_rank_a_gpu_or_all_the_processor(
    gpus: int, device: str, dtype: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "BF16_UNITS", ())
    monkeypatch.setattr(machine, "lack_for_compiling", lambda **_: "")
    found, said = resolve_auto(config(), ranks=4, gpus=gpus)
    assert (found.train.device, found.train.dtype, said) == (device, dtype, line)
    assert Path(found.data.path).is_absolute() and found.train.compile is (device == "gpu")
    assert resolve_auto(found, ranks=4, gpus=gpus)[1] == f"device {device}, dtype {dtype}", (
        "once settled it stays"
    )


def test_a_gpu_that_was_asked_for_and_is_not_there_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"GPUs: 1, ranks: 2.*set train\.device=cpu"):
        resolve_auto(config(device="gpu"), ranks=2, gpus=1)
    assert resolve_auto(config(device="cpu", dtype="fp64"), ranks=2)[0].train.device == "cpu"


def test_what_a_compiler_needs_is_looked_for_before_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    on_gpu, said = resolve_auto(config(device="gpu"), ranks=1, gpus=1)
    assert on_gpu.train.compile is False and "no, a C compiler (gcc or clang) is missing" in said
    on_cpu, said = resolve_auto(config(device="cpu"), ranks=1)
    assert on_cpu.train.compile is False and "compile" not in said
    asked = dataclasses.replace(config(device="cpu").train, compile=True)
    with pytest.raises(InputError, match=r"the C\+\+ compiler g\+\+ is missing.*apt install g\+\+"):
        resolve_auto(dataclasses.replace(config(), train=asked), ranks=1)
    (tmp_path / "gcc").touch(0o755)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert lack_for_compiling(on_gpu=True) == f"{tmp_path}/Python.h is missing"
    (tmp_path / "Python.h").touch()
    assert lack_for_compiling(on_gpu=True) == ""


def test_ranks_are_not_judged_by_a_machine_that_carries_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    asked: list[bool] = []

    def nothing(on_gpu: bool) -> str:
        asked.append(on_gpu)
        return ""

    found, said = resolve_auto(config(device="gpu"), ranks=1, gpus=1, find_lack=nothing)
    assert found.train.compile is True and "compile auto: yes" in said and asked == [True]
    lacks = "a C compiler (gcc or clang) is missing on b"
    found, said = resolve_auto(config("gpu"), ranks=1, gpus=1, find_lack=lambda _: lacks)
    assert found.train.compile is False and f"compile auto: no, {lacks}" in said


def test_a_worker_refuses_to_compile_on_a_machine_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = small_run("fp32", world_size=1)
    settings["train"]["compile"] = True
    run = from_dict(RunConfig, settings)
    monkeypatch.setenv("CXX", "absent-compiler")
    session = Session(run, 0, data_factory=synthetic(run, 0))
    session.join(Groups.alone(1))
    with pytest.raises(RefusedError, match=r"on \S+ the C\+\+ compiler absent-compiler is missing"):
        session.load("init")
    session.leave()
    session.close()


def test_bf16_is_chosen_where_the_processor_has_units_for_it() -> None:
    assert machine_dtype("flags : fpu avx512_bf16", has_gpu=False)[0] == "bf16"
    assert machine_dtype("Features : fp asimd bf16", has_gpu=False)[0] == "bf16"
    assert machine_dtype("flags : fpu avx2\nmodel name : bf16", has_gpu=False)[0] == "fp32"


def test_gpus_are_those_that_torch_can_use() -> None:
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    assert usable_gpus() == int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
