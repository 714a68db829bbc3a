"""Memory nodes as sysfs shows them, and threads bound to the CPUs of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headway.common.node.memory_nodes import bound_to, memory_nodes, parse_cpus


def test_cpu_lists_of_the_kernel_are_read_and_others_refused() -> None:
    assert parse_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cpus("\n") == frozenset()
    with pytest.raises(ValueError, match="x"):
        parse_cpus("0-x")


def test_memory_nodes_come_from_sysfs_and_bad_contents_are_one_node(tmp_path: Path) -> None:
    allowed = frozenset(os.sched_getaffinity(0))
    for number, text in ((0, "0"), (1, "4000-4095"), (10, "1-4000")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(text)
    found = memory_nodes(tmp_path)
    assert 1 not in found and found.get(0, allowed) <= allowed
    (tmp_path / "node0" / "cpulist").write_bytes(b"\xff")
    assert memory_nodes(tmp_path) == {0: allowed}
    assert memory_nodes(tmp_path / "nowhere") == {0: allowed}


def test_a_bound_thread_gets_its_cpus_back() -> None:
    before = os.sched_getaffinity(0)
    with bound_to({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
