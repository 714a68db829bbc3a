"""A rank that may hang shows where it is in its program, or why it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from headway.common.node.process import ProcessId
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView
from headway.health.detectors.silence import evidence_of, find_hang
from headway.health.sources.stacks import AGAIN_S, ANSWER_S, StackSource

PROGRAM = """
import ctypes, sys
from pathlib import Path
from headway.common.node.stack_dump import answer_in

sleep = ctypes.PyDLL(None).sleep

def reads_a_shard():
    sleep(600)

answer_in(Path(sys.argv[1]))
print("up", flush=True)
reads_a_shard()
"""


@contextmanager
def rank(folder: Path) -> Iterator[WorkerSignals]:
    """A process that holds the interpreter's lock for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        known = ProcessId.of(process.pid)
        assert known is not None
        wchan = Path(f"/proc/{process.pid}/wchan")
        wait_until(lambda: "nanosleep" in wchan.read_text(), what="its sleep", timeout_s=30)
        try:
            yield WorkerSignals(
                rank=3, pid=known.pid, start_ticks=known.start_ticks, state="S", generation=0,
                head=9, step=3, step_s=0.1, num_steps=9, median_step_s=0.1, age_s=5.0,
                open_kind="DATA",
            )  # fmt: skip
        finally:
            process.kill()


def _whole_answer(source: StackSource, worker: WorkerSignals, folder: Path) -> Path:
    """The file with the rank's stack; it is written in pieces, and read meanwhile."""

    def is_whole() -> bool:
        is_known = "<module>" in source.read([worker])[3]
        return is_known and all(one.read_text().endswith("\n") for one in folder.glob("stacks-*"))

    wait_until(is_whole, what="an answer", timeout_s=30)
    [path] = folder.glob("stacks-*")
    return path


def test_a_rank_that_holds_the_lock_shows_its_place(tmp_path: Path) -> None:
    with rank(tmp_path) as worker:
        source = StackSource(tmp_path)
        place = "<string>:9 reads_a_shard < <string>:13 <module>"
        wait_until(lambda: source.read([worker])[3] == place, what="its place", timeout_s=30)


def test_it_is_asked_again_after_a_while_and_keeps_its_place_meanwhile(tmp_path: Path) -> None:
    now_s = [0.0]
    with rank(tmp_path) as worker:
        source = StackSource(tmp_path, clock_s=lambda: now_s[0])
        path = _whole_answer(source, worker, tmp_path)
        size = path.stat().st_size
        now_s[0] = AGAIN_S + 1.0
        assert "<module>" in source.read([worker])[3]
        wait_until(lambda: path.stat().st_size > size, what="a second answer", timeout_s=30)


def test_a_rank_that_moves_is_not_asked_again_at_each_beat(tmp_path: Path) -> None:
    now_s = [0.0]
    with rank(tmp_path) as worker:
        source = StackSource(tmp_path, clock_s=lambda: now_s[0])
        path = _whole_answer(source, worker, tmp_path)
        size = path.stat().st_size
        for head in range(10, 40):
            now_s[0] += 0.5
            moved = msgspec.structs.replace(worker, head=head)
            assert source.read([moved] if head % 3 else []) in ({3: ""}, {})
        assert path.stat().st_size == size
        now_s[0] += AGAIN_S
        source.read([msgspec.structs.replace(worker, head=99)])
        wait_until(lambda: path.stat().st_size > size, what="a second answer", timeout_s=30)


def test_one_that_is_stopped_is_shown_as_the_kernel_sees_it(tmp_path: Path) -> None:
    now_s = [0.0]
    with rank(tmp_path) as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        stopped = msgspec.structs.replace(worker, state="T")
        source = StackSource(tmp_path, clock_s=lambda: now_s[0])
        source.read([stopped])
        now_s[0] = ANSWER_S + 0.1
        assert source.read([stopped])[3].startswith("no answer; state T, in ")


def test_a_verdict_shows_the_culprits_place_and_groups_the_others() -> None:
    def view(number: int, waits: str, place: str) -> RankView:
        signals = WorkerSignals(
            rank=number, pid=number + 1, start_ticks=1, state="S", generation=0, head=9, step=8,
            step_s=0.1, num_steps=9, median_step_s=0.1, age_s=5.0, open_kind="FORWARD",
            waits=waits, place=place,  # type: ignore[arg-type]
        )  # fmt: skip
        return RankView(0, signals, beats_over=9)

    waiting = "gloo.py:40 wait < step.py:9 reduce"
    views = [view(rank, "others" if rank != 1 else "", waiting) for rank in range(3)]
    views[1].signals = msgspec.structs.replace(views[1].signals, place="shards.py:88 read")
    hang = find_hang(views, HealthConfig())
    assert hang is not None
    evidence = evidence_of(hang, hang.culprits[0], views, HealthConfig())
    rows = {one.name: one.value for one in evidence if one.source == "stack"}
    assert rows == {"where": "shards.py:88 read", "ranks 0, 2": waiting}
