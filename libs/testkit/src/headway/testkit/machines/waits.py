"""Waiting for what the driver of a run on machines reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headway.common.node.testing import wait_until
from headway.console.run import Run
from headway.testkit.journal import query
from headway.testkit.machines.machines import Machines

LIMIT_S = 150.0
EVERY_S = 0.3


def is_stepping(status: Mapping[str, Any], beyond: int, *, num_ranks: int = 2) -> bool:
    """Whether all ranks run and have made a step after ``beyond``."""
    steps = [rank["step"] for rank in status["ranks"] if rank["status"] == "running"]
    return len(steps) == num_ranks and min(steps) > beyond


def first_step(machines: Machines, name: str, generation: int) -> int:
    """Return the first step of a generation, counted from 0, once the journal has it."""
    run, first = Run(machines.runs / name), "SELECT MIN(step) FROM metrics WHERE generation = ?"

    def found() -> int | None:
        [(step,)] = query(run, first, (generation,))
        return None if step is None else int(step)

    wait_until(lambda: found() is not None, what="its first metrics", timeout_s=LIMIT_S)
    return found() or 0


def until(
    machines: Machines, name: str, condition: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    """Return the status of a run once ``condition`` holds of it.

    It has no ranks and nodes while no driver answers.

    Raises:
        TimeoutError: ``what`` and the last status.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = machines.status(name).get("status") or {"ranks": [], "nodes": {}}
        if condition(found):
            return dict(found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {LIMIT_S:g} s: {found}")
        time.sleep(EVERY_S)


def until_recovered(machines: Machines, name: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """The status once all ranks step in a later generation than that of the status ``before``."""
    return until(
        machines,
        name,
        lambda s: s.get("generation", 0) > before["generation"] and is_stepping(s, 0),
        "no recovery",
    )


def until_over(machines: Machines, name: str) -> dict[str, Any]:
    """What ``headway status`` reports of a run once it has ended.

    Raises:
        TimeoutError: it has not.
    """
    deadline = time.monotonic() + LIMIT_S
    while (found := machines.status(name))["phase"] not in ("finished", "stopped", "failed"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} has not ended within {LIMIT_S:g} s: {found}")
        time.sleep(EVERY_S)
    return found


def until_empty(machines: Machines) -> None:
    """Returns once no node runs any process.

    Raises:
        TimeoutError: the processes that are left.
    """
    deadline = time.monotonic() + LIMIT_S
    while left := {node.name: node.processes() for node in machines.bed.nodes if node.processes()}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running after {LIMIT_S:g} s: {left}")
        time.sleep(EVERY_S)
