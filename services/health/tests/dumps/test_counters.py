"""Counters of ports before and after a job."""

from __future__ import annotations

from headway.health.dumps.counters import (
    PortReading,
    growths,
    host_of_tree,
    read_counters,
    read_tree,
)

PORT = "/sys/class/infiniband/mlx5_3/ports/1/"


def reading(host: str = "gpu-k11", **counters: int) -> PortReading:
    return PortReading(host, "mlx5_3", 1, counters)


def test_the_text_of_grep_has_counters_and_states_of_each_port() -> None:
    lines = [
        f"{PORT}state:4: ACTIVE",
        f"{PORT}rate:400 Gb/sec (4X NDR)",
        f"{PORT}counters/link_downed:25",
        f"{PORT}hw_counters/local_ack_timeout_err:7",
        "/sys/class/infiniband/mlx5_4/ports/1/counters/link_downed:0",
        "/sys/class/infiniband/mlx5_4/ports/1/state:1: DOWN",
        f"{PORT}counters/damaged:none",
        "grep: /sys/class/infiniband/mlx5_5: Permission denied",
    ]
    third, fourth = read_counters(lines, "gpu-k11")
    assert (third.host, third.name, third.is_up) == ("gpu-k11", "mlx5_3/1", True)
    assert third.counters == {"link_downed": 25, "local_ack_timeout_err": 7}
    assert third.states["rate"] == "400 Gb/sec (4X NDR)"
    assert (fourth.name, fourth.is_up) == ("mlx5_4/1", False)


def test_a_copied_tree_gives_the_same() -> None:
    files = [
        ("counters/gpu-k11/mlx5_3/ports/1/counters/link_downed", "25\n"),
        ("counters/gpu-k11/mlx5_3/ports/1/state", "4: ACTIVE\n"),
        ("counters/gpu-k12/mlx5_3/ports/1/counters/link_downed", "1\n"),
        ("counters/gpu-k12/notes.txt", "nothing"),
    ]
    first, second = read_tree(files)
    assert (first.host, first.counters, first.is_up) == ("gpu-k11", {"link_downed": 25}, True)
    assert (second.host, second.counters, second.is_up) == ("gpu-k12", {"link_downed": 1}, None)


def test_the_host_of_a_tree_is_above_the_folders_of_sysfs() -> None:
    for path in (
        "counters/gpu-k11/before/sys/class/infiniband/mlx5_3/ports/1/state",
        "gpu-k11/mlx5_3/ports/1/state",
    ):
        assert host_of_tree(path) == "gpu-k11"
    assert host_of_tree("/sys/class/infiniband/mlx5_3/ports/1/state") == ""


def test_only_what_changed_has_grown_and_faults_come_first() -> None:
    before = [reading(link_downed=25, port_xmit_wait=100, symbol_error=9)]
    after = [reading(link_downed=29, port_xmit_wait=9_000_000, symbol_error=9, new=4)]
    down, wait = growths(before, after)
    assert (down.counter, down.before, down.after, down.grown) == ("link_downed", 25, 29, 4)
    assert (down.is_fault, wait.counter, wait.is_fault) == (True, "port_xmit_wait", False)


def test_marks_from_before_the_job_are_no_growth() -> None:
    assert growths([reading(link_downed=12)], [reading(link_downed=12)]) == ()


def test_one_reading_alone_shows_nothing() -> None:
    assert growths([], [reading(link_downed=12)]) == ()
    assert growths([reading("gpu-k12", link_downed=1)], [reading(link_downed=12)]) == ()


def test_a_counter_that_began_from_zero_again_has_grown_by_what_it_has() -> None:
    (one,) = growths([reading(link_downed=25)], [reading(link_downed=3)])
    assert (one.was_reset, one.grown) == (True, 3)


def test_the_ways_in_which_people_print_sysfs_give_the_same() -> None:
    path = "mlx5_3/ports/1/counters/link_downed"
    for lines in (
        [f"{PORT}counters/link_downed:25"],
        [f"{path} 25"],
        [f"{path} = 25"],
        [f"==> {path} <==", "25", ""],
        ["link mlx5_3/1 link_downed 25 rx_write_requests 7"],
    ):
        (port,) = read_counters(lines)
        assert (port.name, port.counters["link_downed"]) == ("mlx5_3/1", 25)


def test_perfquery_and_ethtool_have_counters_too() -> None:
    lines = [
        "# Port counters: Lid 12 port 1 (CapMask: 0x5A00)",
        "PortSelect:......................1",
        "LinkDownedCounter:...............3",
    ]
    (port,) = read_counters(lines, "gpu-k11", "mlx5_3")
    assert (port.name, port.counters["link_downed"]) == ("mlx5_3/1", 3)
    (nic,) = read_counters(["NIC statistics:", "     rx_prio3_pause: 17"], "gpu-k11", "ens1")
    assert (nic.name, nic.counters) == ("ens1", {"rx_prio3_pause": 17})
