"""A cluster that shrinks, or ends a node, takes none from a live run unasked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from headway.common.node.process import ProcessId
from headway.console.cli import main
from headway.console.testing import FakeRun

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout, stderr) of one command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def wide(fake: FakeRun) -> FakeRun:
    """A live run on nodes 0 and 1 of a cluster of three."""
    fake.cluster.resize(3)
    fake.cluster.announce(1, "tcp://127.0.0.1:1", ProcessId.current())
    carried = fake.cluster.carried(0)
    assert carried is not None
    fake.cluster.write("nodes/1.run", carried)
    return fake


def _used(wide: FakeRun) -> str:
    return (
        f"error: node 1 of {wide.cluster.path} is used by run fake, which is live; stop it first: "
        f"`headway stop fake --runs-dir {wide.folder.path.parent}`"
    )


def test_fewer_nodes_than_a_live_run_uses_are_refused_in_one_line(
    wide: FakeRun, call: Call
) -> None:
    code, out, err = call("cluster", "create", wide.cluster.path, "--nodes", "1")
    assert (code, out) == (2, "")
    assert err == f"{_used(wide)}, or use --drain (`make up` DRAIN=1)\n"
    assert wide.cluster.nodes == 3 and wide.run.live and wide.commands == []
    assert wide.cluster.living(1) is not None, "nothing was ended"


def test_a_node_that_the_run_does_not_use_may_end(wide: FakeRun, call: Call) -> None:
    for words in (("--nodes", "4"), ("--nodes", "2"), ("--nodes", "3"), ("--nodes", "2")):
        code, out, _ = call("cluster", "create", wide.cluster.path, *words)
        assert code == 0 and out == f"{wide.cluster.path}: {words[1]} nodes\n"
    assert wide.run.live and wide.cluster.living(1) is not None


def test_with_drain_the_run_is_stopped_before_its_node_ends(wide: FakeRun, call: Call) -> None:
    seen: list[int] = []

    def end_when_asked() -> None:
        deadline = time.monotonic() + 30.0
        while not any(command.operation == "stop" for command in wide.commands):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen.append(wide.cluster.nodes)
        wide.cluster.remove("nodes/1.run")
        wide.finish("stopped")

    thread = threading.Thread(target=end_when_asked)
    thread.start()
    code, out, _ = call("cluster", "create", wide.cluster.path, "--nodes", "1", "--drain")
    thread.join()
    assert (code, seen) == (0, [3]), "the cluster shrinks after the run has stopped"
    assert out.splitlines() == [
        "stopping run fake, which uses nodes that end",
        "stopping run fake with a checkpoint",
        "run fake is stopped; there is no checkpoint",
        f"{wide.cluster.path}: 1 nodes",
    ]
    assert wide.cluster.nodes == 1 and wide.cluster.address(1) is None


def test_with_drain_a_run_on_the_nodes_that_stay_is_left_alone(fake: FakeRun, call: Call) -> None:
    fake.cluster.resize(2)
    code, _, _ = call("cluster", "create", fake.cluster.path, "--nodes", "1", "--drain")
    assert code == 0 and fake.run.live and fake.commands == []


def test_an_unused_node_ends_where_a_used_one_is_refused(wide: FakeRun, call: Call) -> None:
    stop = ("node", "stop", "--cluster", wide.cluster.path, "--unused", "--node")
    code, out, err = call(*stop, "1")
    assert (code, out, err) == (2, "", f"{_used(wide)}\n")
    assert wide.cluster.living(1) is not None
    assert call(*stop, "2")[:2] == (0, "node 2 is stopped\n")
    wide.cluster.announce(1, "tcp://127.0.0.1:1", ProcessId(4194305, 1))
    assert call(*stop, "1")[0] == 0, "its processes have died: the run does not use it"


def test_the_nodes_of_a_run_that_has_ended_may_end(wide: FakeRun, call: Call) -> None:
    wide.finish("stopped")
    wide.cluster.announce(1, "tcp://127.0.0.1:1", ProcessId(4194305, 1))
    assert wide.cluster.carried(1) is not None, "as left by an executor that was killed"
    assert call("cluster", "create", wide.cluster.path, "--nodes", "1")[0] == 0
    assert wide.cluster.nodes == 1
