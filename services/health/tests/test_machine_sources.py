"""Counters and states of a machine: what was there at the start is a baseline, changes are news."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Counters, Lasting, Window
from headway.health.sources.clock import ClockSource, is_synchronised
from headway.health.sources.host_limits import HostLimits, group_folders
from headway.health.sources.identity import read_machine
from headway.health.sources.mounts import MountSource
from headway.health.sources.net_devices import NetSource, tcp_segments
from headway.health.sources.nics import NicSource

CONFIG = HealthConfig()
PORT = "class/infiniband/mlx5_3/ports/1"
HEALTHY_PORT = {
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/phys_state": "5: LinkUp",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"{PORT}/link_layer": "InfiniBand",
    f"{PORT}/counters/link_downed": "25",
    f"{PORT}/counters/link_error_recovery": "6",
    f"{PORT}/counters/port_rcv_errors": "1",
    f"{PORT}/counters/port_xmit_wait": "4551386827",
    f"{PORT}/hw_counters/local_ack_timeout_err": "2",
    f"{PORT}/hw_counters/req_cqe_error": "3",
    f"{PORT}/hw_counters/req_cqe_flush_error": "3",
    "class/infiniband/mlx5_3/fw_ver": "28.39.1002",
}
HEALTHY_NET = {
    "class/net/eth0/device/vendor": "0x15b3",
    "class/net/eth0/operstate": "up",
    "class/net/eth0/carrier_changes": "3",
    "class/net/eth0/statistics/rx_packets": "1000",
    "class/net/eth0/statistics/tx_packets": "1000",
    "class/net/eth0/statistics/rx_dropped": "40",
    "class/net/eth0/statistics/rx_errors": "7",
    "class/net/lo/carrier_changes": "0",
}


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def rules(found: list[Finding]) -> list[str]:
    return [one.rule for one in found]


class Clock:
    """Advances by two seconds per call."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 2.0
        return self.now_s


def nics(root: Path) -> NicSource:
    write(root, HEALTHY_PORT)
    source = NicSource(root, CONFIG, Clock())
    assert source.read() == [], "what was counted since boot is no news"
    return source


def test_a_port_that_lost_its_link_is_named_with_both_values(tmp_path: Path) -> None:
    source = nics(tmp_path)
    write(tmp_path, {f"{PORT}/counters/link_downed": "27"})
    (found,) = source.read()
    assert (found.rule, found.name, found.count) == ("nic_flap", "mlx5_3/1", 2)
    assert "from 25 to 27" in found.line
    assert found.file == str(tmp_path / PORT / "counters/link_downed")
    assert source.read() == []
    write(tmp_path, {f"{PORT}/counters/link_downed": "28"})
    (again,) = source.read()
    assert again.offset > found.offset and again.inode == found.inode


def test_a_port_that_goes_down_is_reported_once_each_time(tmp_path: Path) -> None:
    source = nics(tmp_path)
    for _ in range(2):
        write(tmp_path, {f"{PORT}/state": "1: DOWN"})
        assert [rules(source.read()) for _ in range(3)] == [["nic_down"], [], []]
        write(tmp_path, {f"{PORT}/state": "4: ACTIVE"})
        assert source.read() == []
    write(tmp_path, {f"{PORT}/rate": "200 Gb/sec (4X HDR)"})
    assert [rules(source.read()) for _ in range(2)] == [["nic_slow"], []]


def test_a_port_that_stays_down_is_reported_often_enough_to_stay_open(tmp_path: Path) -> None:
    source = nics(tmp_path)
    write(tmp_path, {f"{PORT}/state": "1: DOWN"})
    down_s = [turn * 2.0 for turn in range(60) if source.read()]
    gaps_s = [after - before for before, after in pairwise(down_s)]
    assert down_s[0] == 0 and len(gaps_s) > 5 and max(gaps_s) < CONFIG.log_quiet_s / 3
    write(tmp_path, {f"{PORT}/state": "4: ACTIVE"})
    assert [source.read() for _ in range(60)] == [[]] * 60


def test_an_adapter_that_vanishes_is_down(tmp_path: Path) -> None:
    source = nics(tmp_path)
    (tmp_path / "class/infiniband").rename(tmp_path / "class/gone")
    assert [rules(source.read()) for _ in range(3)] == [["nic_down"], [], []]


def test_errors_are_news_beyond_a_limit_and_congestion_never_is(tmp_path: Path) -> None:
    source = nics(tmp_path)
    write(
        tmp_path,
        {
            f"{PORT}/counters/port_rcv_errors": "40",
            f"{PORT}/counters/port_xmit_wait": "9999999999999",
            f"{PORT}/hw_counters/local_ack_timeout_err": "4000",
            f"{PORT}/hw_counters/req_cqe_error": "90003",
            f"{PORT}/hw_counters/req_cqe_flush_error": "90003",
        },
    )
    assert source.read() == []
    write(tmp_path, {f"{PORT}/counters/port_rcv_errors": "140"})
    (found,) = source.read()
    assert (found.rule, found.count) == ("nic_errors", 139)
    write(tmp_path, {f"{PORT}/hw_counters/req_cqe_error": "90503"})
    assert [(one.rule, one.count) for one in source.read()] == [("nic_errors", 500)]


def test_a_port_that_was_never_up_is_no_news(tmp_path: Path) -> None:
    write(tmp_path, {**HEALTHY_PORT, f"{PORT}/state": "1: DOWN"})
    source = NicSource(tmp_path, CONFIG, Clock())
    assert [source.read() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("text", ["", "\0\xff", "-", "4: ACTIVE" * 100_000, "9" * 400, "1e999"])
def test_files_that_are_not_the_kernels_are_no_findings(tmp_path: Path, text: str) -> None:
    write(tmp_path, {**dict.fromkeys(HEALTHY_PORT, text), **dict.fromkeys(HEALTHY_NET, text)})
    for source in (NicSource(tmp_path, CONFIG), NetSource(tmp_path, CONFIG)):
        assert [rules(source.read()) for _ in range(2)] == [[], []]
    read_machine(tmp_path)


@pytest.mark.parametrize("root", ["missing", "file"])
def test_a_wrong_sysfs_root_has_no_devices(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("no folder")
    for source in (NicSource(tmp_path / root, CONFIG), NetSource(tmp_path / root, CONFIG)):
        assert source.read() == source.read() == []
    assert HostLimits(tmp_path / root, CONFIG).read() == []
    assert read_machine(tmp_path / root).nics == ()


def net(root: Path) -> NetSource:
    write(root, HEALTHY_NET)
    source = NetSource(root, CONFIG, Clock())
    assert source.read() == []
    return source


def test_an_interface_that_loses_its_carrier_is_named(tmp_path: Path) -> None:
    source = net(tmp_path)
    write(tmp_path, {"class/net/eth0/carrier_changes": "5", "class/net/lo/carrier_changes": "9"})
    (found,) = source.read()
    assert (found.rule, found.name, found.count) == ("net_flap", "eth0", 2)
    write(tmp_path, {"class/net/eth0/operstate": "down", "class/net/eth0/carrier_changes": "6"})
    assert rules(source.read()) == ["net_flap", "net_down"]
    assert source.read() == []


def test_interfaces_of_containers_are_not_read(tmp_path: Path) -> None:
    names = ("eni0a1b", "azv3f", "cilium_host", "veth1", "docker0", "lxc4")
    up = {f"class/net/{name}/operstate": "up" for name in names}
    write(tmp_path, up | {f"class/net/{name}/carrier_changes": "1" for name in names})
    source = net(tmp_path)
    write(tmp_path, dict.fromkeys(up, "down"))
    write(tmp_path, {f"class/net/{name}/carrier_changes": "9" for name in names})
    assert source.read() == []


def test_an_interface_that_is_gone_is_reported_once_and_may_return(tmp_path: Path) -> None:
    source, gone = net(tmp_path), tmp_path / "eth0"
    (tmp_path / "class/net/eth0").rename(gone)
    assert [rules(source.read()) for _ in range(20)] == [["net_down"], *[[]] * 19]
    gone.rename(tmp_path / "class/net/eth0")
    assert source.read() == []
    write(tmp_path, {"class/net/eth0/operstate": "down"})
    assert rules(source.read()) == ["net_down"]


def test_drops_count_only_as_a_share_of_the_packets(tmp_path: Path) -> None:
    source, statistics = net(tmp_path), "class/net/eth0/statistics"
    write(tmp_path, {f"{statistics}/rx_dropped": "2000", f"{statistics}/rx_packets": "900000"})
    assert source.read() == []
    write(tmp_path, {f"{statistics}/rx_dropped": "4000", f"{statistics}/rx_packets": "950000"})
    assert rules(source.read()) == ["net_drops"]


def snmp(sent: int, again: int) -> str:
    names = "RtoMin OutSegs RetransSegs InErrs"
    return f"Ip: Forwarding\nIp: 1\nTcp: {names}\nTcp: 200 {sent} {again} 0"


def test_retransmitted_segments_are_a_share_of_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    write(tmp_path, {"proc/net/snmp": snmp(5_000_000, 900_000)})
    source = NetSource(tmp_path, CONFIG, Clock())

    def after_a_window(sent: int, again: int) -> list[str]:
        write(tmp_path, {"proc/net/snmp": snmp(sent, again)})
        return [rule for _ in range(31) for rule in rules(source.read())]

    assert after_a_window(5_100_000, 900_100) == []
    assert after_a_window(5_200_000, 920_100) == ["tcp_retransmits"]
    assert after_a_window(5_200_100, 920_190) == [], "too few to be a share"


def test_the_kernels_own_table_is_understood() -> None:
    sent, again = tcp_segments(Path("/proc/net/snmp").read_text())
    assert sent >= 0 and again >= 0
    assert tcp_segments("Tcp: A\nTcp: x y\nTcp: 3") == tcp_segments("nothing") == (0, 0)


@pytest.mark.parametrize(
    ("folder", "name", "before", "after"),
    [
        ("fs/cgroup", "memory.events", "low 0\noom 4\noom_kill 3", "low 0\noom 9\noom_kill 5"),
        (
            "fs/cgroup/memory",
            "memory.oom_control",
            "oom_kill 3",
            "under_oom 0\noom_kill 5",
        ),
    ],
    ids=["v2", "v1"],
)
def test_a_kill_at_the_limit_of_the_control_group_is_news_as_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, before: str, after: str
) -> None:
    proc = tmp_path / "proc"
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    write(tmp_path, {"proc/self/cgroup": "4:memory:/job/step\n0::/job/step"})
    write(tmp_path, {f"{folder}/job/{name}": before})
    source = HostLimits(tmp_path, CONFIG)
    assert source.read() == []
    write(tmp_path, {f"{folder}/job/{name}": after})
    (found,) = source.read()
    assert (found.rule, found.count) == ("cgroup_oom", 2)
    assert found.file == str(tmp_path / folder / "job" / name)


def test_a_quota_that_is_used_up_and_memory_that_is_waited_for_must_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    write(tmp_path, {"proc/self/cgroup": "0::/"})
    source: HostLimits | None = None
    seen = []
    for turn in range(40):
        is_held = turn >= 5
        write(
            tmp_path,
            {
                "fs/cgroup/cpu.stat": f"nr_periods {turn * 20}\nnr_throttled {turn * 18 * is_held}",
                "proc/pressure/memory": f"full avg10={60.0 * is_held:.2f} avg60=0 avg300=0 total=0",
            },
        )
        source = source or HostLimits(tmp_path, CONFIG, Clock())
        seen.append(rules(source.read()))
    assert [turn for turn, found in enumerate(seen) if found] == [20, 28, 36], "while it lasts"
    assert sorted(seen[20]) == ["cgroup_throttled", "memory_pressure"]


def test_a_group_that_the_container_does_not_show_is_looked_for_above() -> None:
    folders = group_folders(Path("/c"), {"memory": "a/b"})
    assert folders == [Path("/c/memory/a/b"), Path("/c/memory/a"), Path("/c/memory")]


def test_a_clock_that_is_set_is_named_with_its_step() -> None:
    wall_s, monotonic_s = [1000.0], [5.0]
    source = ClockSource(CONFIG, lambda: wall_s[0], lambda: monotonic_s[0], lambda: None)
    for step_s, expected in ((2.0, []), (2.3, []), (-3598.0, ["clock_step"]), (2.0, [])):
        wall_s[0] += step_s
        monotonic_s[0] += 2.0
        found = source.read()
        assert rules(found) == expected
        assert not found or "-3600.0 s" in found[0].line


def test_a_clock_that_loses_its_source_is_news_and_one_without_is_not() -> None:
    answers: list[bool | None] = [False, False, True, False, False, None, True, False]
    source = ClockSource(CONFIG, lambda: 0.0, lambda: 0.0, lambda: answers.pop(0))
    seen = [rules(source.read()) for _ in range(8)]
    lost = ["clock_unsynchronised"]
    assert seen == [[], [], [], lost, [], [], [], lost]


def test_the_kernel_answers_for_its_clock() -> None:
    assert is_synchronised() in (True, False)


def test_a_mount_that_becomes_read_only_or_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, real = MountSource(tmp_path, CONFIG), os.statvfs(tmp_path)

    def fails(_: object) -> os.statvfs_result:
        raise OSError(116, "Stale file handle")

    def read_only(_: object) -> os.statvfs_result:
        return os.statvfs_result([*real[:8], real.f_flag | os.ST_RDONLY, real.f_namemax])

    turns: list[tuple[Callable[..., os.statvfs_result], list[str]]] = [
        (lambda _: real, []),
        (read_only, ["mount_read_only"]),
        (read_only, []),
        (fails, ["mount_error"]),
        (fails, []),
    ]
    for answer, expected in turns:
        monkeypatch.setattr(os, "statvfs", answer)
        found = source.read()
        assert rules(found) == expected
        assert not found or (found[0].name == str(tmp_path) and found[0].subject == "mount")
    monkeypatch.undo()
    assert MountSource(tmp_path / "missing", CONFIG).read() == []


def test_what_the_machine_is_made_of(tmp_path: Path) -> None:
    smbios = {"class/dmi/id/sys_vendor": "Example", "class/dmi/id/product_name": "G8 Node"}
    write(tmp_path, {**HEALTHY_PORT, **smbios})
    machine = read_machine(tmp_path)
    (nic,) = machine.nics
    assert (nic.name, nic.port, nic.firmware) == ("mlx5_3", 1, "28.39.1002")
    assert machine.host_type == "Example G8 Node" and machine.kernel


def test_growth_windows_and_states() -> None:
    counters = Counters()
    values = [25, 25, 27, None, 27, 3, 4]
    assert [counters.growth("x", value) for value in values] == [0, 0, 2, 0, 0, 0, 1]
    window = Window(10, within_s=60.0)
    added = ((4, 0.0), (5, 50.0), (4, 70.0), (3, 80.0))
    assert [window.add(*one) for one in added] == [0, 0, 0, 12]
    state = Lasting(10.0, again_s=40.0)
    turns = [
        (True, 0),
        (True, 9),
        (True, 10),
        (True, 49),
        (True, 50),
        (False, 100),
        (True, 101),
        (True, 111),
    ]
    assert [state.is_due(*one) for one in turns] == [
        False, False, True, False, True, False, False, True,
    ]  # fmt: skip
