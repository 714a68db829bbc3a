"""The end of a run waits for its checkpoint store while that gets ahead; what is lost is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store import store_watch
from headway.common.node.arena import Arena
from headway.common.wire.messages.ckpt_store import ArenaStatus, StoreStatus, StoreStatusReply
from headway.common.wire.server import Server
from headway.testkit.trainer.sessions import arena_at, arena_of, one_rank
from headway.testkit.trainer.synthetic import synthetic
from headway.testkit.wire.server_thread import serving
from headway.trainer.comm.groups import Groups
from headway.trainer.session import commands as control_loop
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from headway.trainer.worker.rank import Rank
from structlog.testing import capture_logs

pytestmark = pytest.mark.usefixtures("one_thread")


def _end_beside(store_moved: Callable[[Arena], bool], folder: Path) -> tuple[Session, list[int]]:
    """Train 3 steps beside a store that still holds step 1; its part is ``store_moved``."""
    arena_path = folder / "arena"
    config = one_rank()
    session = Session(
        config,
        0,
        data_factory=synthetic(config, 0),
        open_arena=arena_at(arena_path),
        store_moved=lambda: store_moved(store),
    )
    session.join(Groups.alone())
    session.load("init")
    store = Arena.open(arena_path)
    session.run(StepHooks(), 1)
    assert [info.step for info in store.wanted()] == [1], "a run's end asks for a durable snapshot"
    session.run(StepHooks(), 3)
    session.leave()
    wanted = [info.step for info in store.wanted()]
    store.close()
    return session, wanted


def test_the_last_snapshot_waits_for_a_store_that_gets_ahead_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_loop, "STILL_ROUNDS", 4)
    monkeypatch.setattr(control_loop, "PAUSE_ROUND_S", 0.001)
    looks: list[int] = []

    def moved(store: Arena) -> bool:
        looks.append(1)
        if len(looks) == 30:
            store.release(store.wanted()[0])
        return len(looks) % 3 == 0

    session, wanted = _end_beside(moved, tmp_path)
    assert wanted == [3] and session.is_last_wanted


def test_a_store_that_stands_still_is_given_up_with_a_line_that_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_loop, "STILL_ROUNDS", 4)
    monkeypatch.setattr(control_loop, "PAUSE_ROUND_S", 0.001)
    looks: list[int] = []

    def still(_: Arena) -> bool:
        looks.append(1)
        return False

    with capture_logs() as logs:
        session, wanted = _end_beside(still, tmp_path)
    assert (len(looks), wanted, session.is_last_wanted) == (4, [1], False)
    (line,) = [line for line in logs if "not made durable" in line["event"]]
    assert line["step"] == 3


# ---- a rank and its node's store --------------------------------------------------------------
class Store:
    """Answers as a store does whose counter moves with every answer, or stands still at 7.

    With ``dies_every`` it is started again after so many answers, and counts from 0.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        moves: bool,
        done_after: int = 0,
        error: str = "",
        dies_every: int = 1 << 20,
    ) -> None:
        self._arena, self._moves, self._done_after = arena, moves, done_after
        self._error, self._dies_every = error, dies_every
        self.asked = 0

    def status(self, _message: StoreStatus, _peer: bytes) -> StoreStatusReply:
        self.asked += 1
        if self.asked == self._done_after:
            for info in self._arena.wanted():
                self._arena.release(info)
        is_durable = 0 < self._done_after <= self.asked and not self._error
        return StoreStatusReply(
            run_id=self._arena.run_id,
            node=0,
            world_size=1,
            shm_dir="",
            checkpoints="",
            arenas=(ArenaStatus(rank=0, committed_step=2, durable_step=2 if is_durable else 1),),
            complete_step=1,
            bytes_written=0,
            errors=0,
            last_error=self._error,
            progress=self.asked % self._dies_every if self._moves else 7,
        )


def _wait_for(rank: Rank, monkeypatch: pytest.MonkeyPatch, **store: Any) -> list[Any]:
    """Let a rank that ended after 2 steps wait for its store; returns the warnings."""
    monkeypatch.setattr(store_watch, "STILL_LIMIT_S", 0.5)
    monkeypatch.setattr(store_watch, "ASK_S", 0.05)
    session = rank._session
    session.load("init")
    arena = arena_of(session)
    arena.seal(arena.begin(2, 0), wanted=True)
    arena.commit(2)
    session._state.step, session.is_last_wanted = 2, True
    fake = Store(arena, **store)
    server = Server(rank._context.paths.endpoint("ckpt_store"), {StoreStatus: fake.status})
    with serving(server), capture_logs() as logs:
        rank._wait_for_store()
    return [line for line in logs if line["log_level"] == "warning"]


def test_a_rank_waits_for_its_last_checkpoint_as_long_as_the_store_gets_ahead(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    assert _wait_for(rank, monkeypatch, moves=True, done_after=25) == []
    assert time.monotonic() - began_s > 2 * store_watch.STILL_LIMIT_S
    assert not arena_of(rank._session).busy()


def test_a_rank_that_gives_its_store_up_says_which_step_is_lost_and_which_is_on_disk(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = _wait_for(rank, monkeypatch, moves=False)
    assert "not durable" in line["event"]
    assert (line["step"], line["durable_step"]) == (2, 1)
    assert line["checkpoints"] == str(rank._context.run_dir.checkpoints)


@pytest.mark.timeout(30)
def test_a_store_that_is_started_again_and_again_is_not_waited_for(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = _wait_for(rank, monkeypatch, moves=True, dies_every=3)
    assert "not durable" in line["event"] and line["step"] == 2


def test_a_rank_whose_store_could_not_write_the_last_step_says_why(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = _wait_for(rank, monkeypatch, moves=True, done_after=3, error="the disk is full")
    assert (line["step"], line["error"]) == (2, "the disk is full")
