"""No rank frees its groups while another may still use them."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest
from headway.common.plan.grid import Grid
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted

GRID = Grid(tp=2, pp=2)


def test_nobody_leaves_the_meeting_before_the_last_rank_has_come() -> None:
    left: SimpleQueue[str] = SimpleQueue()
    blocked = threading.Event()

    def member(groups: Groups) -> None:
        if groups.every_rank.rank == 2:
            assert not blocked.wait(0.2)
            left.put("the last one comes")
        groups.meet()
        left.put("left")

    over_gloo(GRID, member)
    assert [left.get() for _ in range(5)] == ["the last one comes", *["left"] * 4]


def test_an_abort_ends_the_wait_for_a_rank_that_never_comes() -> None:
    def member(groups: Groups) -> str:
        if groups.every_rank.rank == 1:
            return "never came"
        threading.Timer(0.1, groups.channels.abort).start()
        with pytest.raises(Aborted):
            groups.meet()
        return "aborted"

    assert sorted(over_gloo(GRID, member)) == ["aborted"] * 3 + ["never came"]


def test_a_store_that_is_gone_ends_the_meeting() -> None:
    """Rank 0 closes it once all have come, so its end says no less than its answer."""
    built, gone = (threading.Barrier(4, timeout=60) for _ in range(2))

    def member(groups: Groups) -> str:
        built.wait()  # until then others need the store
        if groups.every_rank.rank == 0:
            groups._held.clear()  # the server ends
        gone.wait()
        if groups.every_rank.rank > 0:
            groups.meet()
        return "left"

    assert over_gloo(GRID, member) == ["left"] * 4


def test_a_world_of_one_meets_nobody() -> None:
    Groups.alone().meet()
