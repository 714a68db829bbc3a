"""What becomes of the driver before: ended here by its pid, elsewhere through the engine."""

from __future__ import annotations

import dataclasses
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.process import ProcessId
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.driver.leadership import Leadership
from headway.launch.lease.base import Holder, SupersededError
from headway.launch.lease.file import FileLease
from headway.testkit.played.place import LIMIT_S
from structlog.testing import capture_logs


class Machines:
    """The part of an engine that ends a driver on another machine."""

    def __init__(self, *, is_sure: bool) -> None:
        self.is_sure = is_sure
        self.fenced: list[tuple[int, int]] = []

    def fence(self, node: int, epoch: int) -> bool:
        self.fenced.append((node, epoch))
        return self.is_sure


class Takeover:
    """The lease of a run whose driver, on node 1, was followed by one on node 2."""

    def __init__(self, folder: Path, former: Holder) -> None:
        self.lease, self.background = FileLease(folder), ThreadPerKind()
        assert self.lease.claim(0) == 1
        self.lease.publish(former)
        assert self.lease.claim(1) == 2
        self._folder = folder

    def lead(self, machines: Any, node: int = 2) -> Leadership:
        return Leadership(self._folder, node, 2, machines, self.background)

    def has_effect(self) -> bool:
        """Whether something was started in the background; waits for its end."""
        if not self.background.is_busy("end of the former driver"):
            return False
        assert select.select([self.background.done_fd], [], [], LIMIT_S)[0]
        self.background.run_callbacks()
        return True


ELSEWHERE = Holder(1, 1, 4_194_304, 1, "tcp://127.0.0.1:1", "key", space="another machine")


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_former_driver_on_another_machine_is_ended_through_the_engine(
    tmp_path: Path, is_sure: bool
) -> None:
    takeover, machines = Takeover(tmp_path, ELSEWHERE), Machines(is_sure=is_sure)
    with capture_logs() as logs:
        leadership = takeover.lead(machines)
        assert takeover.has_effect()
    assert machines.fenced == [(1, 2)], "its node, and the epoch that is older than this"
    assert leadership.silence(2.0)["former"] == 1
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == (
        [] if is_sure else ["the former driver may still run; its orders are refused"]
    )


@pytest.mark.parametrize("how", ["resigned", "own node"])
def test_a_driver_that_resigned_or_was_of_the_same_node_is_not_fenced_elsewhere(
    tmp_path: Path, how: str
) -> None:
    former = dataclasses.replace(ELSEWHERE, has_resigned=how == "resigned")
    takeover, machines = Takeover(tmp_path, former), Machines(is_sure=True)
    takeover.lead(machines, node=1 if how == "own node" else 2)
    assert not takeover.has_effect() and machines.fenced == []


def test_a_former_driver_here_has_ended_when_the_next_one_acts(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        former = ProcessId.of(child.pid)
        assert former is not None
        takeover = Takeover(tmp_path, Holder(1, 1, former.pid, former.start_ticks))
        leadership = takeover.lead(Machines(is_sure=True))
        assert former.is_terminating()
        assert leadership.silence(2.0)["former"] == 1, "its node may be frozen"


def test_the_node_of_a_driver_that_its_own_executor_replaced_is_well(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        former = ProcessId.of(child.pid)
        assert former is not None
        takeover = Takeover(tmp_path, Holder(1, 1, former.pid, former.start_ticks))
        assert takeover.lead(Machines(is_sure=True), node=1).silence(2.0) == {}


def test_whoever_was_overtaken_does_not_act(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path, ELSEWHERE)
    assert takeover.lease.claim(2) == 3
    machines = Machines(is_sure=True)
    with pytest.raises(SupersededError, match="epoch 2 is over: epoch 3 was claimed"):
        takeover.lead(machines)
    assert machines.fenced == []
