"""The driver has machines replaced on threads of its own, and never the one it runs on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from headway.common.decide import Failed
from headway.common.errors import HeadwayError
from headway.common.node.run_dir import RunDir
from headway.common.polling import wait_until
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.events import ReplaceMachine
from headway.controller.driver.actions import ActionRunner


class Engine:
    """Answers when it is asked to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int]] = []
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def replace_machine(self, node: int, reason: str) -> str:
        self.asked.append((node, reason, threading.get_ident()))
        assert self.may_answer.wait(20.0)
        if self.error is not None:
            raise self.error
        return f"gpu-{node} stays allocated"


class Bench:
    """A driver on node 0 that only carries out actions."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.handled, self.left = Engine(), list[Any](), list[bool]()
        self.background = ThreadPerKind()
        unused: Any = None
        self.runner = ActionRunner(
            node=0,
            run_dir=RunDir(folder),
            engine=self.engine,  # type: ignore[arg-type]
            background=self.background,
            journal=unused,
            connections=unused,
            joins=None,
            checkpoints=unused,
            handle=self.handled.append,
            note=unused,
            answer=unused,
            finish=unused,
            leave=lambda: self.left.append(True),
        )

    def answered(self) -> list[Any]:
        """What has come back once all threads have ended."""
        self.engine.may_answer.set()

        def is_over() -> bool:
            self.background.run_callbacks()
            return len(self.handled) == len(self.engine.asked)

        assert wait_until(is_over, 20.0)
        return self.handled


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_several_machines_are_replaced_at_once_while_the_driver_works_on(bench: Bench) -> None:
    orders = [ReplaceMachine(node, "lost", node) for node in (1, 2)]
    for order in orders:
        bench.runner.carry_out(order)
    assert wait_until(lambda: len(bench.engine.asked) == 2, 20.0)
    assert bench.handled == [] and threading.get_ident() not in {
        one for *_, one in bench.engine.asked
    }
    found = {one.action: one.note for one in bench.answered()}
    assert found == {order: f"gpu-{order.node} stays allocated" for order in orders}


def test_what_fails_comes_back_with_its_reason(bench: Bench) -> None:
    bench.engine.error = HeadwayError("gpu-1: no capacity", remedy="wait")
    order = ReplaceMachine(1, "lost", 1)
    bench.runner.carry_out(order)
    [failed] = bench.answered()
    assert isinstance(failed, Failed) and failed.action == order
    assert "no capacity" in failed.error and not failed.is_on_order


def test_the_machine_of_the_driver_is_left_to_the_next_driver(bench: Bench) -> None:
    order = ReplaceMachine(0, "lost", 1)
    bench.runner.carry_out(order)
    [failed] = bench.handled
    assert failed == Failed(order, "the driver runs there and leaves first")
    assert bench.left == [True] and bench.engine.asked == []
