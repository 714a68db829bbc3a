"""Processes rotate their own logs: no line is lost, whoever writes it, and nothing ends."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from headway.common.log_rotation import ENV_LOG_MIB, rotated
from headway.common.node.process import ProcessId, reap_children, spawn
from headway.common.node.testing import wait_until

LINES = 4000
WRITER = f"""
import os, sys, threading
from headway.common.log import get_logger, setup

setup("probe")

def through_the_logger(who):
    for number in range({LINES}):
        get_logger("part").info(f"line {{who}}-{{number}}.")

def past_it(who):  # as a C library does
    for number in range({LINES}):
        os.write(1, f"line {{who}}-{{number}}.\\n".encode())

work = [(through_the_logger, "a"), (past_it, "b"), (past_it, "c")]
threads = [threading.Thread(target=target, args=(who,)) for target, who in work]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("the last line", flush=True)
"""
PYTHON = [sys.executable, "-c"]


def start(code: str, log: Path, mib: float) -> ProcessId:
    return spawn([*PYTHON, code], log, {**os.environ, ENV_LOG_MIB: str(mib)})


def finish(*processes: ProcessId) -> None:
    for process in processes:
        wait_until(lambda one=process: not one.alive(), 60.0)
    reap_children()


def numbers(text: str) -> dict[str, list[int]]:
    """Writer -> the numbers of its lines, in the order of the log."""
    found: dict[str, list[int]] = {}
    for who, number in re.findall(r"line (\w+)-(\d+)\.", text):
        found.setdefault(who, []).append(int(number))
    return found


def both(log: Path) -> str:
    return rotated(log).read_text() + log.read_text()


def test_the_newest_lines_of_every_writer_are_there_without_a_gap(tmp_path: Path) -> None:
    log = tmp_path / "n0w0.log"
    finish(start(WRITER, log, mib=0.05))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n0w0.log", "n0w0.log.1"]
    assert log.read_text().endswith("the last line\n")
    assert log.stat().st_size < 200_000 < LINES * 150, "the log was rotated more than once"
    found = numbers(both(log))
    for lines in found.values():
        assert lines == list(range(lines[0], LINES))
    assert found["a"][0] > 0, "only one older file is kept"


def test_a_log_of_two_processes_is_renamed_by_one_of_them(tmp_path: Path) -> None:
    log = tmp_path / "faults.log"
    codes = [WRITER.replace("line {who}", f"line {one}{{who}}") for one in "xy"]
    finish(*(start(code, log, mib=0.5) for code in codes))
    found = numbers(both(log))
    assert found
    for lines in found.values():
        assert sorted(lines) == list(range(min(lines), LINES))


def test_a_log_that_cannot_be_rotated_grows(tmp_path: Path) -> None:
    log = tmp_path / "n0w0.log"
    rotated(log).mkdir()
    (rotated(log) / "full").touch()
    finish(start(WRITER, log, mib=0.05))
    found = numbers(log.read_text())
    assert {who: len(lines) for who, lines in found.items()} == dict.fromkeys("abc", LINES)
    assert log.read_text().endswith("the last line\n")


@pytest.mark.parametrize("limit", ["0", "", "much", "inf"])
def test_without_a_limit_a_log_is_never_rotated(tmp_path: Path, limit: str) -> None:
    log = tmp_path / "n0w0.log"
    finish(spawn([*PYTHON, WRITER], log, {**os.environ, ENV_LOG_MIB: limit}))
    assert not rotated(log).exists()
    assert len(numbers(log.read_text())["a"]) == LINES


def test_what_is_not_a_log_file_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    finish(start(WRITER, output, mib=0.05))
    assert os.listdir(tmp_path) == ["output.txt"]
    assert output.read_text().endswith("the last line\n")
