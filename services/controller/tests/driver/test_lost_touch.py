"""A driver that most nodes do not reach lets another one lead: which share of them is most."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Any

import pytest
from headway.common.decide import Failed
from headway.common.wire.messages.driver import NodeBeat
from headway.controller.decisions.events import RestartNode, VerdictReceived
from headway.controller.driver import connections as lines
from headway.controller.driver.clocks import RunClock
from headway.controller.driver.connections import Connections
from headway.testkit.simulation.by_hand import Hand
from headway.trainer.config import RecoveryConfig

FOR_S, START_S = 4.0, 15.0
LONG_S = 60.0
CARRIERS = {0, 1}


class Driver:
    """Its lines to so many nodes, its own included; 0 and 1 carry ranks."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, nodes: int, *, is_new: bool = False
    ) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lines.time, "monotonic", lambda: self.now)
        how: dict[str, Any] = {"nodes": nodes, "limits": RecoveryConfig()}
        self.hand = Hand(**how, generation=3) if is_new else Hand(**how).run()
        unused: Any = None
        self.lines = Connections(unused, self.hand.state, unused, RunClock(), "r", home=0)

    def pass_time(self, seconds: float, reporting: Collection[int]) -> bool:
        """Only these nodes beat meanwhile, twice a second; whether touch was lost then."""
        is_lost = False
        self.hand.silent = self.hand.workers.keys() - set(reporting)
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for node in reporting:
                self.lines.received(NodeBeat(node=node, pid=1, incarnation=1), b"peer")
            if set(reporting) >= CARRIERS:
                self.hand.step += 1
            for action in self.hand.wait(0.5):
                if isinstance(action, RestartNode):
                    self.hand.send(Failed(action, "it cannot be reached"))
            is_lost = is_lost or self.lines.is_cut_off(FOR_S, START_S)
        return is_lost

    def statuses(self, nodes: Iterable[int]) -> set[str]:
        return {self.hand.state.status_of(node) for node in nodes}


@pytest.mark.parametrize(
    ("nodes", "reporting", "is_lost"),
    [
        (2, {1}, False),  # of two neither is the greater part
        (3, {0}, True),
        (3, {1, 2}, False),
        (4, {0}, True),
        (4, {0, 2}, True),  # the other half has as much of the run
        (4, {0, 1}, False),  # the other half has nothing of it
        (4, {2, 3}, True),
        (4, {1, 2, 3}, False),
        (5, {1, 2}, True),
        (5, {0, 1}, False),
        (5, {2, 3, 4}, False),
        (5, {0, 1, 2, 3, 4}, False),
    ],
)
def test_at_most_half_of_the_nodes_is_too_few_without_all_ranks(
    monkeypatch: pytest.MonkeyPatch, nodes: int, reporting: set[int], is_lost: bool
) -> None:
    driver = Driver(monkeypatch, nodes)
    assert not driver.pass_time(START_S + 1.0, range(nodes))
    assert not driver.pass_time(FOR_S - 1.0, reporting), "too soon"
    assert driver.pass_time(1.5, reporting) == is_lost


def test_a_new_driver_is_given_time_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, 4)
    assert not driver.pass_time(START_S - 1.0, {0})
    assert driver.pass_time(2.0, {0})


def test_nodes_that_were_given_up_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, 4)
    assert not driver.pass_time(START_S + 1.0, range(4))
    driver.hand.send(VerdictReceived("v", 1, "xid", "replace_node", node=1))
    driver.hand.send(VerdictReceived("w", 1, "xid", "replace_node", node=3))
    assert driver.statuses({1, 3}) == {"lost"}
    assert not driver.pass_time(FOR_S + 1.0, {0}), "of two neither is the greater part"


def test_spares_without_power_do_not_make_drivers_resign(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given up, and count no longer when a node with ranks falls silent later."""
    driver = Driver(monkeypatch, 6)
    assert not driver.pass_time(LONG_S, {0, 1, 2})
    assert driver.statuses({3, 4, 5}) == {"lost"}
    assert not driver.pass_time(FOR_S + 1.0, {0, 2}), "two of three"
    driver.hand.gather()
    assert driver.statuses({3, 4, 5}) == {"spare"}, "they return by a beat"


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_of_two_sides_one_with_most_nodes_or_all_ranks_keeps_the_driver(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """It decides before it gives up anybody, which would change what most nodes are."""
    everybody = set(range(nodes))
    for size in range(1, nodes):
        for side in map(set, combinations(range(nodes), size)):
            driver, other = Driver(monkeypatch, nodes), everybody - side
            assert not driver.pass_time(START_S + 1.0, everybody)
            assert driver.pass_time(FOR_S + 1.0, side) != _may_lead(side, nodes), f"{side}"
            assert "lost" not in driver.statuses(everybody)
            are_apart = len(side) == len(other) and len(side & CARRIERS) == 1
            assert _may_lead(side, nodes) or _may_lead(other, nodes) or are_apart


def _may_lead(side: set[int], nodes: int) -> bool:
    return 2 * len(side) > nodes or side >= CARRIERS


def test_a_new_driver_without_all_ranks_counts_every_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut off, and they well."""
    driver = Driver(monkeypatch, 6, is_new=True)
    assert driver.pass_time(LONG_S, {0})
    assert driver.statuses({1, 2, 3, 4, 5}) == {"silent"}
