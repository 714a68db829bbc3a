"""One executor per node: who claims it, and from whom it may be taken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.claim import holder_of
from headway.common.node.process import ProcessId
from headway.common.node.testing import identity, python_child, read_line, send_line, wait_until
from headway.launch import ClusterFolder

CLAIM = """
import sys
from pathlib import Path
from headway.common.errors import InputError
from headway.launch.cluster import ClusterFolder
print("ready", flush=True)
for _ in sys.stdin:
    try:
        ClusterFolder(Path(sys.argv[1])).claim(0)
        print("mine", flush=True)
    except InputError as error:
        print(error, flush=True)
"""
FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFolder:
    return ClusterFolder.create(tmp_path, nodes=1)


def test_of_many_that_claim_at_once_one_has_the_node(cluster: ClusterFolder) -> None:
    with (
        python_child(CLAIM, cluster.path) as a,
        python_child(CLAIM, cluster.path) as b,
        python_child(CLAIM, cluster.path) as c,
    ):
        children = (a, b, c)
        assert [read_line(child) for child in children] == ["ready"] * 3
        for child in children:
            send_line(child, "go")
        answers = [read_line(child) for child in children]
        assert answers.count("mine") == 1
        assert sum("already has an executor" in answer for answer in answers) == 2
        owner = children[answers.index("mine")]
        assert holder_of(cluster.path / "nodes" / "0.lock") == identity(owner)
        send_line(owner, "again")
        assert read_line(owner) == "mine", "claiming twice is harmless"


def test_a_dead_owner_is_followed(cluster: ClusterFolder) -> None:
    with python_child(CLAIM, cluster.path) as owner:
        read_line(owner)
        send_line(owner, "go")
        assert read_line(owner) == "mine"
    cluster.claim(0)
    assert holder_of(cluster.path / "nodes" / "0.lock") == ProcessId.current()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes can be frozen; SIGKILL then only waits for them."""
    folder = FREEZER / f"headway-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v1 freezer here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.01)


def test_an_owner_frozen_for_good_is_followed_once_it_was_killed(
    cluster: ClusterFolder, freezer: Path
) -> None:
    with python_child(CLAIM, cluster.path) as owner:
        read_line(owner)
        send_line(owner, "go")
        assert read_line(owner) == "mine"
        frozen = identity(owner)
        (freezer / "cgroup.procs").write_text(str(frozen.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", what="ice")
        with pytest.raises(InputError, match="already has an executor"):
            cluster.claim(0)
        frozen.kill(signal.SIGKILL)
        wait_until(frozen.is_terminating, what="a signal that waits")
        assert frozen.alive()
        cluster.claim(0)
        assert holder_of(cluster.path / "nodes" / "0.lock") == ProcessId.current()
        (freezer / "freezer.state").write_text("THAWED")


def test_an_address_can_be_announced_on_a_full_disk(
    cluster: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = ProcessId.current()
    cluster.announce(0, "tcp://127.0.0.1:12345", me)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ClusterFolder, "write", full)
    cluster.announce(0, "tcp://127.0.0.1:99", me)
    address = cluster.address(0)
    assert address is not None and (address.endpoint, address.process) == ("tcp://127.0.0.1:99", me)
