"""A service that takes longer to start than it may, as on a machine too busy to load torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.controller.executor.node_events import Memory
from headway.controller.executor.node_files import MemoryFiles
from headway.testkit.simulation.lone_node import LoneNode


def test_each_start_that_takes_too_long_gives_the_next_one_twice_the_time() -> None:
    node = LoneNode()
    node.run(1.0)
    tried = []
    for _ in range(3):
        process = node.guardian.services.process("dataloader")
        assert process is not None
        node.processes[process].is_hung = True
        begun_s = node.now
        while node.guardian.services.process("dataloader") in (process, None):
            node.run(0.5)
        tried.append((node.now - begun_s) // 30 * 30)
    assert tried == [60.0, 120.0, 240.0]
    assert node.guardian.trouble() == "dataloader is starting again: it sent no beat for 240 s"
    node.run(15.0)
    assert node.is_whole


def next_of(node: LoneNode, name: str) -> ProcessId:
    """Wait until the service has another process, which then hangs."""
    before = node.guardian.services.process(name)
    while (process := node.guardian.services.process(name)) in (before, None):
        node.run(0.25)
    assert process is not None
    node.processes[process].is_hung = True
    return process


def up_with_hung(name: str) -> LoneNode:
    node = LoneNode()
    node.run(10.0)
    assert node.is_whole
    process = node.guardian.services.process(name)
    assert process is not None
    node.processes[process].is_hung = True
    return node


@pytest.mark.parametrize("slow_starts", [0, 1])
def test_a_successor_gives_a_service_that_still_loads_the_time_it_had(slow_starts: int) -> None:
    """Though an earlier process of its name had reported."""
    node = up_with_hung("zygote")
    for _ in range(slow_starts):
        next_of(node, "zygote")
    loading = next_of(node, "zygote")
    node.run(1.0)
    node.restart_executor()
    node.run(50.0 * 2**slow_starts)
    assert node.guardian.services.process("zygote") == loading
    node.processes[loading].is_hung = False
    node.run(5.0)
    assert node.is_whole and node.memory.slow_starts == ()


def test_an_adopted_service_that_is_silent_was_no_slow_start() -> None:
    node = up_with_hung("dataloader")
    node.restart_executor()
    next_of(node, "dataloader")
    begun_s = node.now
    next_of(node, "dataloader")
    assert 60.0 <= node.now - begun_s < 70.0


def test_what_an_executor_leaves_is_read_and_counts_as_absent_if_it_is_damaged(
    tmp_path: Path,
) -> None:
    me = ProcessId(7, 9)
    left = Memory(
        reported=(("zygote", me),), slow_starts=(("agent", 2),), services=(("agent", me),)
    )
    MemoryFiles(tmp_path).save(left)
    assert MemoryFiles(tmp_path).load(me) == left
    file = tmp_path / "executor.json"
    for damaged in (file.read_bytes()[:-1], b'{"reported": ["zygote"]}', b"\xff"):
        file.write_bytes(damaged)
        assert MemoryFiles(tmp_path).load(me) == Memory()
