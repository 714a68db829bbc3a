"""Links watched every 10 ms: full, congested, paused or free, and only after a slow step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from headway.common.wire.messages.health import Finding, WorkerSignals
from headway.health.rule_files import shipped
from headway.health.sources import slow_steps
from headway.health.sources.burst import Link, burst, judge, links
from headway.health.sources.gpu_burst import GpuBursts
from headway.health.sources.gpu_probe import GpuProbe
from headway.health.sources.slow_steps import MIN_STEPS, PAUSE_S, SlowStepSource, is_slow

PORT = "class/infiniband/mlx5_0/ports/1"
NAMES = ("sent", "received", "waits", "notified")
RATE = 50e9


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for name, text in {
        f"{PORT}/rate": "400 Gb/sec (4X NDR)",
        f"{PORT}/counters/port_xmit_data": "1000",
        f"{PORT}/counters/port_rcv_data": "1000",
        f"{PORT}/counters/port_xmit_wait": "7",
        f"{PORT}/hw_counters/rp_cnp_handled": "3",
        "class/net/eth0/device/vendor": "0x15b3",
        "class/net/eth0/speed": "100000",
        "class/net/eth0/statistics/tx_bytes": "5",
        "class/net/eth0/statistics/rx_bytes": "5",
        "class/net/veth1/speed": "10000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@contextmanager
def growing(path: Path, a_second: float) -> Iterator[None]:
    """A counter that grows all the time, as those of a driver do."""
    ended, first, began_s = threading.Event(), int(path.read_text()), time.monotonic()

    def run() -> None:
        while not ended.wait(0.001):
            value = first + int(a_second * (time.monotonic() - began_s))
            fresh = path.with_suffix(".new")
            fresh.write_text(str(value))
            fresh.rename(path)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def verdict(rows: dict[str, list[int]]) -> str:
    """Of a link whose counters grow by these in intervals of 10 ms."""
    length = max(map(len, rows.values()))
    values = np.array([[0, *np.cumsum(rows.get(name, [0] * length))] for name in NAMES], float).T
    link = Link("l", RATE, 1, Path(), Path())
    return judge(link, 0.01 * np.arange(length + 1), values).verdict


def test_a_link_is_full_congested_paused_or_free() -> None:
    most = int(RATE / 100)
    assert verdict({"sent": [most] * 10}) == "full"
    assert verdict({"received": [most] * 6 + [0] * 4}) == "full"
    assert verdict({"sent": [most] * 4 + [0] * 6}) == "free", "in bursts"
    assert verdict({"sent": [most // 2] * 10, "notified": [0] * 9 + [100]}) == "congested"
    assert verdict({"sent": [most // 2] * 10, "notified": [0] * 9 + [3]}) == "free", "a few"
    assert verdict({"sent": [most // 3] * 10, "waits": [9] * 2 + [0] * 8}) == "paused"
    assert verdict({"sent": [most // 3] * 20, "waits": [9] + [0] * 19}) == "free"
    assert verdict({"sent": [0] * 10}) == "free"


def test_real_counters_are_read_every_few_milliseconds(sysfs: Path) -> None:
    assert [link.name for link in links(sysfs)] == ["mlx5_0/1", "eth0"], "veth1 is no device"
    words = RATE / 4
    with growing(sysfs / PORT / "counters/port_xmit_data", words):
        port, interface = burst(sysfs, 0.6)
    assert (port.verdict, interface.verdict) == ("full", "free")
    assert port.num_intervals > 5
    assert port.mean_sent == pytest.approx(RATE, rel=0.3) and port.mean_received == 0


def test_a_counter_that_was_not_read_once_does_not_grow_by_all_of_it() -> None:
    counts = np.array([[9e9, 9e9, 9e9, 50_000.0]] * 6)
    counts[2] = np.nan
    found = judge(Link("l", RATE, 1, Path(), Path()), 0.01 * np.arange(6), counts)
    assert (found.verdict, found.peak_sent, found.num_notified) == ("free", 0.0, 0)


def test_a_link_that_vanishes_or_cannot_be_read_is_free(sysfs: Path) -> None:
    (sysfs / PORT / "counters/port_xmit_data").write_text("not a number")
    (sysfs / "class/net/eth0/speed").write_text("-1")
    assert {link.verdict for link in burst(sysfs, 0.1)} == {"free"}
    assert burst(sysfs / "nothing", 0.1) == []


# ---- GPUs ---------------------------------------------------------------------------------------
PCI = "0000:3b:00.0"
GPU = "0 00000000:3B:00.0 0 0 5 16 0 4"
OTHER = "1 00000000:5E:00.0 0 0 0 16 0 4"
PCIE_MB, NVLINK_MB = 63_008, 478_116
"""What 16 lanes of generation 5 and 18 links of 26,562 MB/s carry in a second."""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a library whose GPUs are what the lines say; see ``nvml_fake.c``."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for a fake NVML")
    made = tmp_path / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_fake.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))

    def show(*lines: str) -> str:
        (tmp_path / "gpus").write_text("\n".join(lines) + "\n")
        return str(made)

    return show


def watched(library: str, seconds: float = 0.4, deadline_s: float = 60.0) -> GpuBursts:
    with closing(GpuProbe(library, deadline_s)) as probe:
        links, gpus = probe.burst(seconds, lambda: ["links"])
        assert links == ["links"], "whatever becomes of the GPUs"
        return gpus


@pytest.mark.parametrize(
    ("pcie", "nvlink", "replays", "verdicts"),
    [
        (0.95 * PCIE_MB, 0.1 * NVLINK_MB, 0, ["full", "free"]),
        (0.1 * PCIE_MB, 0.95 * NVLINK_MB, 0, ["free", "full"]),
        (0.1 * PCIE_MB, 0.1 * NVLINK_MB, 500, ["paused", "paused"]),
        (0.1 * PCIE_MB, 0.1 * NVLINK_MB, 0, ["free", "free"]),
        (0.1 * PCIE_MB, 0, 0, ["free"]),
    ],
)
def test_the_links_of_a_gpu_are_full_paused_or_free(
    nvml: Callable[..., str], pcie: float, nvlink: float, replays: int, verdicts: list[str]
) -> None:
    found = watched(nvml(GPU, f"burst 0 {pcie} {nvlink} {replays} 1980 0"))
    assert [link.name for link in found.links] == [f"{PCI} pcie", f"{PCI} nvlink"][: len(verdicts)]
    assert [link.verdict for link in found.links] == verdicts
    assert found.links[0].mean_sent == pytest.approx(pcie * 1e6, rel=0.2), "its 32 bits wrap"
    assert found.links[0].num_intervals > 3


def test_what_a_gpu_did_is_its_power_clock_use_and_what_slowed_it(
    nvml: Callable[..., str],
) -> None:
    found = watched(nvml(GPU, OTHER, "burst 0 1 0 0 1200 72", "burst 1 1 0 0 1980 0"))
    first, second = found.gpus
    assert (first.pci, first.mean_w, first.least_mhz, first.busy) == (PCI, 412.0, 1200, 0.9)
    assert first.slowed == {"hardware slowdown": 1.0, "temperature": 1.0}
    assert (second.index, second.slowed, second.most_mhz) == (1, {}, 1980)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ((GPU, "stall"), "did not answer"),
        (("hang",), "did not answer"),
        (("count 99",), "99 GPUs"),
        ((GPU.replace(" 0 0 5", " 15 0 5"),), ""),
    ],
    ids=["stalls", "hangs", "lies", "lost"],
)
def test_a_driver_that_does_not_answer_costs_its_deadline_and_no_link(
    nvml: Callable[..., str], lines: tuple[str, ...], error: str
) -> None:
    found = watched(nvml(*lines), seconds=0.1, deadline_s=5.0)
    assert error in found.error and bool(found.error) == bool(error)
    assert found.links == found.gpus == ()


def test_a_slow_step_finds_a_full_link_of_a_gpu_and_one_that_is_hot(
    sysfs: Path, nvml: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_steps, "GPU_DEADLINE_S", 60.0)
    library = nvml(GPU, OTHER, f"burst 0 {0.95 * PCIE_MB} 0 0 1980 4", "burst 1 1 0 0 900 64")
    with closing(SlowStepSource(sysfs, library)) as source:
        source.look([steps(10, 2.5)])
        found = source.read()
    assert [(one.rule, one.name, one.detail) for one in found] == [
        ("gpu_link_full", PCI, "pcie"), ("gpu_throttled", "0000:5e:00.0", "")
    ]  # fmt: skip
    assert all(one.subject == "gpu" and one.rule in shipped().by_name for one in found)


def test_the_command_shows_gpus_too(sysfs: Path, nvml: Callable[..., str]) -> None:
    library = nvml(GPU, "burst 0 100 0 0 1980 0")
    command = [sys.executable, "-m", "headway.health", "burst", "--seconds", "0.2"]
    words = ["--sysfs-root", str(sysfs), "--nvml", library]
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert [one["name"] for one in report["links"]] == ["mlx5_0/1", "eth0", f"{PCI} pcie"]
    assert [one["pci"] for one in report["gpus"]] == [PCI] and report["gpu_error"] == ""
    words[-1] = str(sysfs / "no-library")
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    assert "GPUs not read: " in done.stdout and "mlx5_0/1" in done.stdout


def steps(step: int, step_s: float, num: int = MIN_STEPS) -> WorkerSignals:
    return WorkerSignals(
        rank=0, pid=1, start_ticks=1, state="S", generation=0, head=1, step=step, step_s=step_s,
        num_steps=num, median_step_s=1.0, age_s=0.0,
    )  # fmt: skip


def test_only_a_slow_step_has_the_links_watched_and_once_a_minute(sysfs: Path) -> None:
    now_s = [1000.0]
    source = SlowStepSource(sysfs, clock_s=lambda: now_s[0])
    source.look([steps(9, 1.5)])
    assert source.read() == []
    assert not is_slow(steps(9, 5.0, MIN_STEPS - 1)), "there is no usual time yet"
    found: list[Finding] = []
    with growing(sysfs / PORT / "hw_counters/rp_cnp_handled", 1000.0):
        source.look([steps(10, 2.5)])
        found += source.read()
        source.look([steps(11, 2.5)])
        found += source.read()
        assert [(one.rule, one.name) for one in found] == [("link_congested", "mlx5_0/1")]
        now_s[0] += PAUSE_S
        source.look([steps(11, 2.5)])
        assert source.read() == [], "the same step"
        source.look([steps(12, 2.5)])
        assert [one.rule for one in source.read()] == ["link_congested"]


def test_the_command_prints_each_link(sysfs: Path) -> None:
    command = [sys.executable, "-m", "headway.health", "burst", "--seconds", "0.2", "--json"]
    done = subprocess.run(
        [*command, "--sysfs-root", str(sysfs)], capture_output=True, text=True, check=True
    )
    assert [one["name"] for one in json.loads(done.stdout)["links"]] == ["mlx5_0/1", "eth0"]
