"""A rank that the kernel killed for want of memory is told from one that somebody killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.controller.executor.machine.oom_kills import LOOK_S, OomKills

LIMIT_BYTES = 64 << 20
GREEDY = """
import sys
print("ready", flush=True)
sys.stdin.readline()
kept = bytearray(256 << 20)
for at in range(0, len(kept), 4096):
    kept[at] = 1
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory."""
    for mount, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        path = Path("/sys/fs/cgroup") / mount / f"headway-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / limit).exists():
            (path / limit).write_text(str(LIMIT_BYTES))
            yield path
            path.rmdir()
            return
        path.rmdir()
    pytest.skip("no control group with a limit of memory can be made here (needs root)")


def _start(group: Path | None) -> tuple[subprocess.Popen[str], ProcessId]:
    command = [sys.executable, "-c", GREEDY]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    if group is not None:
        (group / "cgroup.procs").write_text(str(child.pid))
    identity = ProcessId.of(child.pid)
    assert identity is not None
    return child, identity


def test_the_kernels_kill_is_known_by_the_counter_of_the_group(group: Path) -> None:
    kills = OomKills()
    full, full_id = _start(group)
    other, other_id = _start(None)
    kills.look([full_id, other_id], 0.0)
    full.communicate("go\n")
    other.kill()
    other.communicate()
    assert full.returncode == other.returncode == -9
    kills.look([], LOOK_S)
    assert kills.took(full_id) and not kills.took(other_id)
    assert not kills.took(full_id), "it is forgotten"


@pytest.mark.parametrize(
    ("line", "counter"),
    [
        ("0::/job/rank", "job/rank/memory.events"),
        ("0::/job/rank", "unified/job/rank/memory.events"),
        ("4:cpu,memory:/job/rank", "memory/job/rank/memory.oom_control"),
    ],
)
def test_both_hierarchies_are_known(tmp_path: Path, line: str, counter: str) -> None:
    process = ProcessId(4242, 1)
    (tmp_path / "proc/4242").mkdir(parents=True)
    (tmp_path / "proc/4242/cgroup").write_text(f"3:cpuset:/\n{line}\n")
    path = tmp_path / "cgroup" / counter
    path.parent.mkdir(parents=True)
    path.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    kills = OomKills(tmp_path / "cgroup", tmp_path / "proc")
    kills.look([process], 0.0)
    path.write_text("oom_kill 4\n")
    kills.look([process], LOOK_S / 2)
    assert kills.took(process), "a second look within LOOK_S changes nothing"
    kills.look([process], 2 * LOOK_S)
    path.unlink()
    assert not kills.took(process), "the group is gone"
