"""What the driver sends to executors beside the orders of its decisions."""

from __future__ import annotations

from typing import Any

from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat
from headway.common.wire.messages.executor import SaveSnapshots
from headway.controller.driver.clocks import RunClock
from headway.controller.driver.connections import Connections
from headway.testkit.simulation.by_hand import Hand


class Sent(list[tuple[bytes, Message]]):
    """In place of a server: keeps what is sent."""

    def send(self, peer: bytes, message: Message) -> bool:
        self.append((peer, message))
        return True


def test_an_executor_that_is_asked_to_end_makes_all_nodes_save_what_memory_holds() -> None:
    """The parts of one node alone are no checkpoint."""
    hand, sent, unused = Hand().run(), Sent(), None
    server: Any = sent
    reports: Any = unused
    lines = Connections(server, hand.state, reports, RunClock(), "r", home=0)
    lines.received(NodeBeat(node=0, pid=1, incarnation=1), b"zero")
    lines.received(NodeBeat(node=1, pid=1, incarnation=1), b"one")
    assert not sent
    lines.received(NodeBeat(node=1, pid=1, incarnation=1, is_ending=True), b"one")
    order = SaveSnapshots(run_id="r", epoch=hand.state.epoch)
    assert sent == [(b"zero", order), (b"one", order)]
