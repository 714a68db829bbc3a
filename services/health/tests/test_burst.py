"""Links watched every 10 ms: full, congested, paused or free, and only after a slow step."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from headway.common.wire.messages.health import Finding, WorkerSignals
from headway.health.sources.burst import Link, burst, judge, links
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


def steps(step: int, step_s: float, num: int = MIN_STEPS) -> WorkerSignals:
    return WorkerSignals(
        rank=0, pid=1, start_ticks=1, state="S", generation=0, head=1, step=step, step_s=step_s,
        num_steps=num, median_step_s=1.0, age_s=0.0,
    )  # fmt: skip


def test_only_a_slow_step_has_the_links_watched_and_once_a_minute(sysfs: Path) -> None:
    now_s = [1000.0]
    source = SlowStepSource(sysfs, lambda: now_s[0])
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
