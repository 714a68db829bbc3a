"""Which writes of a machine come after it, or only its driver, was replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headway.testkit.bed.writes import Write
from headway.testkit.machines.fencing import writes_after_fencing

DRIVER, STORE = (
    "python -m headway.controller driver --epoch 1",
    "python -m headway.ckpt_store serve",
)
SEEN = [Write(at, f"/s/{at}", 7, program) for at in (1.0, 3.0, 5.0, 7.0)
        for program in (DRIVER, STORE)]  # fmt: skip
ANEW = [(0.0, 1, "stepping", "{}"), (2.0, 2, "driver_started", '{"node": 1}')]


def _found(
    *events: tuple[float, int, str, str],
    begin: list[tuple[float, int, str, str]] = ANEW,
    leads: bool = False,
) -> list[str]:
    node: Any = SimpleNamespace(index=0)
    writes: Any = SimpleNamespace(of=lambda _: SEEN)
    found = writes_after_fencing([*begin, *events], writes, node, leads=leads)
    return [line.split(": ")[1] for line in found]


def test_only_the_former_driver_is_fenced_while_its_machine_takes_part() -> None:
    assert _found() == [f"/s/{at} by headway.controller driver" for at in (3.0, 5.0, 7.0)]


def test_a_lost_machine_is_fenced_until_it_returns() -> None:
    found = _found((4.0, 2, "node_lost", '{"node": 0}'), (6.0, 2, "node_returned", '{"node": 0}'))
    driver, store = "headway.controller driver", "headway.ckpt_store serve"
    assert found == [f"/s/3.0 by {driver}", f"/s/5.0 by {driver}", f"/s/5.0 by {store}"]


def test_a_driver_may_write_on_a_machine_that_was_given_up_only_if_it_still_leads() -> None:
    events = ((2.0, 1, "node_lost", '{"node": 0}'), (4.0, 1, "generation", "{}"))
    driver, store = "headway.controller driver", "headway.ckpt_store serve"
    of_store = [f"/s/{at} by {store}" for at in (5.0, 7.0)]
    assert _found(*events, begin=ANEW[:1], leads=True) == of_store
    of_both = [f"/s/{at} by {program}" for at in (5.0, 7.0) for program in (driver, store)]
    assert _found(*events, begin=ANEW[:1]) == of_both


def test_an_earlier_return_of_the_machine_does_not_count() -> None:
    before = [(0.0, 1, "node_returned", '{"node": 0}'), ANEW[1]]
    assert _found(begin=before) == _found()


def test_a_save_that_is_under_way_may_end_before_the_next_generation_is_recorded() -> None:
    lost, next_one = (4.0, 2, "node_lost", '{"node": 0}'), (6.0, 2, "generation", "{}")
    found = _found((3.5, 2, "generation", "{}"), lost, next_one)
    driver, store = "headway.controller driver", "headway.ckpt_store serve"
    assert found == [*(f"/s/{at} by {driver}" for at in (3.0, 5.0, 7.0)), f"/s/7.0 by {store}"]


def test_what_a_command_of_the_operator_writes_does_not_count() -> None:
    node: Any = SimpleNamespace(index=0)
    writes: Any = SimpleNamespace(of=lambda _: [Write(3.0, "/s/drained", 0, "")])
    assert writes_after_fencing(ANEW, writes, node) == ["1.00 s: /s/drained by it ended"]
    assert writes_after_fencing(ANEW, writes, node, apart_from=Path("/s/drained")) == []


def test_the_loss_of_another_machine_does_not_count() -> None:
    assert len(_found((4.0, 2, "node_lost", '{"node": 1}'))) == 3
