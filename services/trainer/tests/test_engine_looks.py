"""The driver has lost inits started again, with an engine that fails for one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.common.errors import HeadwayError
from headway.trainer.control.engine_looks import EngineLooks
from headway.trainer.control.lines import MAX_ASKED


class _Machines:
    """Engine, cluster folder, lines and background thread in one; no init lives."""

    def __init__(self, *, bad: int, silent: list[int]) -> None:
        self.bad, self._silent = bad, silent
        self.started: list[int] = []
        self.noted: list[tuple[str, dict[str, Any]]] = []

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

    def start(
        self, kind: str, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]
    ) -> None:
        assert kind
        then(work(), None)


def _looks(machines: _Machines) -> EngineLooks:
    note = lambda event, fields: machines.noted.append((event, fields))  # noqa: E731
    return EngineLooks(*[machines] * 4, lambda _: None, note)  # type: ignore[arg-type, call-arg]


def test_a_node_whose_init_cannot_be_started_holds_up_no_other() -> None:
    machines = _Machines(bad=0, silent=[2])
    _looks(machines).for_orphans(range(4))
    assert machines.started == [1, 3], "and a silent one is the business of another look"
    assert machines.noted == [("init_restarted", {"node": node}) for node in (1, 3)]


def test_of_many_nodes_each_has_its_turn() -> None:
    machines = _Machines(bad=-1, silent=[])
    looks, nodes = _looks(machines), range(2 * MAX_ASKED + 1)
    for _ in range(3):
        looks.for_orphans(nodes)
    assert machines.started == list(nodes)
