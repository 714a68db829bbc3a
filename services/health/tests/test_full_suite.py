"""The checks that only the full suite runs, and mounts: well here, failing where something is."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.health.checks import all_to_all, copy, gpu_memory, mounts, nic_loopback, nic_pairs
from headway.health.checks.base import MIB, CheckSettings
from headway.health.client import run_checks
from headway.health.measure.gpus import Gpus, find_gpus
from headway.health.measure.mesh import cells
from headway.health.measure.streams import Received
from headway.health.runner import SUITES, run_check

FAST, SLOW = Received(100 * MIB, 0.1, 0), Received(100 * MIB, 0.3, 0)


def test_the_full_suite_runs_every_check_and_fails_none_here(tmp_path: Path) -> None:
    settings = CheckSettings(min_shm_free_bytes=1, min_disk_free_bytes=1, mounts=(tmp_path,))
    results = run_checks("full", settings, deadline_s=60)
    assert tuple(result.name for result in results) == SUITES["full"]
    assert set(SUITES["quick"]) < set(SUITES["full"])
    assert [result for result in results if result.failed] == []
    assert all(result.message for result in results if result.ok is None)


def test_mounts_that_are_missing_or_cannot_be_written_to_are_named(tmp_path: Path) -> None:
    finding = mounts.check(CheckSettings(mounts=(tmp_path, tmp_path / "nowhere", Path("/proc"))))
    assert finding.failed
    assert f"{tmp_path / 'nowhere'} is not there" in finding.message
    assert "/proc cannot be written to" in finding.message and f"{tmp_path} " not in finding.message
    assert list(tmp_path.iterdir()) == []


def test_a_mount_that_never_answers_is_named_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a named pipe blocks, like any call into a mount whose server is gone."""
    hung, well = tmp_path / "hung", tmp_path / "well"
    hung.mkdir()
    well.mkdir()
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys\n"
        "if any('hung' in word for word in sys.argv + sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'gate')!r}).open()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = CheckSettings(mounts=(hung, well, tmp_path / "nowhere"), mount_answer_s=3.0)
    finding = mounts.check(settings)
    assert f"{hung} does not answer within 3 s" in finding.message
    assert "nowhere is not there" in finding.message and str(well) not in finding.message


def test_without_a_folder_the_mounts_are_not_run() -> None:
    assert mounts.check(CheckSettings()).ok is None


def test_the_nics_part_that_is_slow_is_in_the_finding() -> None:
    mesh = {nic: dict.fromkeys(("memory0", "memory1"), FAST) for nic in ("a", "b", "c")}
    assert nic_loopback.judge([mesh], CheckSettings()).ok
    slow = mesh | {"b": dict.fromkeys(mesh["b"], SLOW)}
    finding = nic_loopback.judge([slow], CheckSettings())
    assert finding.failed and finding.message == "b is slow with every other"
    assert finding.values["a memory0 MiB/s"] == 1000.0


def test_a_way_that_is_slow_once_passes_and_one_that_is_slow_twice_fails() -> None:
    names = ("a", "b", "c")
    asked: list[tuple[str, str]] = []

    def again(nic: str, memory: str) -> Received:
        asked.append((nic, memory))
        return SLOW if nic == "b" else FAST

    def mesh() -> nic_loopback.Mesh:
        made = {nic: dict.fromkeys(("memory0", "memory1", "memory2"), FAST) for nic in names}
        made["a"]["memory1"] = made["b"]["memory0"] = SLOW
        return made

    settings = CheckSettings()
    seen = nic_loopback.confirmed(mesh(), again, settings.mesh)
    assert asked == [("a", "memory1"), ("b", "memory0")], "only what is slow"
    assert nic_loopback.judge([seen], settings).message == "the link b -> memory0 is slow"
    damaged = mesh()
    damaged["a"]["memory1"] = Received(100 * MIB, 0.3, 3)
    seen = nic_loopback.confirmed(damaged, again, settings.mesh)
    assert "a memory1" in nic_loopback.judge([seen], settings).message, "it was damaged once"


def test_bytes_that_change_on_the_way_outweigh_any_rate() -> None:
    mesh = {"a": {"memory0": Received(100 * MIB, 0.1, 3)}}
    finding = nic_loopback.judge([mesh], CheckSettings())
    assert finding.failed and "a memory0" in finding.message


def test_one_nic_has_no_pairs_and_two_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_pairs, "nics", lambda: {"eth0": "127.0.0.1"})
    assert nic_pairs.check(CheckSettings()).ok is None
    monkeypatch.setattr(nic_pairs, "nics", lambda: {"eth0": "127.0.0.1", "eth1": "127.0.0.2"})
    finding = nic_pairs.check(CheckSettings())
    assert finding.ok and set(finding.values) == {"eth0 eth1 MiB/s", "eth1 eth0 MiB/s"}


def test_processes_exchange_whole_bytes_with_each_other() -> None:
    received = all_to_all.exchange(3, 1 << 20)
    assert [one.num_damaged for one in received] == [0, 0, 0]
    assert all(one.num_bytes >= 2 << 20 for one in received)


def test_a_process_that_fails_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_to_all, "TOKEN_BYTES", 1)
    monkeypatch.setattr(all_to_all.secrets, "token_hex", lambda _: "no token")
    finding = all_to_all.check(CheckSettings())
    assert finding.failed and "a process failed" in finding.message


def test_without_a_gpu_the_gpu_checks_are_not_run_and_say_why() -> None:
    if find_gpus().count:
        pytest.skip("this machine has a GPU")
    for name in ("gpu_memory",):
        result = run_check(name, CheckSettings(), 60)
        assert result.ok is None and not result.failed and result.message
    assert "GPUs not run" in copy.check(CheckSettings()).message


# ---- GPUs that are numpy ------------------------------------------------------------------------
class _Gpu:
    """The part of a cupy device that checks use."""

    def __enter__(self) -> _Gpu:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...


class _OnGpu(np.ndarray):
    """An array of cupy, in host memory; one bit of its word 5 may be stuck."""

    is_broken = False

    def set(self, host: np.ndarray) -> None:
        self[:] = host

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            return np.array(self)
        out[:] = self
        return out

    def fill(self, value: Any) -> None:
        super().fill(value)
        if self.is_broken and self.dtype == np.uint64:
            super().__setitem__(5, np.uint64(int(self[5]) | 1))


def fake_cupy() -> types.SimpleNamespace:
    runtime = types.SimpleNamespace(memGetInfo=lambda: (1 << 20, 1 << 21))
    cuda = types.SimpleNamespace(
        Device=lambda _: _Gpu(), runtime=runtime, alloc_pinned_memory=bytearray
    )
    return types.SimpleNamespace(
        cuda=cuda, uint8=np.uint8, uint64=np.uint64, arange=np.arange, zeros_like=np.zeros_like,
        empty=lambda *a, **k: np.empty(*a, **k).view(_OnGpu),
        zeros=lambda *a, **k: np.zeros(*a, **k).view(_OnGpu),
        asarray=lambda block: np.array(block).view(_OnGpu),
    )  # fmt: skip


def test_a_stuck_bit_of_a_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "find_gpus", lambda: Gpus(fake_cupy(), 2, ""))
    finding = gpu_memory.check(CheckSettings())
    assert finding.ok and set(finding.values) == {"gpu0 MiB/s", "gpu1 MiB/s"}
    monkeypatch.setattr(_OnGpu, "is_broken", True)
    finding = gpu_memory.check(CheckSettings())
    assert finding.failed and "gpu0 lost 2 words" in finding.message


def test_every_copy_of_two_gpus_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "GPU_BYTES", 1 << 16)
    meshes = copy.gpu_copies(Gpus(fake_cupy(), 2, ""))
    assert [sorted(cells(mesh)) for mesh in meshes] == [
        [("host", "gpu0"), ("host", "gpu1")], [("gpu0", "host"), ("gpu1", "host")],
        [("gpu0", "gpu0"), ("gpu1", "gpu1")], [("gpu0", "gpu1"), ("gpu1", "gpu0")],
    ]  # fmt: skip


def test_a_slow_link_of_a_gpu_fails_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    to_gpu = {f"gpu{n}": 50e9 for n in range(8)} | {"gpu3": 12e9}
    monkeypatch.setattr(copy, "gpu_copies", lambda _: [{"host": to_gpu}])
    finding = copy.check(CheckSettings())
    assert finding.failed and finding.message == "the link host -> gpu3 is slow"


def test_blocks_that_pass_through_a_gpu_come_back_whole() -> None:
    (memory,) = nic_loopback.gpu_memories(Gpus(fake_cupy(), 1, ""))
    assert memory.via(b"\1\2\3") == b"\1\2\3"
