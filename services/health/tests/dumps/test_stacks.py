"""Stacks of py-spy and of faulthandler, and which processes are at the same place."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from headway.health.dumps.frames import Frame
from headway.health.dumps.stacks import group_equal, read_stacks

WAITS = """\
Process 48{rank}: /usr/bin/python3 -u train.py --config base.yaml
Python v3.11.9 (/usr/bin/python3.11)

Thread 48{rank} (idle): "MainThread"
    synchronize (torch/cuda/streams.py:{line})
    item (torch/_tensor.py:1203)
    train_step (trainer/loop.py:{own})
    <module> (train.py:121)
Thread 49{rank} (active+gil): "pt_nccl_watchdg"
"""
READS = """\
Process 4805: /usr/bin/python3 -u train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 0x7F12AB00 (idle): "pt_data_worker"
    poll (selectors.py:415)
Thread 4805 (active): "MainThread"
    read (shards.py:88)
        Arguments:
            self: <Shards at 0x7f12>
            path: "/mnt/data/a (1).bin"
        Locals:
            handle: open (x)
    __getitem__ (shards.py:160)
    fetch (torch/utils/data/_utils/fetch.py:52)
    0x7f0a (libc.so.6)
    <module> (train.py:121)
"""


def test_the_main_thread_is_found_among_others() -> None:
    (stack,) = read_stacks(READS, "stacks/rank_5.txt")
    assert (stack.pid, stack.rank) == (4805, 5)
    assert stack.main is not None and stack.main.state == "active"
    assert [frame.function for frame in stack.main.frames] == [
        "read", "__getitem__", "fetch", "0x7f0a", "<module>",
    ]  # fmt: skip
    assert str(stack.where) == "read (shards.py:88)"


def test_equal_stacks_are_one_group_and_the_odd_ones_come_first() -> None:
    texts = {rank: WAITS.format(rank=rank, line=200 + rank, own=214) for rank in (0, 1, 2, 6)}
    texts[5] = READS
    stacks = [one for rank, text in texts.items() for one in read_stacks(text, f"rank_{rank}.txt")]
    odd, rest = group_equal(stacks)
    assert (odd.ranks, rest.ranks) == ((5,), (0, 1, 2, 6))
    assert odd.members[0].where == Frame("read", "shards.py", 88)


def test_lines_of_the_users_own_code_tell_stacks_apart() -> None:
    one, other = (read_stacks(WAITS.format(rank=7, line=1, own=own))[0] for own in (214, 215))
    assert len(group_equal([one, other])) == 2


def test_a_dump_of_several_processes_has_each_of_them() -> None:
    stacks = read_stacks(WAITS.format(rank=1, line=1, own=2) + READS)
    assert [stack.pid for stack in stacks] == [481, 4805]


def test_what_faulthandler_writes_is_read(tmp_path: Path) -> None:
    """By Python itself, of two threads, with all of them and with the current one alone."""
    waits, may_end = threading.Event(), threading.Event()

    def parked() -> None:
        waits.set()
        may_end.wait(60)

    thread = threading.Thread(target=parked)
    thread.start()
    assert waits.wait(60)
    try:
        path = tmp_path / "rank_3.txt"
        with path.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        (stack,) = read_stacks(path.read_text(), path.name)
    finally:
        may_end.set()
        thread.join()
    assert stack.rank == 3
    assert {frame.function for one in stack.threads for frame in one.frames} >= {"parked", "wait"}
    current = next(one for one in stack.threads if one.is_current)
    assert current.frames[0].function == "test_what_faulthandler_writes_is_read"
    assert current.frames[0].file == __file__


def test_a_process_that_died_has_its_reason() -> None:
    code = "import faulthandler\nfaulthandler.enable()\ndef f():\n  faulthandler._sigabrt()\nf()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    (stack,) = read_stacks(done.stderr)
    assert stack.reason == "Aborted"
    assert stack.main is not None and [f.function for f in stack.main.frames] == ["f", "<module>"]


def test_py_spys_json_is_read() -> None:
    frame = {"name": "read", "filename": "/w/shards.py", "short_filename": "shards.py", "line": 88}
    thread = {
        "pid": 17, "thread_id": 1, "thread_name": "MainThread", "active": True, "owns_gil": True,
        "frames": [frame], "process_info": {"pid": 17, "command_line": "python train.py --rank 4"},
    }  # fmt: skip
    (stack,) = read_stacks(json.dumps([thread]))
    assert (stack.pid, stack.rank, str(stack.where)) == (17, 4, "read (shards.py:88)")
    assert stack.main is not None and stack.main.state == "active+gil"


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        ("train.py", False),
        ("trainer/loop.py", False),
        ("/work/trainer/loop.py", False),
        ("torch/cuda/streams.py", True),
        ("/venv/lib/python3.11/site-packages/torch/cuda/streams.py", True),
        ("/usr/lib/python3.11/threading.py", True),
        ("threading.py", True),
        ("concurrent/futures/thread.py", True),
        ("<frozen runpy>", True),
        ("libnccl.so.2", True),
        ("", True),
    ],
)
def test_the_users_own_code_is_told_from_libraries(file: str, is_library: bool) -> None:
    assert Frame("f", file, 1).is_library is is_library


@pytest.mark.parametrize(
    "text", ["", "no stack", "Thread 1 (idle)", "[", "[]", '[{"frames": 3}]', "{}"]
)
def test_text_without_a_stack_gives_no_frames(text: str) -> None:
    assert [frame for stack in read_stacks(text) for t in stack.threads for frame in t.frames] == []
    assert len(group_equal(read_stacks(text))) <= 1
