"""A rank finds the CPUs next to its GPU in the kernel's own tree."""

from __future__ import annotations

import os

import pytest
import torch
from headway.trainer.device.choose import take_device
from headway.trainer.device.locality import SYSFS, bind_near, locality_of, pci_address, unbind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_a_rank_is_bound_to_cpus_next_to_its_gpu() -> None:
    address = pci_address(take_device(0))
    if not (SYSFS / "bus/pci/devices" / address).exists():
        pytest.skip(f"this container does not show {address} in /sys")
    found = locality_of(address)
    assert found is not None
    before = bind_near(address)
    assert os.sched_getaffinity(0) == found.cpus & before or not found.cpus & before
    unbind(before)
    assert os.sched_getaffinity(0) == before
