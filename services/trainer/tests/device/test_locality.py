"""A rank runs on the CPUs next to its GPU, as a made-up tree of sysfs places them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.trainer.device import locality
from headway.trainer.device.locality import Locality, bind_near, locality_of, unbind

GPU, OTHER = "0000:1b:00.0", "0000:9a:00.0"


@pytest.fixture(autouse=True)
def _same_cpus_afterwards() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets with a GPU and adapters each; the first has one CPU that this process may use."""
    mine = min(os.sched_getaffinity(0))
    add(tmp_path, GPU, 0, f"{mine},4000-4010")
    add(tmp_path, OTHER, 1, "4011-4095")
    for name, address in (("mlx5_0", GPU), ("mlx5_1", OTHER), ("mlx5_2", GPU)):
        (tmp_path / "class/infiniband" / name).mkdir(parents=True)
        device = tmp_path / "class/infiniband" / name / "device"
        device.symlink_to(tmp_path / "bus/pci/devices" / address)
    return tmp_path


def add(sysfs: Path, address: str, node: int, cpus: str) -> None:
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    (folder / "local_cpulist").write_text(f"{cpus}\n")


def test_the_place_of_a_gpu_has_its_memory_node_cpus_and_adapters(sysfs: Path) -> None:
    mine = min(os.sched_getaffinity(0))
    nics = ("mlx5_0", "mlx5_2")
    assert locality_of(GPU, sysfs) == Locality(0, frozenset({mine, *range(4000, 4011)}), nics)
    found = locality_of(OTHER, sysfs)
    assert found is not None and (found.memory_node, found.nics) == (1, ("mlx5_1",))


def test_a_rank_and_its_threads_run_next_to_the_gpu_until_it_is_released(sysfs: Path) -> None:
    allowed, seen = os.sched_getaffinity(0), []
    before = bind_near(GPU, sysfs)
    thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    assert before == allowed and seen == [{min(allowed)}]
    unbind(before)
    assert os.sched_getaffinity(0) == allowed


def test_nothing_changes_where_no_cpu_next_to_the_gpu_is_allowed(sysfs: Path) -> None:
    allowed = os.sched_getaffinity(0)
    assert bind_near(OTHER, sysfs) == allowed == os.sched_getaffinity(0)


@pytest.mark.parametrize("broken", ["absent", "numa_node", "local_cpulist"])
def test_nothing_changes_where_the_place_of_the_gpu_is_not_known(sysfs: Path, broken: str) -> None:
    allowed = os.sched_getaffinity(0)
    if broken != "absent":
        (sysfs / "bus/pci/devices" / GPU / broken).write_text("?")
    address = "0000:ff:00.0" if broken == "absent" else GPU
    assert locality_of(address, sysfs) is None
    assert bind_near(address, sysfs) == allowed == os.sched_getaffinity(0)


def test_the_address_of_a_gpu_is_written_as_the_kernel_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x1B, 0

    monkeypatch.setattr(locality.torch.cuda, "get_device_properties", lambda _: Properties())
    assert locality.pci_address(locality.torch.device("cuda", 0)) == GPU
