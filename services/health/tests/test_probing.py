"""Peers are asked, and the kernel's tables read, only while a rank may hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.wire.messages.health import WorkerSignals
from headway.health.agent import AgentOptions, NodeWatch
from headway.health.config import HealthConfig
from headway.health.sources import connections, probes
from headway.testkit.beats import Timeline

PEER = "10.77.0.2"


class Counted:
    """What an agent does to find out about its ranks' peers."""

    num_tables = num_connects = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The kernel's tables and connects are counted instead of made."""
    found = Counted()

    def sockets_of(_pids: object) -> frozenset[int]:
        found.num_tables += 1
        return frozenset({7})

    def connections_of(_pids: object, _inodes: object) -> list[connections.Connection]:
        found.num_tables += 1
        return [connections.Connection(PEER, 0, 7)]

    def begin(_self: object, _address: str, _now_s: float) -> None:
        found.num_connects += 1

    monkeypatch.setattr(connections, "sockets_of", sockets_of)
    monkeypatch.setattr(connections, "_connections", connections_of)
    monkeypatch.setattr(probes.Probes, "_begin", begin)
    return found


def agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[WorkerSignals]
) -> NodeWatch:
    """An agent of a run over machines, whose ranks are what ``workers`` holds."""
    options = AgentOptions(
        "", tmp_path / "monitor.json", tmp_path, tmp_path, tmp_path, "0badcafe", 0,
        fabric_address="10.77.0.1",
    )  # fmt: skip
    watch = NodeWatch(options, HealthConfig())
    monkeypatch.setattr(watch._workers, "read", lambda: tuple(workers))
    return watch


def beats(watch: NodeWatch, workers: list[WorkerSignals], line: Timeline, until_s: float) -> None:
    now_s = 0.25
    while now_s < until_s:
        workers[:] = [line.sample(now_s)]
        watch.beat()
        now_s += 0.5
    watch.close()


@pytest.mark.parametrize("step_s", [0.3, 4.0, 10.0])
def test_a_healthy_run_asks_nobody_however_long_its_steps_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted, step_s: float
) -> None:
    """Within a step the ring does not move: on a GPU the host waits for the device."""
    workers: list[WorkerSignals] = []
    line = Timeline(0)
    line.do("JOIN", 2.0)
    for step in range(12):
        began_s = line.now_s
        line.do("NORM", step_s, step)
        line.steps.append((began_s, line.now_s, step))
    beats(agent(tmp_path, monkeypatch, workers), workers, line, line.now_s)
    assert (counted.num_tables, counted.num_connects) == (0, 0)


def test_a_rank_beyond_its_limit_has_its_peers_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    workers: list[WorkerSignals] = []
    line = Timeline(0)
    for step in range(6):
        line.run_step(step, 1.0)
    line.hang(6.0 - 1e-6)
    watch = agent(tmp_path, monkeypatch, workers)
    for now_s in (6.5, 7.5, 8.5):
        workers[:] = [line.sample(now_s)]
        watch.beat()
    assert counted.num_connects == 0, "three medians have not passed"
    for now_s in (9.5, 10.0):
        workers[:] = [line.sample(now_s)]
        watch.beat()
    assert counted.num_connects == 2 and counted.num_tables == 4
    watch.close()


def test_a_rank_that_cannot_join_has_its_peers_asked_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    workers: list[WorkerSignals] = []
    line = Timeline(0)
    line.do("JOIN", float("inf"))
    beats(agent(tmp_path, monkeypatch, workers), workers, line, 5.0)
    assert counted.num_connects > 0
