"""Machines can be had in one folder again and again, however the former ones ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.testing import python_child, read_line
from headway.testkit.machines import Machines
from headway.testkit.machines.ssh import Ssh

OWNER = """
import sys
from pathlib import Path
from headway.testkit.machines import Machines
with Machines(Path(sys.argv[1]), count=2, way=sys.argv[2]):
    print("up", flush=True)
    sys.stdin.read()
"""
TWO = 2


@pytest.fixture(scope="module", autouse=True)
def separate_nodes() -> None:
    if reason := Machines.missing():
        pytest.skip(f"no separate nodes here: {reason}")


@pytest.fixture(params=["bed", "ssh"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of machines whose owner was killed while they were up."""
    if request.param == "ssh" and (reason := Ssh.missing()):
        pytest.skip(f"no ssh here: {reason}")
    with python_child(OWNER, tmp_path, request.param) as child:
        assert read_line(child).strip() == "up"
        child.kill()
        child.wait()
    yield tmp_path


@pytest.mark.timeout(120)
def test_machines_start_again_and_again_after_their_owner_was_killed(
    killed: Path, request: pytest.FixtureRequest
) -> None:
    way = request.node.callspec.params["killed"]
    assert (killed / "shared" / "bed.sock").exists(), "what the killed one has left"
    for _ in range(2):
        with Machines(killed, count=TWO, way=way) as machines:
            assert (machines.cluster / "cluster.json").exists()
            assert machines.headway("runs", "--json").stdout.strip() == "[]"
        assert not (killed / "shared" / "bed.sock").exists()


def test_a_folder_whose_machines_are_up_is_refused(tmp_path: Path) -> None:
    with Machines(tmp_path, count=TWO) as machines:
        with pytest.raises(HeadwayError, match="are up; stop them"), Machines(tmp_path, count=TWO):
            pass
        assert (machines.shared / "bed.sock").exists() and machines.cluster.exists()


def test_only_the_console_sees_the_runs(tmp_path: Path) -> None:
    with Machines(tmp_path, count=TWO) as machines:
        (machines.runs / "mark").touch()
        found = [
            node.run(["test", "-e", machines.runs / "mark"], check=False).returncode == 0
            for node in machines.bed.nodes
        ]
    assert found == [False, False, True]


def test_files_folders_and_sockets_of_runs_are_found(tmp_path: Path) -> None:
    uid = os.getuid()
    roots = [f"/tmp/headway-{uid}", f"/var/tmp/headway-{uid}", f"/dev/shm/headway-{uid}"]
    with Machines(tmp_path, count=1) as machines:
        node = machines.bed.node(0)
        assert machines.files_of_runs(node) == []
        node.run(["mkdir", "-p", *roots, machines.scratch])
        assert machines.files_of_runs(node) == [], "they are of all runs"
        left = [f"{root}/{name}" for root in (*roots, machines.scratch) for name in ("a b", "sock")]
        node.run(["mkdir", *left[::2]])
        node.run(["mkfifo", "/dev/shm/loose", *left[1::2]])
        assert sorted(machines.files_of_runs(node)) == sorted(["/dev/shm/loose", *left])
