"""What the agent reads of a real GPU, and the checks of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from headway.common.polling import wait_until
from headway.health.checks.base import CheckSettings
from headway.health.runner import run_check
from headway.health.sources.gpu_probe import GpuProbe
from headway.health.sources.nvml import LIBRARY, Reading

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
ILLEGAL_READ = """
import cupy, numpy
kernel = cupy.RawKernel('extern "C" __global__ void stray(unsigned long long at, int* out)'
                        '{ *out = *(volatile int*)at; }', 'stray')
out = cupy.zeros(1, dtype=cupy.int32)
kernel((1,), (1,), (numpy.uint64(0x7000_0000_0000), out))
cupy.cuda.runtime.deviceSynchronize()
"""


@pytest.fixture
def probe() -> Iterator[GpuProbe]:
    made = GpuProbe(LIBRARY, 20.0)
    yield made
    made.close()


def smi(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_reading_agrees_with_nvidia_smi(probe: GpuProbe) -> None:
    reading = probe.read()
    assert reading.error == "" and all(gpu.error == "" for gpu in reading.gpus)
    assert [gpu.uuid for gpu in reading.gpus] == smi("uuid")
    assert [gpu.pci for gpu in reading.gpus] == [pci.lower() for pci in smi("pci.bus_id")]
    assert [gpu.name for gpu in reading.gpus] == smi("name")
    assert {reading.driver} == set(smi("driver_version"))
    for gpu, heat, watts, width in zip(
        reading.gpus,
        smi("temperature.gpu"),
        smi("power.draw"),
        smi("pcie.link.width.current"),
        strict=True,
    ):
        assert abs(gpu.values["temperature"] - int(heat)) <= 15
        assert abs(gpu.values["power_mw"] / 1000 - float(watts)) <= 200
        assert gpu.values["pcie_width"] == int(width)
        assert gpu.values.get("recovery", 0) == 0
        assert not gpu.is_lost


def test_a_program_that_reads_wild_memory_leaves_an_xid_of_its_gpu(probe: GpuProbe) -> None:
    seen: list[Reading] = [probe.read()]  # registers for the events
    ended = subprocess.run(
        [sys.executable, "-c", ILLEGAL_READ], capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0 and "illegal" in ended.stderr.lower(), ended.stderr[-2000:]

    def has_xid() -> bool:
        seen.append(probe.read())
        return bool(seen[-1].xids)

    assert wait_until(has_xid, 10.0, every_s=0.2)
    found = seen[-1]
    assert {pci for pci, _ in found.xids} <= {gpu.pci for gpu in found.gpus}
    assert {number for _, number in found.xids} <= {13, 31, 43}, "the program's own faults"


@pytest.mark.parametrize("name", ["gpu_memory", "gemm", "copy"])
def test_a_healthy_gpu_passes_the_check(name: str) -> None:
    result = run_check(name, CheckSettings(), 100.0)
    assert result.ok, result.message
    assert any(word.lower().startswith(("gpu", "host to gpu")) for word in result.values), result
