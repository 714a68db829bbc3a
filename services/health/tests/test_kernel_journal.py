"""The kernel's log from the journal: a child that follows it, may end, refuse, or show nothing.

``journalctl`` is a stand-in that prints recorded records as systemd 252 does, and takes the place
among them from ``-n 1`` or ``--cursor``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import Finding
from headway.health.client import begin_life
from headway.health.rule_files import shipped
from headway.health.sources import kernel_log
from headway.health.sources.changes import boot_number
from headway.health.sources.kernel_journal import (
    CURSOR_FILE,
    MAX_FIRST_RECORD_S,
    JournalSource,
)

XID = "NVRM: Xid (PCI:0000:19:00): 31, pid=5120, name=python3, channel 0x00000012"
JOURNALCTL = """#!{python}
import json, os, pathlib, sys, time
here = pathlib.Path({folder!r})
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if (here / "refusal").exists():
    sys.exit((here / "refusal").read_text())
if (here / "hangs").exists():
    time.sleep(100)
wanted = [word.partition("=")[2] for word in sys.argv if word.startswith("--cursor=")]
if wanted and not wanted[0].startswith("s="):
    sys.exit("Failed to seek to cursor: Invalid argument")
num_shown = None
while not (here / "ends").exists() and os.getppid() == {parent}:
    lines = (here / "records").read_text().splitlines() if (here / "records").exists() else []
    if num_shown is None and lines:
        cursors = [json.loads(line).get("__CURSOR") for line in lines]
        num_shown = cursors.index(wanted[0]) if wanted else len(lines) - 1
    for line in lines[num_shown or 0:]:
        print(line, flush=True)
    num_shown = len(lines) or None
    time.sleep(0.01)
sys.exit(1)
"""


class Journal:
    """The stand-in and its records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.num = folder, 0
        program = folder / "bin" / "journalctl"
        program.parent.mkdir()
        text = JOURNALCTL.format(python=sys.executable, folder=str(folder), parent=os.getpid())
        program.write_text(text)
        program.chmod(0o755)

    def add(self, message: object, **fields: object) -> None:
        self.num += 1
        record = {
            "__CURSOR": f"s=6f2a;i={self.num:x};b=9c1d;m=44e6;t=64a1;x=bf",
            "__REALTIME_TIMESTAMP": str(time.time_ns() // 1000),
            "__MONOTONIC_TIMESTAMP": str(time.monotonic_ns() // 1000),
            "_BOOT_ID": "9c1d9d0f6a5c4f63a1c6a1b5f9a0c7de",
            "_MACHINE_ID": "46eff2c0526d485fa8103457ae6f7146",
            "_HOSTNAME": "node7",
            "_TRANSPORT": "kernel",
            "_SOURCE_MONOTONIC_TIMESTAMP": str(time.monotonic_ns() // 1000),
            "PRIORITY": "4",
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "MESSAGE": message,
            **fields,
        }
        self.print(json.dumps(record))

    def print(self, line: str) -> None:
        with (self.folder / "records").open("a") as file:
            file.write(line + "\n")

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    made = Journal(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


class Clock:
    """One that waits for nothing."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Open = Callable[..., JournalSource]


@pytest.fixture
def opened(clock: Clock) -> Iterator[Open]:
    made: list[JournalSource] = []

    def make(cursors: Path | None = None, refused: str = "") -> JournalSource:
        made.append(JournalSource(shipped(), cursors, refused, clock))
        return made[-1]

    yield make
    for source in made:
        source.close()


def read_until(source: JournalSource, num: int) -> list[Finding]:
    """The findings until there are ``num``."""
    found: list[Finding] = []

    def is_done() -> bool:
        found.extend(source.read())
        return len(found) >= num

    wait_until(is_done, 20.0, f"{num} findings")
    return found


def read_open(source: JournalSource) -> None:
    """Read until its first record is there, which is no finding."""

    def is_done() -> bool:
        assert source.read() == []
        return source.is_open

    wait_until(is_done, 20.0, "a first record")


def test_what_was_there_at_the_start_is_no_news(journal: Journal, opened: Open) -> None:
    journal.add(XID)
    journal.add(XID)
    source = opened()
    read_open(source)
    journal.add(XID.replace("19", "1a"))
    (found,) = read_until(source, 1)
    assert (found.rule, found.name, found.file) == ("xid_31", "0000:1a:00.0", "journalctl -k")
    assert found.inode == boot_number() and 0 <= found.age_s < 20
    assert source.read() == []


def test_a_restarted_agent_repeats_nothing_and_leaves_nothing_out(
    journal: Journal, opened: Open, tmp_path: Path
) -> None:
    cursors = tmp_path / CURSOR_FILE
    journal.add("fine")
    first = opened(cursors)
    read_open(first)
    journal.add(XID)
    (found,) = read_until(first, 1)
    first.close()
    journal.add(XID.replace("19", "1b"))
    second = opened(cursors)
    (later,) = read_until(second, 1)
    assert (later.name, later.offset > found.offset) == ("0000:1b:00.0", True)
    second.close()
    begin_life(tmp_path, tmp_path, "n0-*.log")
    third = opened(cursors)
    read_open(third)
    assert third.read() == [], "a new life begins at the end"


def test_a_child_that_ends_is_started_again_behind_what_was_read(
    journal: Journal, opened: Open, clock: Clock
) -> None:
    journal.add("fine")
    source = opened()
    read_open(source)
    (journal.folder / "ends").touch()
    (found,) = read_until(source, 1)
    assert found.rule == "kernel_log_unreadable" and "ended with code 1" in found.line
    assert not source.is_open
    (journal.folder / "ends").unlink()
    journal.add(XID)
    for _ in range(5):
        assert source.read() == [], "not before its pause is over"
    clock.now_s += 1.0
    assert [one.rule for one in read_until(source, 1)] == ["xid_31"]
    assert len(journal.calls) == 2


@pytest.mark.parametrize("how", ["refusal", "hangs", "empty", "absent"])
def test_a_journal_that_cannot_be_read_is_one_finding_with_every_reason(
    journal: Journal, opened: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    why = {
        "refusal": "ended with code 1: No journal files were opened",
        "hangs": "shows no record",
        "empty": "shows no record",
        "absent": "cannot be started: No such file or directory",
    }
    if how == "absent":
        shutil.rmtree(journal.folder / "bin")
        monkeypatch.setenv("PATH", str(journal.folder))
    elif how != "empty":
        refusal = "No journal files were opened due to insufficient permissions."
        (journal.folder / how).write_text(refusal)
    source = opened(refused="/dev/kmsg cannot be read: Operation not permitted")
    if how in ("hangs", "empty"):
        assert source.read() == []
        wait_until(lambda: len(journal.calls) == 1)
        clock.now_s += 5.1
    (one,) = read_until(source, 1)
    assert one.rule == "kernel_log_unreadable" and not source.is_open
    assert one.line.startswith("/dev/kmsg cannot be read: Operation not permitted; journalctl ")
    assert why[how] in one.line
    for num in range(2, 5):
        assert source.read() == []
        clock.now_s += 61.0
        assert source.read() == [], "it was reported"
        if how != "absent":
            wait_until(lambda num=num: len(journal.calls) == num)
        clock.now_s += MAX_FIRST_RECORD_S + 1.0
    assert source.read() == []
    if how == "absent":
        return
    for name in ("refusal", "hangs"):
        (journal.folder / name).unlink(missing_ok=True)
    journal.add("fine")
    clock.now_s += 60.0
    read_open(source)


def test_a_cursor_of_another_journal_is_given_up(
    journal: Journal, opened: Open, clock: Clock, tmp_path: Path
) -> None:
    cursors = tmp_path / CURSOR_FILE
    cursors.write_text(json.dumps([boot_number(), "odd"]))
    journal.add("fine")
    source = opened(cursors)
    (found,) = read_until(source, 1)
    assert "Failed to seek to cursor" in found.line
    clock.now_s += 1.0
    read_open(source)


@pytest.mark.parametrize("content", ["[", "[1, 2]", "null", '[1, "s=1"]', "\x00\udcff"])
def test_a_damaged_position_counts_as_none(
    journal: Journal, opened: Open, tmp_path: Path, content: str
) -> None:
    cursors = tmp_path / CURSOR_FILE
    cursors.write_bytes(content.encode(errors="surrogateescape"))
    journal.add(XID)
    source = opened(cursors)
    read_open(source)
    assert journal.calls[0][-2:] == ["-n", "1"]


def test_odd_records_are_left_out_and_the_next_one_is_read(journal: Journal, opened: Open) -> None:
    journal.add("fine")
    source = opened()
    read_open(source)
    for odd in ("[]", "{", "null", '{"__CURSOR": 7}', '{"__CURSOR": "--help"}', "[" * 5000):
        journal.print(odd)
    journal.add(None)  # longer than journalctl shows
    journal.add([78, 999, "x"])
    journal.add(["several", "values"], __MONOTONIC_TIMESTAMP=["1", None])
    journal.add(XID + "x" * (2 << 18))
    journal.add(list(XID.encode() + b" \xff"), __MONOTONIC_TIMESTAMP="9" * 40)
    journal.add("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus and is")
    found = read_until(source, 2)
    assert [one.rule for one in found] == ["xid_31", "gpu_lost"]


@pytest.mark.usefixtures("journal")
def test_the_journal_takes_the_place_of_a_device_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel_log.os, "open", refused)
    source = kernel_log.open_kernel_log(kernel_log.KMSG, shipped(), None)
    assert isinstance(source, JournalSource)
    monkeypatch.setenv("PATH", str(tmp_path))
    source = kernel_log.open_kernel_log(kernel_log.KMSG, shipped(), None)
    assert isinstance(source, kernel_log.KmsgSource)
    assert [one.rule for one in source.read()] == ["kernel_log_unreadable"]


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="needs systemd")
@pytest.mark.parametrize("cursor", ["", "s=6f2a;i=1;b=9c1d;m=44e6;t=64a1;x=bf"])
def test_the_real_program_takes_the_options(opened: Open, tmp_path: Path, cursor: str) -> None:
    """It may have no journal to show, or refuse it; but not for what it was asked."""
    if cursor:
        (tmp_path / CURSOR_FILE).write_text(json.dumps([boot_number(), cursor]))
    source, found = opened(tmp_path / CURSOR_FILE), list[Finding]()
    for _ in range(100):
        found += source.read()
        time.sleep(0.005)
    assert not [one.line for one in found if "option" in one.line or "specify" in one.line]


def test_a_journal_that_needs_longer_for_its_first_record_gets_twice_the_time(
    journal: Journal, opened: Open, clock: Clock
) -> None:
    """It is ended after 5 s, and then after 10 and 20 s, in which it would have shown one."""
    source = opened()
    given: list[float] = []
    for num_starts in range(1, 4):
        assert source.read() == []
        wait_until(lambda num=num_starts: len(journal.calls) == num, what="another start")
        began_s = clock.now_s
        while source._process is not None:
            clock.now_s += 1.0
            source.read()
        given.append(clock.now_s - began_s)
        clock.now_s += 61.0
    assert given == [6.0, 11.0, 21.0]
    journal.add(XID)
    read_open(source)


@pytest.mark.usefixtures("journal")
def test_the_time_for_a_first_record_has_an_end(opened: Open, clock: Clock) -> None:
    source = opened()
    for _ in range(12):
        source.read()
        clock.now_s += MAX_FIRST_RECORD_S + 1.0
        source.read()
        assert source._process is None, "it was ended"
        clock.now_s += 61.0
    assert source._patience_s == MAX_FIRST_RECORD_S
