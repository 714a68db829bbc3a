"""`headway stop` and its like: asked once on a terminal, clean while the run moves,
else by force."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from headway.common.errors import DeadlineError
from headway.common.wire.messages.driver import Status
from headway.console.cli import main
from headway.console.lifecycle import ending
from headway.console.lifecycle.ending import end
from headway.console.testing import FakeRun

Call = Callable[..., tuple[int, str, str]]
HEADWAY = (sys.executable, "-m", "headway.console")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout, stderr) of one command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def _on_terminal(answer: str, *words: str) -> tuple[int, str]:
    """Exit code and output of a command at a terminal, with ``answer`` typed in."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([*HEADWAY, *words], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, answer.encode())
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # the terminal closes with its last process
        pass
    os.close(ours)
    return child.wait(30), said.decode().replace("\r\n", "\n")


def _end_when_asked(fake: FakeRun) -> threading.Thread:
    def ending() -> None:
        deadline = time.monotonic() + 30.0
        while not any(command.operation == "stop" for command in fake.commands):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        fake.finish("stopped")

    thread = threading.Thread(target=ending)
    thread.start()
    return thread


QUESTIONS = {
    ("stop", "fake", "--no-wait"): "stop run fake? [y/N]",
    ("evict", "fake", "0"): "take node 0 out of run fake for good? [y/N]",
    ("inject", "fake", "kill", "--rank", "1"): "inject kill into the worker of rank 1 of run fake?",
}


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_a_terminal_is_asked_once_and_no_is_the_default(
    words: tuple[str, ...], fake: FakeRun
) -> None:
    where = ("--runs-dir", str(fake.folder.path.parent))
    code, said = _on_terminal("\n", *words, *where)
    assert code == 1
    assert said.count(QUESTIONS[words]) == 1 and "nothing was done" in said
    assert fake.commands == []
    code, said = _on_terminal("y\n", *words, *where)
    assert code == 0 and [command.operation for command in fake.commands] == [words[0]]
    code, said = _on_terminal("", *words, "--yes", *where)
    assert code == 0 and "[y/N]" not in said


def test_removing_a_cluster_asks_at_a_terminal(fake: FakeRun) -> None:
    folder = str(fake.cluster.path)
    for verb, question in (("drain", "stop fake on"), ("remove", "stop all nodes of")):
        code, said = _on_terminal("n\n", "cluster", verb, folder)
        assert code == 1 and said.count(question) == 1, said
    assert fake.cluster.exists and fake.commands == []


def test_without_a_terminal_nothing_is_asked(fake: FakeRun) -> None:
    done = subprocess.run(
        [*HEADWAY, "stop", "fake", "--no-wait", "--runs-dir", str(fake.folder.path.parent)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "[y/N]" not in done.stdout + done.stderr
    assert [command.operation for command in fake.commands] == ["stop"]


def test_a_stop_returns_when_the_run_has_ended(fake: FakeRun, call: Call) -> None:
    thread = _end_when_asked(fake)
    code, out, _ = call("stop", "fake", "--runs-dir", str(fake.folder.path.parent))
    thread.join()
    assert code == 0
    assert out.splitlines() == [
        "stopping run fake with a checkpoint",
        "run fake is stopped; there is no checkpoint",
    ]


def test_a_run_that_moves_is_waited_for_beyond_the_limit(fake: FakeRun) -> None:
    """Progress, not time, counts."""
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "stopping" in line:
            threading.Thread(target=slowly).start()

    def slowly() -> None:
        for _ in range(6):
            fake.advance(1)
            time.sleep(0.4)
        fake.finish("stopped")

    ended = end(fake.run, limit_s=1.5, report=report)
    assert (ended.outcome, ended.reason) == ("stopped", "")


def test_a_run_that_accepts_the_stop_and_does_not_move_is_ended_by_force(
    fake: FakeRun, call: Call
) -> None:
    fake.waiting = "rank 1 does not leave"
    where = ("--runs-dir", str(fake.folder.path.parent))
    code, out, err = call("stop", "fake", "--limit", "0.5", "--json", *where)
    reply = json.loads(out)
    assert code == 3 and reply["reason"].startswith("it did not stop: no progress for 0.5 s")
    assert "rank 1 does not leave" in reply["reason"]
    assert "by force" in err
    assert not (fake.cluster.path / "nodes" / "0.run").exists(), "the node is free again"


def test_now_asks_nobody(fake: FakeRun, call: Call) -> None:
    code, out, _ = call("stop", "fake", "--now", "--runs-dir", str(fake.folder.path.parent))
    assert code == 0 and "killed immediately (--now)" in out
    assert fake.commands == []


def test_a_run_of_which_nothing_is_left_is_refused(fake: FakeRun, call: Call) -> None:
    fake.finish("stopped")
    code, _, err = call("stop", "fake", "--runs-dir", str(fake.folder.path.parent))
    assert code == 2 and "run fake is stopped, not live" in err


def test_a_drained_cluster_has_stopped_its_runs(fake: FakeRun, call: Call) -> None:
    thread = _end_when_asked(fake)
    code, out, _ = call("cluster", "drain", str(fake.cluster.path))
    thread.join()
    assert code == 0 and [command.operation for command in fake.commands] == ["stop"]
    assert "run fake is stopped" in out
    assert call("cluster", "drain", str(fake.cluster.path)) == (0, "", ""), "nothing is carried"


def test_draining_ends_a_stuck_run_at_its_limit(fake: FakeRun, call: Call) -> None:
    code, out, _ = call("cluster", "drain", str(fake.cluster.path), "--limit", "0.1")
    assert code == 0 and "by force" in out


class Stuck:
    """A run on a clock of its own: what the driver is asked takes all the time that it may take."""

    def __init__(self, fake: FakeRun, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.bytes, self.accepts, self.step = 1000.0, 0, False, -1
        self.has_ended = False
        self.growth = lambda: 1
        patch.setattr(ending.time, "monotonic", lambda: self.now_s)
        patch.setattr(ending.time, "sleep", self._pass)
        patch.setattr(ending, "_remains", lambda _run: not self.has_ended)
        patch.setattr(ending, "bytes_below", self._grow)
        self.run = fake.run
        patch.setattr(self.run, "send", self._send)
        patch.setattr(self.run, "status", self._status)

    def stop(self, limit_s: float) -> str:
        """Why the run has to be ended by force; and never much later than the limit."""
        return ending._stop(self.run, limit_s, lambda _line: None)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < 10_000.0, "the stop does not end"

    def _grow(self, _folder: object) -> int:
        self.bytes += self.growth()
        return self.bytes

    def _send(self, _command: object, *, timeout_s: float) -> int:
        if not self.accepts:
            self._pass(timeout_s)
            raise DeadlineError("no answer")
        return 1

    def _status(self, timeout_s: float = 5.0, **_: object) -> Status:
        if self.step < 0:
            self._pass(timeout_s)
            raise DeadlineError("no answer")
        return Status(
            name="fake", phase="running", epoch=1, generation=0, step=self.step, steps=40,
            paused=False, commands=1, applied=0, ranks=(), nodes={}, services={},
        )  # fmt: skip


@pytest.fixture
def stuck(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    return Stuck(fake, monkeypatch)


def test_checkpoints_that_go_on_without_a_driver_do_not_put_off_the_limit(stuck: Stuck) -> None:
    """Its executor and driver are frozen; ranks and store work on."""
    assert stuck.stop(3.0) == "no driver has answered for 3 s"
    assert stuck.now_s - 1000.0 < 3.0 + ending.STATUS_LIMIT_S + 2 * ending.LOOK_S


def test_a_driver_that_freezes_after_the_stop_is_not_waited_for(stuck: Stuck) -> None:
    stuck.accepts = True
    assert stuck.stop(3.0) == "no driver has answered for 3 s"
    assert stuck.now_s - 1000.0 < 3.0 + ending.STATUS_LIMIT_S + 2 * ending.LOOK_S


def test_a_run_that_accepts_the_stop_and_trains_on_is_ended(stuck: Stuck) -> None:
    stuck.accepts, stuck.step = True, 0

    def train() -> int:
        stuck.step += 1
        return 1

    stuck.growth = train
    patience = ending.MAX_STEPS * ending.LOOK_S
    assert "it trains on, at step 2" in stuck.stop(3.0)
    assert stuck.now_s - 1000.0 < patience + 3.0 + 4 * ending.LOOK_S


def test_a_checkpoint_that_is_written_for_long_is_waited_for(stuck: Stuck) -> None:
    stuck.accepts, stuck.step = True, 7

    def write() -> int:
        stuck.has_ended = stuck.now_s > 1030.0
        return 1 << 20

    stuck.growth = write
    assert stuck.stop(3.0) == "" and stuck.now_s > 1030.0
