"""`headway logs` shows any line that a process may print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headway.console.folder.logs import LEVELS, MAX_LINE_BYTES, LogReader, as_row, as_text

ODD = (
    b'{"event": "x", "level": null}',
    b'{"event": "x", "level": ["error"], "timestamp": {"a": 1}, "rank": 1e400}',
    b'{"event": null, "level": 3, "timestamp": "0001-01-01T00:00:00"}',
    b'{"event": "\\ud800 \\u202e \\u0000 \\u001b[31m"}',
    b'{"event": {"a": "\\u001b"}, "x": "\\n"}',
    b"[" * 50_000,
    b'{"event": ' * 5000,
    b'{"level": "error"}',
    b"\xff\xfe\x00 \x1b[2J\x1b]0;title\x07 \xc2\x9b",
    b"10%\r20%\r",
    b"null",
)


def _read(folder: Path, content: bytes) -> list[dict[str, object]]:
    (folder / "n0-worker.log").write_bytes(content)
    return LogReader([folder], since=1e10).read()


@pytest.mark.parametrize("raw", ODD, ids=range(len(ODD)))
def test_any_line_is_shown_and_steers_no_terminal(tmp_path: Path, raw: bytes) -> None:
    (line,) = _read(tmp_path, raw + b"\n")
    text = as_text(line)
    assert not [c for c in text if (ord(c) < 32 and c != "\t") or 0x7F <= ord(c) < 0xA0], text
    text.encode()
    assert line["level"] in LEVELS and isinstance(line["event"], str)
    assert len(as_row(line)) == 6


def test_odd_lines_are_in_their_place_between_the_others(tmp_path: Path) -> None:
    first = json.dumps({"event": "first", "timestamp": "2026-01-01T00:00:00", "level": "error"})
    lines = _read(tmp_path, first.encode() + b"\nTraceback\n" + b"\n".join(ODD) + b"\n")
    assert [line["event"] for line in lines if line["timestamp"] == "2026-01-01T00:00:00"][:2] == [
        "first",
        "Traceback",
    ]
    assert len(lines) == 2 + len(ODD)


def test_of_a_long_line_the_beginning_is_shown_and_the_next_line_whole(tmp_path: Path) -> None:
    lines = _read(tmp_path, b"x" * (3 * MAX_LINE_BYTES) + b"\nnext\n")
    shown = str(lines[0]["event"])
    assert shown.startswith("xxx") and len(shown) < MAX_LINE_BYTES + 100
    assert shown.endswith(f"... and {2 * MAX_LINE_BYTES + 1} more bytes")
    assert lines[1]["event"] == "next"


def test_a_line_being_written_is_left_and_a_log_that_began_anew_is_read_anew(
    tmp_path: Path,
) -> None:
    log = tmp_path / "n0-worker.log"
    log.write_bytes(b"one\nhalf of a li")
    reader = LogReader([tmp_path])
    assert [line["event"] for line in reader.read()] == ["one"]
    log.write_bytes(b"one\nhalf of a line\n")
    assert [line["event"] for line in reader.read()] == ["half of a line"]
    log.write_bytes(b"anew\n")
    assert [line["event"] for line in reader.read()] == ["anew"]


def test_a_log_that_cannot_be_read_is_named_once_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "n1-worker.log").mkdir()
    (tmp_path / "n0-worker.log").write_text("fine\n")
    reader = LogReader([tmp_path])
    assert [(line["file"], line["event"]) for line in reader.read()] == [
        ("n0-worker", "fine"),
        ("n1-worker", "this file cannot be read: Is a directory"),
    ]
    assert reader.read() == []


def test_the_lines_before_a_rotation_come_first_and_none_is_shown_twice(tmp_path: Path) -> None:
    log, older = tmp_path / "n0w0.log", tmp_path / "n0w0.log.1"

    def write(path: Path, text: str) -> None:
        with path.open("a") as file:
            file.write(text + "\n")

    def shown(reader: LogReader) -> list[str]:
        return [line["event"] for line in reader.read()]

    write(older, "one")
    write(log, "two")
    reader = LogReader([tmp_path])
    assert shown(reader) == ["one", "two"]
    write(log, "three")
    log.replace(older)
    write(log, "four")
    assert shown(reader) == ["three", "four"]
    write(log, "five")
    assert shown(reader) == ["five"]
    assert shown(LogReader([tmp_path])) == ["one", "two", "three", "four", "five"][1:]


@pytest.mark.parametrize("num_new", [1, 50])
def test_a_log_that_rotates_between_two_opens_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_new: int
) -> None:
    """The file without lines left to read was not there yet, and the new one is: of any length."""
    log, older = tmp_path / "n0-worker.log", tmp_path / "n0-worker.log.1"
    log.write_text("".join(f"before {n}\n" for n in range(10)))
    reader = LogReader([tmp_path])
    assert len(reader.read()) == 10
    asked: list[Path] = []

    def rotate_meanwhile(path: Path) -> Path:
        asked.append(path)
        if len(asked) > 1:
            return older
        with log.open("a") as file:
            file.write("the last one\n")
        log.rename(older)
        log.write_text("".join(f"after {n}\n" for n in range(num_new)))
        return tmp_path / "not-there-yet"

    monkeypatch.setattr("headway.console.folder.logs.rotated", rotate_meanwhile)
    shown = [line["event"] for line in reader.read()]
    assert shown == ["the last one", *(f"after {n}" for n in range(num_new))]
    assert reader.read() == []


def test_a_log_that_another_file_has_replaced_is_shown_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "n0-worker.log"
    log.write_text("one\n")
    reader = LogReader([tmp_path])
    assert len(reader.read()) == 1
    fresh = tmp_path / "fresh"
    fresh.write_text("two\nthree\n")
    fresh.rename(log)
    assert [line["event"] for line in reader.read()] == ["two", "three"]
