"""When a worker takes its executor for silent: not for the time in which it did not run itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.worker import Abort, Acknowledged
from headway.common.wire.server import Server
from headway.testkit.wire import serving
from headway.trainer.worker import link
from headway.trainer.worker.link import LONGEST_GAP_S, Link, Silence

LIMIT_S = 10.0


class Executor:
    """Answers each beat of a worker, with one ``Abort`` more where it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(f"ipc://{folder}/e", {WorkerBeat: self._beat})
        self.num_beats = 0
        self.aborts: list[Abort] = []

    def _beat(self, message: Message, peer: bytes) -> None:
        del message
        self.num_beats += 1
        self.server.send(peer, Acknowledged(stored=(-1, -1), incarnation=1))
        while self.aborts:
            self.server.send(peer, self.aborts.pop())


@contextlib.contextmanager
def linked(endpoint: str, received: list[Message], silences: list[float]) -> Iterator[None]:
    beat = WorkerBeat(worker="n0w0", pid=1, start_ticks=1, status="idle")
    made = Link(endpoint, "n0w0", lambda: beat, received.append, silences.append)
    try:
        yield
    finally:
        made.close()


def wait_for_more(count: Callable[[], int], than: int | None = None) -> None:
    before = count() if than is None else than
    wait_until(lambda: count() > before, what="the next one")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which the link's clock is ahead: those in which it did not run."""
    ahead, real = [0.0], time.monotonic

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return real() + ahead[0]

    monkeypatch.setattr(link, "time", Clock)
    return ahead


def test_a_worker_that_was_frozen_does_not_take_its_executor_for_silent(
    clock: list[float], tmp_path: Path
) -> None:
    executor = Executor(tmp_path)
    received: list[Message] = []
    silences: list[float] = []
    with serving(executor.server), linked(executor.server.endpoint, received, silences):
        for stall in range(3):
            wait_for_more(lambda: executor.num_beats)
            executor.aborts.append(Abort(generation=stall))
            clock[0] += 3 * LIMIT_S
            wait_for_more(lambda: executor.num_beats)
            wait_for_more(lambda: len(received), than=stall)
    assert received == [Abort(generation=stall) for stall in range(3)]
    assert max(silences) < LIMIT_S


def test_an_executor_that_is_gone_is_silent_even_for_a_worker_that_stalls(
    clock: list[float], tmp_path: Path
) -> None:
    silences: list[float] = [0.0]
    with linked(f"ipc://{tmp_path}/nobody", [], silences):
        while max(silences) < 3 * LONGEST_GAP_S:
            clock[0] += LONGEST_GAP_S
            wait_for_more(lambda: len(silences))


def test_silence_counts_no_gap_in_full_and_ends_with_a_message() -> None:
    silence = Silence(100.0)
    assert silence.look(100.5, has_received=False) == 0.5
    assert silence.look(160.0, has_received=False) == 0.5 + LONGEST_GAP_S
    assert silence.look(160.5, has_received=True) == 0.0
    assert silence.look(161.0, has_received=False) == 0.5
