"""What a standby prepares while it waits, with a stand-in for CUDA's driver."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.testkit.trainer.layouts import small_run
from headway.trainer.config import RunConfig
from headway.trainer.device import choose
from headway.trainer.device.contexts import Contexts
from headway.trainer.worker import warm
from headway.trainer.worker.memory import OWN_BEYOND_TORCH
from headway.trainer.worker.warm import WarmUp, small_work

LIMIT_S = 30.0


class Driver:
    """CUDA's driver as ``Contexts`` calls it: which devices have a context, and in which mode."""

    def __init__(self, modes: dict[int, int] | None = None, broken: int = -1) -> None:
        self.modes, self.broken = modes or {}, broken
        self.active: set[int] = set()
        self.created: list[int] = []
        self.reached = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waits_at = -1

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetAttribute(self, value: Any, what: int, device: Any) -> int:
        assert what == 20
        value._obj.value = self.modes.get(device.value, 0)
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        del context
        if device.value == self.waits_at:
            self.reached.set()
            self.goes_on.wait(LIMIT_S)
        if device.value == self.broken:
            return 2
        self.active.add(device.value)
        self.created.append(device.value)
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        self.active.remove(device.value)
        return 0


def _config(world: int, device: str = "gpu") -> RunConfig:
    run = from_dict(RunConfig, small_run("fp32", world_size=1))
    parallel = dataclasses.replace(run.parallel, dp=world)
    train = dataclasses.replace(run.train, device=device, global_batch_size=2 * world)  # type: ignore[arg-type]
    launch = dataclasses.replace(run.launch, ranks_per_node=world)
    return dataclasses.replace(run, parallel=parallel, train=train, launch=launch)


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with four GPUs of 80 GiB, as torch shows it."""
    machine = SimpleNamespace(count=4, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: machine)
    for name in choose.ENVIRONMENT:
        monkeypatch.setenv(name, "")  # what the code sets is undone
    return machine


def _started(config: RunConfig, driver: Driver) -> WarmUp:
    found = WarmUp(config, after_s=0.0, open_contexts=lambda: Contexts(driver))
    found.start()
    return found


def _wait_for(driver: Driver, devices: set[int]) -> None:
    pause = threading.Event()
    for _ in range(round(LIMIT_S / 0.01)):
        if driver.active == devices:
            return
        pause.wait(0.01)
    raise AssertionError(f"contexts on {driver.active}, expected {devices}")


def test_a_standby_keeps_only_the_context_of_the_gpu_that_its_rank_gets() -> None:
    """Catches what would fill the GPUs of other ranks, one context more with each recovery."""
    driver = Driver()
    standby = _started(_config(8), driver)
    _wait_for(driver, {0, 1, 2, 3})
    standby.assigned(6)
    assert standby.join(LIMIT_S) and driver.active == {2}


def test_nothing_more_begins_once_a_rank_is_assigned() -> None:
    driver = Driver()
    driver.waits_at = 1
    driver.goes_on.clear()
    standby = _started(_config(4), driver)
    assert driver.reached.wait(LIMIT_S)
    standby.assigned(3)  # returns although the driver is inside a call
    driver.goes_on.set()
    assert standby.join(LIMIT_S)
    assert driver.created == [0, 1] and driver.active == set()


def test_a_worker_that_gets_a_rank_at_once_prepares_nothing() -> None:
    driver = Driver()
    standby = WarmUp(_config(4), after_s=LIMIT_S, open_contexts=lambda: Contexts(driver))
    standby.start()
    standby.assigned(0)
    assert standby.join(LIMIT_S) and driver.created == []


def test_a_gpu_that_fails_or_admits_one_process_is_left_alone() -> None:
    driver = Driver(modes={1: 3}, broken=2)
    standby = _started(_config(4), driver)
    _wait_for(driver, {0, 3})
    standby.assigned(0)
    assert standby.join(LIMIT_S) and driver.active == {0}


@pytest.mark.parametrize("world", [1, 4])
def test_a_standby_stays_off_gpus_that_ranks_fill(
    world: int, gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[torch.device] = []
    monkeypatch.setattr(WarmUp, "_prepare", lambda _, device: prepared.append(device))
    gpus.total_memory = OWN_BEYOND_TORCH  # and the ranks of the run take some themselves
    driver = Driver()
    standby = _started(_config(world), driver)
    assert standby.join(LIMIT_S) and driver.created == [] and prepared == []
    gpus.total_memory *= 2
    standby = _started(_config(world), driver)
    if world > 1:
        _wait_for(driver, {0, 1, 2, 3})
    standby.assigned(0)
    assert standby.join(LIMIT_S)
    assert prepared == ([torch.device("cuda", 0)] if world == 1 else [])


@pytest.mark.parametrize(("standbys", "world"), [(8, 4), (1, 12)])
def test_all_standbys_and_ranks_of_a_gpu_have_to_fit(
    standbys: int, world: int, gpus: SimpleNamespace
) -> None:
    gpus.total_memory = 3 * OWN_BEYOND_TORCH
    driver = Driver()
    standby = _started(_config(4), driver)
    _wait_for(driver, {0, 1, 2, 3})
    standby.assigned(0)
    assert standby.join(LIMIT_S)
    config, driver = _config(world), Driver()
    launch = dataclasses.replace(config.launch, standbys=standbys)
    standby = _started(dataclasses.replace(config, launch=launch), driver)
    assert standby.join(LIMIT_S) and driver.created == []


def test_the_only_gpu_runs_small_operations_and_keeps_none_of_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def work(device: torch.device, dtype: torch.dtype) -> Any:
        assert device == torch.device("cuda", 0)
        for name in small_work(torch.device("cpu"), dtype):
            done.append(name)
            yield name

    monkeypatch.setattr(warm, "small_work", work)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty cache"))
    clear = lambda: done.append("clear workspaces")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    driver = Driver()
    standby = _started(_config(1), driver)
    assert standby.join(LIMIT_S) and driver.created == []
    operations = ["context", "products", "attention", "loss and norms"]
    assert done == [*operations, "synchronize", "clear workspaces", "empty cache"]


def test_a_standby_without_a_driver_still_waits_for_its_rank() -> None:
    """Its error must not reach the worker, which can serve without."""

    def fail() -> Contexts:
        raise OSError("libcuda.so.1: cannot open shared object file")

    standby = WarmUp(_config(4), after_s=0.0, open_contexts=fail)
    standby.start()
    assert standby.join(LIMIT_S)
    standby.assigned(1)


def test_on_a_processor_nothing_starts() -> None:
    standby = WarmUp(_config(4, device="cpu"), after_s=0.0)
    before = threading.active_count()
    standby.start()
    assert threading.active_count() == before and standby.join(0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_small_operations_run_in_each_type(dtype: torch.dtype) -> None:
    assert len(list(small_work(torch.device("cpu"), dtype))) == 4
