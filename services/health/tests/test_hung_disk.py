"""A disk that does not answer costs its own figures and no beat."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import read_line, wait_until
from headway.health.client import verdicts_of
from headway.health.sources.host import DISK_STALE_S, FreeSpace
from headway.health.sources.log_thread import LogThread
from headway.testkit.played.health_bench import Bench, health_bench

HUNG_AGENT = """
import os, pathlib, sys
logs = pathlib.Path(sys.argv[sys.argv.index("--logs") + 1])
gate = logs.parent / "gate"

def wait_if_hung(path):
    # Opening a named pipe blocks, like any call into a mount whose server is gone.
    if not isinstance(path, int) and str(path).startswith(str(logs)) and gate.exists():
        gate.open().close()

def hung(call):
    def answer(path=".", *args, **more):
        wait_if_hung(path)
        return call(path, *args, **more)
    return answer

os.statvfs, os.scandir, os.stat = hung(os.statvfs), hung(os.scandir), hung(os.stat)
from headway.health.__main__ import main
sys.exit(main())
"""
"""The agent with system calls on its log folder that block while ``gate``, a
named pipe, is there."""


@pytest.fixture
def bench() -> Iterator[Bench]:
    with health_bench() as made:
        yield made


def let_go(gate: Path) -> None:
    """The mount answers again: new calls pass, and each waiting one gets its end of the pipe."""
    moved = gate.rename(gate.with_name("was-a-gate"))

    def waiting_calls_return() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: nobody waits
            os.close(os.open(moved, os.O_WRONLY | os.O_NONBLOCK))
            return False
        return True

    wait_until(waiting_calls_return, what="the waiting calls to return")


@pytest.mark.parametrize("from_the_start", [False, True])
def test_beats_go_on_while_the_disk_of_the_logs_hangs(bench: Bench, from_the_start: bool) -> None:
    gate = bench.root / "gate"
    bench.driver(), bench.monitor()
    if from_the_start:
        os.mkfifo(gate)
    bench.agent(program=HUNG_AGENT)
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        if not from_the_start:
            os.mkfifo(gate)
        bench.wait_for_beats(40)
        assert bench.verdicts == []
        child.kill()
        child.wait()
        bench.wait(lambda: bool(bench.verdicts), "the death, seen while the disk hangs")
        assert bench.kinds() == [("crash", 0, True)]
    let_go(gate)
    bench.wait_for_beats(10)
    (bench.root / "logs" / "late.log").write_text("step 9 loss: nan\n")
    bench.wait(
        lambda: "nan_loss" in [one.kind for one in verdicts_of(bench.root)],
        "a line after the disk has come back",
    )


def test_free_space_that_is_not_answered_for_becomes_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, answers = [100.0], threading.Semaphore(0)
    asked = os.statvfs

    def answer(path: Path) -> os.statvfs_result:
        answers.acquire()
        return asked(path)

    monkeypatch.setattr(os, "statvfs", answer)
    space = FreeSpace(tmp_path, lambda: now_s[0])
    assert space.newest() == -1, "not answered yet"
    answers.release()
    wait_until(lambda: space.newest() > 0, what="the first answer")
    now_s[0] += DISK_STALE_S + 1
    assert space.newest() == -1
    answers.release(100)
    space.close()


def test_log_lines_wait_in_the_files_while_nobody_takes_them() -> None:
    class Endless:
        num_polls = 0

        def poll(self, max_bytes: int) -> list[int]:
            assert max_bytes == 1 << 20
            self.num_polls += 1
            return list(range(600))

    tail = Endless()
    make: Callable[[], object] = lambda: tail  # noqa: E731
    logs = LogThread(make, 1 << 20, 0.001)  # type: ignore[arg-type]
    wait_until(lambda: tail.num_polls == 2, what="two polls of 600 lines")
    assert logs.take(5) == [0, 1, 2, 3, 4]
    assert tail.num_polls == 2
    logs.take(2000)
    wait_until(lambda: tail.num_polls > 2, what="a further poll")
    logs.close()
