"""Reductions over all ranks: the same bits everywhere, a barrier, and no group of all ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from headway.common.plan.grid import Grid
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.trainer.comm import groups as groups_module
from headway.trainer.comm.every_rank import EveryRank
from headway.trainer.comm.gloo import GlooComm
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.comm.store import StoreClient


class CountingClient(StoreClient):
    """Counts the requests of one rank."""

    counts: dict[int, int] = {}  # noqa: RUF012  # by thread

    def _ask(self, request: Any) -> Any:
        me = threading.get_ident()
        self.counts[me] = self.counts.get(me, 0) + 1
        return super()._ask(request)


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(groups_module, "StoreClient", CountingClient)
    CountingClient.counts.clear()
    yield


def test_sums_and_maxima_over_three_axes_are_the_same_bits_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches arithmetic that is left to the transport: groups of one axis may add in different
    orders over NCCL, so an all-reduce in each would leave ranks with different last bits."""
    monkeypatch.delattr(GlooComm, "all_reduce")
    grid = Grid(tp=2, dp=3, pp=2)
    generator = torch.Generator().manual_seed(3)
    scale = 10.0 ** torch.arange(-8, 8, dtype=torch.float64)
    mine = torch.randn((grid.world_size, 16), generator=generator, dtype=torch.float64) * scale

    def member(groups: Groups) -> tuple[bytes, bytes]:
        found = []
        for op in ("sum", "max"):
            values = mine[groups.every_rank.rank].clone()
            groups.every_rank.all_reduce(values, op).wait()  # type: ignore[arg-type]
            found.append(values.numpy().tobytes())
        return found[0], found[1]

    results = over_gloo(grid, member)
    assert len(set(results)) == 1, "ranks disagree"
    total = torch.frombuffer(bytearray(results[0][0]), dtype=torch.float64)
    assert torch.allclose(total, mine.sum(0), rtol=1e-12, atol=0.0)
    assert results[0][1] == mine.amax(0).numpy().tobytes()


def test_no_rank_is_through_before_the_last_one_has_begun() -> None:
    """NORM commits a snapshot on the strength of this."""
    grid = Grid(tp=2, dp=2, pp=2)
    begun, order = threading.Event(), SimpleQueue[str]()

    def member(groups: Groups) -> None:
        if groups.every_rank.rank == 5:
            assert not begun.wait(0.2)
            order.put("last begins")
        groups.every_rank.all_reduce(torch.zeros(1)).wait()
        order.put("through")

    over_gloo(grid, member)
    assert order.get() == "last begins"


def test_what_a_rank_asks_of_the_store_depends_on_its_axes_alone() -> None:
    """Catches a group whose connections grow with the world."""

    def requests(grid: Grid) -> int:
        CountingClient.counts.clear()
        over_gloo(grid, lambda _: None)
        assert len(CountingClient.counts) == grid.world_size
        return max(CountingClient.counts.values())

    by_axis = [requests(Grid(tp=2)), requests(Grid(dp=2)), requests(Grid(pp=2))]
    assert requests(Grid(tp=2, dp=2, pp=2)) == sum(by_axis)


def test_a_world_of_one_reduces_to_itself() -> None:
    values = torch.tensor([3.0])
    ticket = Groups.alone().every_rank.all_reduce(values)
    assert ticket.done()
    ticket.wait()
    assert values.item() == 3.0


def test_an_abort_between_two_axes_ends_the_reduction() -> None:
    class Fenced:
        rank, size = 0, 2

        def all_gather(self, *_: torch.Tensor) -> Any:
            raise Aborted

    ticket = EveryRank([Fenced()], 0, 2).all_reduce(torch.zeros(1))  # type: ignore[list-item]
    assert not ticket.done()
    with pytest.raises(Aborted):
        ticket.wait()
