"""Machines that were lost, the orders for others in their place, and how many a day allows.

All times are those of the driver's own clock plus the wall-clock time at which it began, so that a
successor can use them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

AGAIN_S = (60.0, 300.0, 900.0)
"""Pauses after the first, second and third failure of an order; after the fourth it is given up."""
DAY_S = 86400.0

OrderState = Literal["asked", "delivered", "failed", "given up"]
"""``asked``: the engine works on it. ``delivered``: the engine has succeeded, and the other machine
has not reported yet. ``failed``: it is asked again after a pause."""
KeptOrder = tuple[int, OrderState, str, str, int, float, float]
"""(node, state, reason, error, tries, when it was first ordered, when it is tried again)."""


@dataclass(slots=True)
class MachineOrder:
    """Another machine for a node."""

    reason: str
    """Why the one before is given up."""
    since: float
    """When it was first ordered."""
    state: OrderState = "asked"
    at: float = 0.0
    """Since when it is in that state."""
    tries: int = 1
    number: int = 0
    """Counts the tries of this driver: answers to older ones do not count."""
    exclusion: str = ""
    """What kept the node out of the run before; it does so again once a try has failed."""
    again_at: float = math.inf
    error: str = ""
    """Why the newest try that was answered has failed."""


class MachineOrders:
    """What is known of lost machines and of those that are to take their places.

    Args:
        now: the time at which the driver begins.
        kept: orders of the driver before. An order that was under way counts as a failed try.
        begun: when machines were ordered within the last day.
        notes: node -> what remains to be said of a machine that was replaced.
        leaving: nodes whose machines somebody else takes care of.
    """

    def __init__(
        self,
        now: float = 0.0,
        *,
        kept: Iterable[KeptOrder] = (),
        begun: Iterable[float] = (),
        notes: Iterable[tuple[int, str]] = (),
        leaving: Iterable[int] = (),
    ) -> None:
        self.lost: dict[int, tuple[float, str]] = {}
        """Lost node -> since when, and why."""
        self.orders: dict[int, MachineOrder] = {}
        self.refused: dict[int, None] = {}
        """Nodes for which none was ordered since the day's number was used up."""
        self.notes, self.leaving = dict(notes), dict.fromkeys(leaving)
        self._begun, self._number = list(begun), 0
        for node, state, reason, error, tries, since, again_at in kept:
            order = MachineOrder(reason, since, state, now, tries, again_at=again_at, error=error)
            self.orders[node] = order
            if state == "asked":
                self.fail(node, "the driver that had ordered it has ended", now)
            elif state == "given up":
                order.again_at = math.inf

    # ---- nodes ----------------------------------------------------------------------------------
    def note_lost(self, node: int, why: str, now: float) -> None:
        """The node was given up."""
        self.lost[node] = (now, why)

    def note_returned(self, node: int) -> None:
        """The node is one of the run again, on whichever machine."""
        for table in (self.lost, self.orders, self.refused, self.leaving):
            table.pop(node, None)

    # ---- orders ---------------------------------------------------------------------------------
    def ask(self, node: int, reason: str, exclusion: str, now: float) -> MachineOrder:
        """Begin an order, or its next try."""
        order = self.orders.setdefault(node, MachineOrder(reason, now, tries=0))
        self._number += 1
        order.state, order.at, order.tries = "asked", now, order.tries + 1
        order.number, order.exclusion = self._number, exclusion or order.exclusion
        self._begun = [*(at for at in self._begun if now - at < DAY_S), now]
        self.refused.pop(node, None)
        self.notes.pop(node, None)
        return order

    def deliver(self, node: int, note: str, now: float) -> None:
        """The engine has succeeded."""
        order = self.orders[node]
        order.state, order.at = "delivered", now
        if note:
            self.notes[node] = note

    def fail(self, node: int, error: str, now: float) -> None:
        """The newest try has failed: another one follows after a pause, or none."""
        order = self.orders[node]
        order.error, order.at = error, now
        if order.tries > len(AGAIN_S):
            order.state, order.again_at = "given up", math.inf
        else:
            order.state, order.again_at = "failed", now + AGAIN_S[order.tries - 1]

    # ---- what is known --------------------------------------------------------------------------
    def num_today(self, now: float) -> int:
        """How many tries were begun within a day."""
        return sum(now - at < DAY_S for at in self._begun)

    def is_open(self, node: int, now: float, most: int) -> bool:
        """Whether another machine may still come: on order, or tried again within the limit."""
        order = self.orders.get(node)
        if order is None or order.state == "given up":
            return False
        return order.state in ("asked", "delivered") or self.num_today(now) < most

    @property
    def kept(self) -> tuple[KeptOrder, ...]:
        """The orders as a successor gets them; JSON has no infinity."""
        return tuple(
            (
                node,
                order.state,
                order.reason,
                order.error,
                order.tries,
                order.since,
                order.again_at if order.again_at < math.inf else 0.0,
            )
            for node, order in self.orders.items()
        )

    @property
    def begun(self) -> tuple[float, ...]:
        """When tries were begun, the newest last."""
        return tuple(self._begun)
