"""A driver that most nodes do not reach lets another one lead: which share of them is most."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.wire.messages.driver import NodeBeat
from headway.testkit.trainer.by_hand import Hand
from headway.trainer.control import lines
from headway.trainer.control.clocks import RunClock
from headway.trainer.control.decisions.events import Judged
from headway.trainer.control.lines import Lines

FOR_S, START_S = 4.0, 15.0


class Driver:
    """Its lines to so many nodes, its own included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lines.time, "monotonic", lambda: self.now)
        self.hand = Hand(nodes=nodes).run()
        unused: Any = None
        self.lines = Lines(unused, self.hand.state, unused, RunClock(), "r", home=0)

    def pass_time(self, seconds: float, *reporting: int) -> bool:
        """Only these nodes beat meanwhile, twice a second; whether touch is lost then."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for node in reporting:
                self.lines.received(NodeBeat(node=node, pid=1, incarnation=1), b"peer")
        return self.lines.has_lost_touch(FOR_S, START_S)


@pytest.mark.parametrize(
    ("nodes", "reporting", "is_lost"),
    [
        (2, 1, False),  # of two neither is the greater part
        (3, 1, True),
        (3, 2, False),
        (4, 1, True),
        (4, 2, True),  # else both halves would lead
        (4, 3, False),
        (5, 2, True),
        (5, 3, False),
        (5, 5, False),
    ],
)
def test_at_most_half_of_the_nodes_is_too_few(
    monkeypatch: pytest.MonkeyPatch, nodes: int, reporting: int, is_lost: bool
) -> None:
    driver = Driver(monkeypatch, nodes)
    assert not driver.pass_time(START_S + 1.0, *range(nodes))
    assert not driver.pass_time(FOR_S - 1.0, *range(reporting)), "too soon"
    assert driver.pass_time(1.5, *range(reporting)) == is_lost


def test_a_new_driver_is_given_time_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, 4)
    assert not driver.pass_time(START_S - 1.0, 0)
    assert driver.pass_time(2.0, 0)


def test_nodes_that_were_given_up_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, 4)
    assert not driver.pass_time(START_S + 1.0, 0, 1, 2, 3)
    driver.hand.send(Judged("v", 1, "xid", "replace_node", node=3))
    assert driver.hand.state.status_of(3) == "lost"
    assert not driver.pass_time(FOR_S + 1.0, 0, 1), "two of three"
