"""Which writes of a machine come after it, or only its driver, was replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headway.testkit.bed.writes import Write
from headway.testkit.machines.fencing import writes_after_fencing

DRIVER, STORE = "python -m headway.trainer driver --epoch 1", "python -m headway.ckpt_store serve"
SEEN = [Write(at, f"/s/{at}", 7, program) for at in (1.0, 3.0, 5.0, 7.0)
        for program in (DRIVER, STORE)]  # fmt: skip
ANEW = [(0.0, 1, "stepping", "{}"), (2.0, 2, "driver_started", '{"node": 1}')]


def _found(*events: tuple[float, int, str, str]) -> list[str]:
    node: Any = SimpleNamespace(index=0)
    writes: Any = SimpleNamespace(of=lambda _: SEEN)
    return [line.split(": ")[1] for line in writes_after_fencing([*ANEW, *events], writes, node)]


def test_only_the_former_driver_is_fenced_while_its_machine_takes_part() -> None:
    assert _found() == [f"/s/{at} by headway.trainer driver" for at in (3.0, 5.0, 7.0)]


def test_a_lost_machine_is_fenced_until_it_returns() -> None:
    found = _found((4.0, 2, "node_lost", '{"node": 0}'), (6.0, 2, "node_returned", '{"node": 0}'))
    driver, store = "headway.trainer driver", "headway.ckpt_store serve"
    assert found == [f"/s/3.0 by {driver}", f"/s/5.0 by {driver}", f"/s/5.0 by {store}"]


def test_the_loss_of_another_machine_does_not_count() -> None:
    assert len(_found((4.0, 2, "node_lost", '{"node": 1}'))) == 3
