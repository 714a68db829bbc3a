"""``headway node start`` has a machine checked again whose check failed, and waits for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.errors import DeadlineError, HeadwayError, RemoteError
from headway.console.commands import nodes
from headway.console.commands.nodes import _comes_up
from headway.health.config import HealthConfig

FAILED = {1: "its check failed: shm: 3 MiB free"}


class PlayedRun:
    """A run whose driver gave node 1 up for its check; ``passes``: the next one does."""

    config = SimpleNamespace(health=HealthConfig())

    def __init__(self, *, passes: bool, unreachable: int = 0, refuses: bool = False) -> None:
        self.passes, self.unreachable, self.refuses = passes, unreachable, refuses
        self.commands: list[tuple[str, int]] = []
        self._looks_left = 3

    def status(self, **_: Any) -> SimpleNamespace:
        if self.unreachable:
            self.unreachable -= 1
            raise DeadlineError("no answer")
        if not self.commands:
            return SimpleNamespace(nodes={1: "lost"}, unused=FAILED, checking=())
        self._looks_left -= 1
        if self._looks_left > 0:
            return SimpleNamespace(nodes={1: "lost"}, unused=FAILED, checking=(1,))
        if self.passes:
            return SimpleNamespace(nodes={1: "spare"}, unused={}, checking=())
        return SimpleNamespace(nodes={1: "lost"}, unused=FAILED, checking=())

    def command(self, operation: str, *, node: int) -> int:
        if self.refuses:
            raise RemoteError("unknown operation")
        self.commands.append((operation, node))
        return 0


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "REPORT_S", 0.5)


@pytest.mark.parametrize("unreachable", [0, 2])
def test_a_failure_from_before_does_not_count_and_a_new_check_is_waited_for(
    unreachable: int,
) -> None:
    run: Any = PlayedRun(passes=True, unreachable=unreachable)
    assert _comes_up(run, 1)
    assert run.commands == [("check", 1)], "once"


def test_a_check_that_fails_again_is_told() -> None:
    run: Any = PlayedRun(passes=False)
    with pytest.raises(HeadwayError, match=r"is not used: its check failed: shm: 3 MiB free"):
        _comes_up(run, 1)
    assert run.commands == [("check", 1)]


def test_a_driver_that_takes_no_such_command_leaves_the_older_result() -> None:
    run: Any = PlayedRun(passes=True, refuses=True)
    with pytest.raises(HeadwayError, match="its check failed"):
        _comes_up(run, 1)
