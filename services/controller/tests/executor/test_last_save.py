"""An executor that is asked to end has its store write what memory holds, and waits for that."""

from __future__ import annotations

from pathlib import Path

from headway.common.wire.messages.ckpt_store import (
    ArenaStatus,
    Flush,
    StoreStatus,
    StoreStatusReply,
)
from headway.common.wire.server import Server
from headway.controller.executor import last_save
from headway.controller.executor.last_save import LastSave
from headway.testkit.wire.server_thread import serving

LIMIT_S = 60.0


class Store:
    """Answers orders with what a script says: (is it saving, newest complete step)."""

    def __init__(self, *script: tuple[bool, int]) -> None:
        self.orders: list[bool] = []
        self._script = list(script)

    def answer(self, message: Flush | StoreStatus, _peer: bytes) -> StoreStatusReply:
        self.orders.append(isinstance(message, Flush) and message.newest)
        is_saving, complete = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        return StoreStatusReply(
            run_id="r",
            node=0,
            world_size=1,
            shm_dir="",
            checkpoints="",
            arenas=(ArenaStatus(rank=0, committed_step=7, durable_step=-1),),
            complete_step=complete,
            bytes_written=0,
            errors=0,
            is_saving=is_saving,
        )


def _order(store: Store, folder: Path, limit_s: float) -> None:
    endpoint = f"ipc://{folder}/store"
    with serving(Server(endpoint, {Flush: store.answer, StoreStatus: store.answer})):
        save = LastSave(endpoint, limit_s)
        save.join(LIMIT_S)
        assert not save.is_alive()


def test_it_lives_until_the_step_that_was_newest_is_durable(tmp_path: Path) -> None:
    store = Store((True, 3), (True, 3), (False, 8))
    _order(store, tmp_path, LIMIT_S)
    assert store.orders == [True, False, False]


def test_an_order_that_ranks_overtook_is_given_again(tmp_path: Path) -> None:
    store = Store((True, 3), (False, 3), (True, 3), (False, 9))
    _order(store, tmp_path, LIMIT_S)
    assert store.orders == [True, False, True, False]


def test_a_driver_s_order_is_given_and_not_waited_for(tmp_path: Path) -> None:
    store = Store((True, 3))
    _order(store, tmp_path, 0.0)
    assert store.orders == [True]


def test_a_store_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    save = LastSave(f"ipc://{tmp_path}/nobody")
    save.join(last_save.LIMIT_S)
    assert not save.is_alive()
