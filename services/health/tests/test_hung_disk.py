"""A disk that does not answer costs its own figures and no beat."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import read_line, wait_until
from headway.common.wire.messages.health import Finding
from headway.health.client import verdicts_of
from headway.health.sources.host import DISK_STALE_S, FreeSpace
from headway.health.sources.source_thread import SourceThread
from headway.testkit.played.health_bench import Bench, health_bench
from msgspec import structs

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


class Endless:
    """A source that always has 600 findings more."""

    num_reads = 0

    def read(self) -> list[Finding]:
        self.num_reads += 1
        first = self.num_reads * 600
        return [line_of(first + number) for number in range(600)]

    def close(self) -> None:
        pass


def line_of(offset: int) -> Finding:
    return Finding(rule="nan_loss", source="rank", file="a.log", offset=offset, name=str(offset))


def hung(busy_s: float) -> Finding:
    return Finding(rule="source_hung", source="host", line=f"{busy_s > 0}")


def test_log_lines_wait_in_the_files_while_nobody_takes_them() -> None:
    source = Endless()
    logs = SourceThread("logs", lambda: source, 0.001, 60.0, hung)
    wait_until(lambda: source.num_reads == 2, what="two readings of 600 lines")
    assert [one.offset for one in logs.take(5)] == [600, 601, 602, 603, 604]
    assert source.num_reads == 2
    logs.take(2000)
    wait_until(lambda: source.num_reads > 2, what="a further reading")
    logs.close()


def test_a_reading_that_hangs_is_one_finding_and_one_more_if_it_hangs_again() -> None:
    gates = [threading.Event(), threading.Event()]

    class Hangs(Endless):
        def read(self) -> list[Finding]:
            self.num_reads += 1
            gates[min(self.num_reads - 1, 1)].wait()
            return [line_of(self.num_reads)]

    source = Hangs()
    thread = SourceThread("nics", lambda: source, 0.0, 0.05, hung)
    found: list[Finding] = []

    def has_found(rule: str, count: int) -> bool:
        found.extend(thread.take(8))
        return [one.rule for one in found].count(rule) == count

    wait_until(lambda: has_found("source_hung", 1), what="the reading is reported as hung")
    assert [one.rule for one in thread.take(8)] == [] and source.num_reads == 1
    gates[0].set()
    wait_until(lambda: has_found("source_hung", 2), what="the next one hangs too")
    assert [one.rule for one in found] == ["source_hung", "nan_loss", "source_hung"]
    gates[1].set()
    thread.close()


def test_a_reading_that_still_hangs_is_reported_again() -> None:
    gate = threading.Event()

    class Hangs(Endless):
        def read(self) -> list[Finding]:
            gate.wait()
            return []

    thread = SourceThread("nics", Hangs, 0.0, 0.05, hung, again_s=0.05)
    found: list[Finding] = []
    wait_until(lambda: found.extend(thread.take(8)) or len(found) == 3, what="three reports")
    assert {one.rule for one in found} == {"source_hung"}
    gate.set()
    thread.close()


def test_findings_that_differ_only_in_their_place_are_sent_as_one() -> None:
    class Storm(Endless):
        def read(self) -> list[Finding]:
            self.num_reads += 1
            return [structs.replace(line_of(n), name="eth0") for n in range(500)]

    source = Storm()
    thread = SourceThread("net", lambda: source, 60.0, 60.0, hung)
    thread.await_first()
    wait_until(lambda: source.num_reads == 1, what="a reading")
    taken: list[Finding] = []
    wait_until(lambda: bool(taken.extend(thread.take(8)) or taken), what="what it found")
    (one,) = taken
    assert (one.count, one.offset) == (500, 0) and one.age_s >= 0
    thread.close()
