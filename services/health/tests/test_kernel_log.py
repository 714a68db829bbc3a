"""The kernel's log: only what is new, in each of its formats, and never in the way of a beat."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO, Any

import pytest
from headway.common.wire.messages.health import Finding
from headway.health.client import begin_life
from headway.health.rule_files import shipped
from headway.health.sources.changes import boot_number
from headway.health.sources.kernel_log import (
    CURSOR_FILE,
    KMSG,
    KernelFile,
    KmsgSource,
    open_kernel_log,
    written_at,
)

XID = "NVRM: Xid (PCI:0000:19:00): 31, pid=5120, name=python3, channel 0x00000012"
OLD = f"[Sat Sep  5 11:02:10 2026] {XID}\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def names(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.rule, one.name) for one in found]


def test_what_was_there_at_the_start_is_no_news(tmp_path: Path) -> None:
    """Like an Xid of a job nine days ago."""
    log = tmp_path / "dmesg"
    append(log, OLD)
    source = KernelFile(log, shipped())
    assert source.read() == []
    append(log, f"[ 1843.308145] {XID}\n")
    append(log, f"4,1234,5678901,-;{XID.replace('19', '1a')}\n")
    append(log, XID.replace("19", "1b") + "\n")
    assert [name for _, name in names(source.read())] == [
        "0000:19:00.0",
        "0000:1a:00.0",
        "0000:1b:00.0",
    ]
    assert source.read() == []


def test_a_file_that_is_replaced_while_it_is_opened_is_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes its place is longer: read from the old place on, its first lines are missed."""
    log, opening = tmp_path / "dmesg", Path.open
    append(log, OLD)
    source = KernelFile(log, shipped(), wall_s=lambda: time.time() - 60)
    now = time.strftime("%a %b %d %H:%M:%S %Y")

    def replace_and_open(path: Path, *words: str) -> IO[Any]:
        if path == log and words == ("rb",):
            fresh = tmp_path / "fresh"
            append(fresh, f"[{now}] {XID}\n" * 3 + OLD)
            fresh.rename(log)
        return opening(path, *words)

    monkeypatch.setattr(Path, "open", replace_and_open)
    assert len(source.read()) == 1
    assert source.is_open


def test_a_file_that_is_replaced_has_only_the_lines_since_the_start(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    source = KernelFile(log, shipped(), wall_s=lambda: time.time() - 60)
    assert source.read() == [], "it is not there yet"
    now = time.strftime("%a %b %d %H:%M:%S %Y")
    append(log, OLD + f"[{now}] {XID.replace('19', '1a')}\n")
    assert [name for _, name in names(source.read())] == ["0000:1a:00.0"]


@pytest.mark.parametrize("style", ["dmesg", "dmesg -T", "kmsg"])
def test_a_dump_that_is_replaced_again_and_again_has_each_line_once(
    tmp_path: Path, style: str
) -> None:
    """As a timer writes it: the whole log to a new file, which is renamed."""
    log, lines = tmp_path / "dmesg", list[str]()
    source = KernelFile(log, shipped(), wall_s=lambda: time.time() - 600)
    up_s = time.monotonic()

    def dumped(gpu: str, age_s: float) -> list[str]:
        wall = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(time.time() - age_s))
        stamp = {
            "dmesg": f"[{up_s - age_s:.6f}] ",
            "dmesg -T": f"[{wall}] ",
            "kmsg": f"4,{len(lines)},{(up_s - age_s) * 1e6:.0f},-;",
        }[style]
        lines.append(stamp + XID.replace("19:", f"{gpu}:") + "\n")
        found = []
        for _ in range(3):
            (tmp_path / "next").write_text("".join(lines))
            (tmp_path / "next").rename(log)
            found += source.read()
        return [one.name for one in found]

    assert dumped("1a", 500) == ["0000:1a:00.0"]
    assert dumped("1b", 500) == ["0000:1b:00.0"], "of the same moment"
    assert dumped("1c", 30) == ["0000:1c:00.0"]


def test_lines_out_of_order_and_a_damaged_stamp_leave_out_nothing(tmp_path: Path) -> None:
    log, up_s = tmp_path / "dmesg", time.monotonic()
    source = KernelFile(log, shipped(), wall_s=lambda: time.time() - 600)
    stamps = (up_s - 9, up_s - 9.0002, 99999999999.0, up_s - 8)
    lines = [f"[{at_s:.6f}] {XID.replace('19', f'1{n}')}\n" for n, at_s in enumerate(stamps)]
    log.write_text("".join(lines))
    assert len(source.read()) == 4
    (tmp_path / "next").write_text("".join(lines))
    (tmp_path / "next").rename(log)
    assert source.read() == []


def test_lines_without_a_stamp_are_as_old_as_the_one_before(tmp_path: Path) -> None:
    log, up_s = tmp_path / "dmesg", time.monotonic()
    source = KernelFile(log, shipped(), wall_s=lambda: time.time() - 600)
    text = f"[{up_s - 9:.6f}] NVRM: The NVIDIA GPU 0000:b3:00.0\n   NVRM: fallen off the bus and\n"
    seen = []
    for _ in range(3):
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").rename(log)
        seen.append(names(source.read()))
    assert seen == [[("gpu_lost", "0000:b3:00.0")], [], []]


def test_the_three_lines_on_a_lost_gpu_are_one_finding_that_names_it(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.touch()
    source = KernelFile(log, shipped())
    append(
        log,
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.441010] nvidia 0000:b3:00.0: AER: can't recover (no error_detected callback)\n"
        "[ 1851.120334] NVRM: Xid (PCI:0000:45:00): 45, pid=91822, name=python3, channel 0x2\n",
    )
    assert names(source.read()) == [
        ("gpu_lost", "0000:b3:00.0"),
        ("pcie_fatal", "0000:b3:00.0"),
        ("xid_45", "0000:45:00.0"),
    ]


def test_half_a_line_waits_and_binary_text_is_no_finding(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    source = KernelFile(log, shipped())
    append(log, XID[:30])
    assert source.read() == []
    append(log, XID[30:] + "\n")
    assert len(source.read()) == 1
    log.write_bytes(log.read_bytes() + bytes(range(256)) * 8000 + b"\n")
    found = [one for _ in range(8) for one in source.read()]
    assert found == []
    append(log, XID + "\n")
    assert len(source.read()) == 1, "it still reads"


def test_a_flood_is_read_from_its_newest_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.health.sources.kernel_log.MAX_BEHIND_BYTES", 20_000)
    log = tmp_path / "dmesg"
    source = KernelFile(log, shipped())
    append(log, "fine\n" * 20_000 + XID + "\n")
    assert len(source.read()) == 1


class Records:
    """Stands for /dev/kmsg: one record per read, and nothing to wait for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.waiting: list[bytes | OSError] = []
        path.touch()
        monkeypatch.setattr("headway.health.sources.kernel_log.os.read", self.read)

    def read(self, _fd: int, _size: int) -> bytes:
        if not self.waiting:
            raise BlockingIOError
        first = self.waiting.pop(0)
        if isinstance(first, OSError):
            raise first
        return first

    def add(self, sequence: int, text: str, seconds: float = 100.0) -> None:
        self.waiting.append(f"4,{sequence},{seconds * 1e6:.0f},-;{text}\n".encode())


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    return Records(monkeypatch, tmp_path / "kmsg")


def test_a_record_is_identified_by_boot_and_sequence(records: Records, tmp_path: Path) -> None:
    source = KmsgSource(tmp_path / "kmsg", shipped())
    records.add(70, XID + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:19:00.0", time.monotonic() - 5)
    records.waiting.append(BrokenPipeError())  # overwritten before it was read
    records.waiting.append(b"not a record")
    lost = "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: x)\\x0aNVRM: fallen off the bus"
    records.add(72, lost)
    first, second = source.read()
    assert (first.rule, first.inode, first.offset) == ("xid_31", boot_number(), 70)
    assert 4 < first.age_s < 600 and "SUBSYSTEM" not in first.line
    assert names([second]) == [("gpu_lost", "0000:b3:00.0")]
    source.close()


def test_a_restarted_agent_continues_and_a_new_life_begins_at_the_end(
    records: Records, tmp_path: Path
) -> None:
    kmsg, cursors = tmp_path / "kmsg", tmp_path / CURSOR_FILE
    first = KmsgSource(kmsg, shipped(), cursors)
    records.add(70, XID)
    assert len(first.read()) == 1
    first.close()
    second = KmsgSource(kmsg, shipped(), cursors)
    records.add(70, XID)
    records.add(71, XID)
    assert [one.offset for one in second.read()] == [71]
    second.close()
    begin_life(tmp_path, tmp_path, "n0-*.log")
    assert not cursors.exists()
    cursors.write_text("[")
    KmsgSource(kmsg, shipped(), cursors).close()


def test_a_log_that_may_not_be_read_is_one_finding(tmp_path: Path) -> None:
    source = KmsgSource(tmp_path / "no-kmsg", shipped())
    assert [one.rule for one in source.read()] == ["kernel_log_unreadable"]
    assert source.read() == [] and not source.is_open
    source.close()


def test_a_log_that_fails_later_is_one_finding(records: Records, tmp_path: Path) -> None:
    source = KmsgSource(tmp_path / "kmsg", shipped())
    records.waiting.append(OSError(5, "Input/output error"))
    assert source.read() == []
    assert [one.rule for one in source.read()] == ["kernel_log_unreadable"]
    assert source.read() == []


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="needs a readable /dev/kmsg")
def test_the_kernels_own_device_is_read_without_waiting() -> None:
    source = open_kernel_log(KMSG, shipped(), None)
    assert isinstance(source, KmsgSource)
    source.read()
    source.close()


def test_stamps_of_all_formats() -> None:
    booted_s = time.time() - time.monotonic()
    assert written_at("[ 12.5] x", booted_s) == pytest.approx(booted_s + 12.5, abs=5)
    assert written_at("6,12,500000,-;x", booted_s) == pytest.approx(booted_s + 0.5, abs=5)
    wall_s = written_at("[Sat Sep  5 11:02:10 2026] x", booted_s)
    assert wall_s is not None and time.localtime(wall_s)[:5] == (2026, 9, 5, 11, 2)
    for line in ("x", "[Sat Sep 99 11:02:10 2026] x", "[]", ""):
        assert written_at(line, booted_s) is None
