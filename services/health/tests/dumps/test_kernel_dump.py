"""Kernel logs in the formats in which people save them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from headway.health.dumps.kernel import KernelMark, read_kernel
from headway.health.dumps.times import Stamp, read_stamp

DOWN = "mlx5_core 0000:9a:00.0 ibs3: Link down"
AT_S = datetime(2026, 9, 14, 2, 11, 7, tzinfo=UTC).timestamp()
FORMATS = {
    "ctime": f"[Mon Sep 14 02:11:07 2026] {DOWN}",
    "iso": f"2026-09-14T02:11:07,000000+00:00 {DOWN}",
    "iso of another zone": f"2026-09-14T04:11:07,000000+02:00 {DOWN}",
    "journal": f"Sep 14 02:11:07 gpu-k11 kernel: {DOWN}",
    "journal iso": f"2026-09-14T02:11:07+0000 gpu-k11 kernel: {DOWN}",
}
LOST = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:2330) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1851.120334] NVRM: Xid (PCI:0000:45:00): 45, pid=91822, name=python3, channel 0x00000002
""".splitlines()


def only(line: str, **more: float) -> KernelMark:
    (mark,) = read_kernel([line], "dmesg_gpu-k11.txt", year=2026, **more).marks  # type: ignore[arg-type]
    return mark


@pytest.mark.parametrize("line", FORMATS.values(), ids=FORMATS)
def test_a_mark_has_its_time_host_and_subject_in_every_format(line: str) -> None:
    mark = only(line)
    assert (mark.rule, mark.subject, mark.name) == ("link_down", "nic", "ibs3")
    assert (mark.host, mark.pci, mark.at_s) == ("gpu-k11", "0000:9a:00.0", AT_S)


@pytest.mark.parametrize(
    "line", [f"[ 8123.400121] {DOWN}", f"<4>[ 8123.400121] {DOWN}", f"4,881,8123400121,-;{DOWN}"]
)
def test_time_since_the_start_of_the_machine_is_no_calendar_time(line: str) -> None:
    mark = only(line, job_start_s=AT_S)
    assert (mark.at_s, mark.is_history) == (None, None)
    assert mark.uptime_s == pytest.approx(8123.400121)


def test_with_the_time_of_the_boot_it_is_one() -> None:
    mark = only(f"[ 8123.000000] {DOWN}", boot_s=AT_S - 8123, job_start_s=AT_S - 1)
    assert (mark.at_s, mark.is_history) == (AT_S, False)


def test_what_is_older_than_the_job_is_history() -> None:
    line = "[Sat Sep  5 11:02:10 2026] NVRM: Xid (PCI:0000:19:00): 31, pid=5120, name=python3"
    report = read_kernel([line, FORMATS["ctime"]], job_start_s=AT_S - 60)
    assert [mark.is_history for mark in report.marks] == [True, False]
    assert [mark.rule for mark in report.news()] == ["link_down"]


def test_a_gpu_that_fell_off_the_bus_is_named_by_the_first_of_three_lines() -> None:
    lost, cleanup = read_kernel(LOST, "dmesg_gpu-k03.txt").marks
    assert (lost.rule, lost.name, lost.host) == ("gpu_lost", "0000:b3:00.0", "gpu-k03")
    assert lost.uptime_s == pytest.approx(1843.308145)
    assert (cleanup.xid, cleanup.name, cleanup.is_symptom) == (45, "0000:45:00.0", True)


def test_a_healthy_log_has_no_marks() -> None:
    lines = [
        "[  912.114031] nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX",
        "[  913.000000] mlx5_core 0000:9a:00.0 ibs3: Link up",
    ]
    report = read_kernel(lines)
    assert (report.marks, report.num_lines) == ((), 2)


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("2026/09/14 02:11:07.500", AT_S + 0.5),
        ("2026-09-14_02:11:07", AT_S),
        ("2026-09-14 02:11:07,500 INFO", AT_S + 0.5),
        ("[rank0]:[E0914 02:11:07.5 x.cpp:1]", AT_S + 0.5),
        ("[rank0]:[E914 02:11:07.5 x.cpp:1]", AT_S + 0.5),
        ("job started Mon Sep 14 02:11:07 UTC 2026", AT_S),
    ],
)
def test_stamps_of_programs_are_read(text: str, at_s: float) -> None:
    assert read_stamp(text, 2026) == Stamp(at_s=at_s)


@pytest.mark.parametrize(
    "text", ["", "2026-13-40 02:11:07", "[E0914 02:11:07.5 x]", "12:00:00", "-"]
)
def test_what_is_no_whole_time_is_none(text: str) -> None:
    assert read_stamp(text) is None
