"""The driver has lost inits started again, with an engine that fails for one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.common.errors import HeadwayError
from headway.controller.driver.connections import MAX_ASKED
from headway.controller.driver.engine_probe import EngineProbe


class _Machines:
    """Engine, cluster folder, lines and background thread in one; no init lives."""

    def __init__(self, *, bad: int, silent: list[int], num_reported: int = 100) -> None:
        self.bad, self._silent = bad, silent
        self.nodes = set(range(num_reported))
        self.started: list[int] = []
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self.ended: list[int] = []

    def has_ended(self, node: int) -> bool:
        return node >= 0

    def living(self, node: int) -> int:
        return node

    def silent(self, limit_s: float) -> list[int]:
        return self._silent if limit_s else []

    def start_node(self, node: int) -> None:
        if node == self.bad:
            raise HeadwayError("a process does not end", remedy="look")
        self.started.append(node)

    def submit(
        self, kind: str, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]
    ) -> None:
        assert kind
        then(work(), None)


def _looks(machines: _Machines) -> EngineProbe:
    note = lambda event, fields: machines.noted.append((event, fields))  # noqa: E731
    handle = lambda event: machines.ended.append(event.node)  # noqa: E731
    return EngineProbe(*[machines] * 4, handle, note)  # type: ignore[arg-type, call-arg]


def test_a_node_whose_init_cannot_be_started_holds_up_no_other() -> None:
    machines = _Machines(bad=0, silent=[2])
    _looks(machines).find_orphans(range(4))
    assert machines.started == [1, 3], "and a silent one is the business of another look"
    assert machines.noted == [("init_restarted", {"node": node}) for node in (1, 3)]


def test_of_many_nodes_each_has_its_turn() -> None:
    machines = _Machines(bad=-1, silent=[])
    looks, nodes = _looks(machines), range(2 * MAX_ASKED + 1)
    for _ in range(3):
        looks.find_orphans(nodes)
    assert machines.started == list(nodes)


def test_a_new_driver_starts_no_init_of_a_node_that_has_not_reported_to_it() -> None:
    """All processes of a node were stopped, its driver's too: to replace its init at once would
    hide from the other look that the node has ended."""
    machines = _Machines(bad=-1, silent=[], num_reported=2)
    looks = _looks(machines)
    looks.find_orphans(range(3))
    assert machines.started == [0, 1] and machines.ended == []
    machines._silent = [2]
    looks.find_ended()
    assert machines.ended == [2]
