"""The tail of a node's logs: each file gets its share, and only this life's lines count."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.log_rotation import rotated
from headway.health.client import begin_life
from headway.health.sources import train_log
from headway.health.sources.train_log import CURSOR_FILE, LogTail
from structlog.testing import capture_logs

BAD = "step 7 loss: nan\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_file_that_grows_faster_than_it_is_read_hides_no_other(tmp_path: Path) -> None:
    tail, budget = LogTail(tmp_path), 64 << 10
    flood = tmp_path / "n0-agent.log"
    ranks = [tmp_path / f"n0w{number}.log" for number in range(3)]
    for turn in range(5):
        append(flood, "all is fine\n" * 20_000)  # some four times the budget
        for path in ranks:
            append(path, BAD)
        found = tail.poll(budget)
        assert sorted(hit.file for hit in found) == [str(path) for path in ranks], turn


def test_two_floods_share_what_short_files_leave(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    for name in ("a.log", "b.log"):
        append(tmp_path / name, BAD * 50_000)
    append(tmp_path / "c.log", BAD)
    found = [hit.file[-5:] for hit in tail.poll(64 << 10)]
    assert found.count("c.log") == 1
    assert 0.9 < found.count("a.log") / found.count("b.log") < 1.1


def test_a_line_longer_than_a_files_share_is_read_in_the_end(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    for number in range(40):
        append(tmp_path / f"{number}.log", "x" * 3000 + " loss: nan\n")
    seen = [hit.file for _ in range(40) for hit in tail.poll(8192)]
    assert len(seen) == len(set(seen)) == 40


def test_what_is_too_far_behind_is_skipped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_log, "MAX_BEHIND_BYTES", 40_000)
    tail, log = LogTail(tmp_path), tmp_path / "n0w0.log"
    append(log, "fine\n" * 10_000 + BAD)
    with capture_logs() as said:
        found = [hit.line for _ in range(20) for hit in tail.poll(4096)]
    assert found == [BAD.strip()], "the newest text is read"
    (line,) = said
    assert line["file"] == str(log) and line["num_bytes"] == 50_000 + len(BAD) - 20_000


def test_a_life_begins_at_the_end_of_what_earlier_ones_wrote(tmp_path: Path) -> None:
    """Wherever the agent of the life before had stopped, and however late the new one looks."""
    log, shm = tmp_path / "n0w0.log", tmp_path / "shm"
    shm.mkdir()
    LogTail(tmp_path, cursors=shm / CURSOR_FILE)
    append(log, "Connection closed by peer\n")  # after the last look of its agent
    begin_life(shm, tmp_path, "n0[-w]*.log")
    append(log, BAD)  # before the first look of the new one
    append(tmp_path / "n0w1.log", BAD)
    found = LogTail(tmp_path, "n0[-w]*.log", shm / CURSOR_FILE).poll(1 << 20)
    assert [(hit.file[-8:], hit.rule) for hit in found] == [
        ("n0w0.log", "nan_loss"),
        ("n0w1.log", "nan_loss"),
    ]


def test_the_kernels_three_lines_on_a_lost_gpu_are_one_that_names_it(tmp_path: Path) -> None:
    tail, log = LogTail(tmp_path), tmp_path / "kernel.log"
    append(log, "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n")
    assert tail.poll(1 << 20) == []
    append(log, "NVRM: (PCI ID: 10de:2330) installed in this system has\n")
    append(log, "NVRM: fallen off the bus and is not responding to commands.\n")
    append(log, "NVRM: fallen off the bus and is not responding to commands.\n")
    assert [hit.name for hit in tail.poll(1 << 20)] == ["0000:b3:00.0", ""]


def test_a_verdict_in_a_log_is_no_sign_of_another(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    quoted = '{"event": "verdict", "line": "OSError: [Errno 5] Input/output error"}\n'
    append(tmp_path / "n0-monitor.log", quoted)
    append(tmp_path / "n0-driver.log", quoted)
    assert tail.poll(1 << 20) == []


def rotate(log: Path) -> None:
    log.replace(rotated(log))
    log.touch()


def test_what_a_rotation_left_unread_is_read_once(tmp_path: Path) -> None:
    log, cursors = tmp_path / "n0w0.log", tmp_path / CURSOR_FILE
    tail = LogTail(tmp_path, cursors=cursors)
    append(log, BAD)
    assert len(tail.poll(1 << 20)) == 1
    append(log, "fine\n" + BAD)
    rotate(log)
    append(log, BAD)
    found = tail.poll(1 << 20)
    assert [hit.file for hit in found] == [str(log), str(log)]
    assert len({(hit.inode, hit.offset) for hit in found}) == 2
    again = LogTail(tmp_path, cursors=cursors)
    append(rotated(log), BAD)  # of a child that still has the old file open
    assert len(again.poll(1 << 20)) == 1
    for _ in range(3):
        append(log, BAD)
        rotate(log)
        append(log, "fine\n")
        assert len(again.poll(1 << 20)) == 1
    assert again.poll(1 << 20) == []


def test_an_older_file_that_the_tail_has_never_followed_is_no_news(tmp_path: Path) -> None:
    log = tmp_path / "n0w0.log"
    append(log, BAD)
    rotate(log)
    tail = LogTail(tmp_path)
    append(rotated(log), BAD)
    assert tail.poll(1 << 20) == []


def test_the_places_of_findings_grow_over_rotations_and_a_restart(tmp_path: Path) -> None:
    """The third file may have the inode of the first; a smaller place would be old news."""
    log, cursors = tmp_path / "n0w0.log", tmp_path / CURSOR_FILE
    log.touch()
    tail, places = LogTail(tmp_path, cursors=cursors), []
    for turn in range(6):
        append(log, "x" * 100 + "\n" + BAD)
        places += [hit.offset for hit in tail.poll(64 << 10)]
        if turn % 3 == 1:
            tail = LogTail(tmp_path, cursors=cursors)
        log.replace(rotated(log))
    assert len(places) == 6
    assert places == sorted(set(places))
