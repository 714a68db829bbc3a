"""Real inits around a stand-in for the executor that obeys files in the test's folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.claim import holder_of
from headway.common.node.janitor import processes_of
from headway.common.node.process import ProcessId
from headway.common.node.testing import child_environment, frozen, private_roots, wait_until
from headway.launch import ClusterFolder

EXECUTOR = """
import os, subprocess, sys, time
from pathlib import Path
from headway.common.node.process import ProcessId
from headway.launch.cluster import ClusterFolder
from headway.launch.init.beats import BeatSender

folder = ClusterFolder(Path(sys.argv[3]))
orders = folder.path.parent / "orders"
beats = BeatSender(os.environ)
print("after:", os.environ["HEADWAY_RESTARTED_FOR"])
print("one of many lines\\nthe last line", flush=True)
if (orders / "crash").exists():
    sys.exit(7)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
folder.claim(int(sys.argv[5]))
beats.beat()  # before tests know of it: until the first one the limit of a start holds, 60 s
folder.announce(int(sys.argv[5]), "tcp://127.0.0.1:9", ProcessId.current())
while not (orders / "end").exists():
    while (orders / "hang").exists():
        time.sleep(0.01)
    beats.beat()
    time.sleep(0.05)
beats.end()
"""
INIT = """
import sys
from headway.launch.init import __main__, core
limits = core.Limits(silent_s=1.5, stuck_s=0.6)
core.Limits = lambda: limits
sys.exit(__main__.main())
"""


class Node:
    """Node 0 of a cluster, with inits in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.cluster = ClusterFolder.create(folder / "cluster", nodes=1)
        self.orders = folder / "orders"
        self.orders.mkdir()
        self.log = folder / "init.log"
        self.inits: list[subprocess.Popen[bytes]] = []

    def init(self) -> subprocess.Popen[bytes]:
        """Start an init, with shorter limits."""
        words = [sys.executable, "-c", INIT, "--cluster", str(self.cluster.path), "--node", "0"]
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                words, env=child_environment(), stdout=log, stderr=log, start_new_session=True
            )
        self.inits.append(child)
        return child

    def executor(self, *, other_than: ProcessId | None = None) -> ProcessId:
        """The node's executor, once it has announced itself."""
        wait_until(lambda: self.cluster.living(0) not in (None, other_than), what="an executor")
        found = self.cluster.living(0)
        assert found is not None
        return found

    def order(self, name: str, *, is_on: bool = True) -> None:
        """Have every executor do this from now on, or no longer."""
        if is_on:
            (self.orders / name).touch()
        else:
            (self.orders / name).unlink()

    def events(self, text: str) -> list[dict[str, Any]]:
        """What the inits have logged that contains ``text``."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        return [row for row in rows if text in row["event"]]

    def orphans(self) -> list[ProcessId]:
        """The children of the executors, in the order of their start."""
        known = {self.cluster.living(0), self.cluster.init(0)}
        return [process for process in processes_of(self.cluster.id, 0) if process not in known]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    package = tmp_path / "path" / "headway" / "controller"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(EXECUTOR)
    monkeypatch.syspath_prepend(tmp_path / "path")
    with private_roots():
        made = Node(tmp_path)
        try:
            yield made
        finally:
            for child in made.inits:
                child.kill()
                child.wait()
            for process in processes_of(made.cluster.id):
                process.kill()


def test_a_killed_executor_is_started_again_and_its_children_live_on(node: Node) -> None:
    node.init()
    first = node.executor()
    wait_until(lambda: len(node.orphans()) == 1, what="its child")
    (child,) = node.orphans()
    first.kill()
    second = node.executor(other_than=first)
    assert second != first and child.alive()
    (row,) = node.events("starting it again")
    assert row["reason"] == "it was killed by SIGKILL" and row["last_line"] == "the last line"
    assert row["pause_s"] == 0.0
    log = node.cluster.path / "logs" / "n0-executor.log"
    assert "after: it was killed by SIGKILL" in log.read_text(), "its successor knows it"


def test_the_executor_has_a_session_a_log_and_the_names_of_its_node(node: Node) -> None:
    init = node.init()
    executor = node.executor()
    assert os.getsid(executor.pid) == executor.pid != os.getsid(init.pid)
    found = set(Path(f"/proc/{executor.pid}/environ").read_bytes().split(b"\0"))
    names = {f"HEADWAY_RUN_ID={node.cluster.id}", "HEADWAY_NODE=0", "HEADWAY_ROLE=executor"}
    assert {name.encode() for name in names} <= found
    own = set(Path(f"/proc/{init.pid}/environ").read_bytes().split(b"\0"))
    assert {f"HEADWAY_RUN_ID={node.cluster.id}".encode(), b"HEADWAY_ROLE=init"} <= own
    log = node.cluster.path / "logs" / "n0-executor.log"
    assert log.read_text() == "after: \none of many lines\nthe last line\n"
    assert log.stat().st_mode & 0o777 == 0o600
    (child,) = node.orphans()
    links = [str(fd.readlink()) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert not [link for link in links if link.startswith("pipe:")], "the beats are its own"


def test_orphans_are_reaped_by_the_init(node: Node) -> None:
    init = node.init()
    first = node.executor()
    wait_until(lambda: len(node.orphans()) == 1, what="its child")
    (child,) = node.orphans()
    first.kill()
    node.executor(other_than=first)
    parent = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) == init.pid
    child.kill()
    wait_until(lambda: not Path(f"/proc/{child.pid}").exists(), what="no zombie")


@pytest.mark.parametrize("how", ["stopped", "hangs", "frozen"])
def test_an_executor_that_cannot_run_is_ended_and_replaced(node: Node, how: str) -> None:
    node.init()
    first = node.executor()
    with contextlib.ExitStack() as stack:
        if how == "stopped":
            first.kill(signal.SIGSTOP)
        elif how == "hangs":
            node.order("hang")
        else:
            try:
                stack.enter_context(frozen(first.pid))
            except PermissionError as error:
                pytest.skip(str(error))
        wait_until(first.is_terminating, what="its end")
        if how == "hangs":
            node.order("hang", is_on=False)
        assert node.executor(other_than=first) != first
    words = {"stopped": "it is stopped", "hangs": "silent", "frozen": "its control group is frozen"}
    assert words[how] in node.events("ending the executor")[0]["reason"]


def test_a_node_that_was_stopped_as_a_whole_goes_on_with_the_same_executor(node: Node) -> None:
    init = node.init()
    executor = node.executor()
    pids = (init.pid, executor.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # longer than every limit of the init
    wait_until(_passed(3.0), what="time")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    wait_until(_passed(2.0), what="time for a wrong decision")
    assert executor.alive() and node.events("ending the executor") == []


def _passed(seconds: float) -> Callable[[], bool]:
    """A condition that holds once so much time has passed."""
    import time

    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def test_one_that_crashes_repeatedly_is_started_with_growing_pauses(node: Node) -> None:
    node.order("crash")
    node.init()
    wait_until(lambda: len(node.events("starting it again")) >= 5, what="five crashes")
    rows = node.events("starting it again")
    assert [row["pause_s"] for row in rows[:5]] == [0.0, 0.25, 0.5, 1.0, 2.0]
    assert {row["reason"] for row in rows} == {"exit code 7"}
    node.order("crash", is_on=False)
    node.executor()


def test_the_init_ends_with_an_executor_that_ended_as_asked(node: Node) -> None:
    init = node.init()
    node.executor()
    node.order("end")
    assert init.wait(20) == 0
    assert node.cluster.living(0) is None
    assert node.events("started") and not node.events("starting it again")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_planned_end_reaches_the_executor_and_leaves_its_children(
    node: Node, signum: signal.Signals
) -> None:
    init = node.init()
    executor = node.executor()
    wait_until(lambda: len(node.orphans()) == 1, what="its child")
    (child,) = node.orphans()
    os.kill(init.pid, signum)
    assert init.wait(20) == 0
    assert not executor.alive() and child.alive()
    assert node.events("the executor has ended")[0]["reason"] == "it was killed by SIGTERM"


def test_a_lost_terminal_ends_nothing(node: Node) -> None:
    init = node.init()
    executor = node.executor()
    os.kill(init.pid, signal.SIGHUP)
    wait_until(_passed(0.5), what="time for a wrong decision")
    assert init.poll() is None and executor.alive()


def test_its_folders_are_locked_so_that_cleaners_pass_over_them(node: Node) -> None:
    around = node.cluster.path.parent
    (around / "joined.json").write_text("{}")
    node.init()
    node.executor()
    for folder in (around, node.cluster.path):
        opened = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(opened)


def test_a_second_init_of_a_node_is_refused_in_one_line(node: Node) -> None:
    first = node.init()
    node.executor()
    second = node.init()
    assert second.wait(20) == 2
    lines = [line for line in node.log.read_text().splitlines() if not line.startswith("{")]
    whose = f"node 0 of {node.cluster.path} already has an init, process {first.pid}"
    assert lines == [f"error: {whose}; leave that one running"]


def test_a_restarted_init_keeps_the_living_executor_and_still_hears_it(node: Node) -> None:
    first = node.init()
    executor = node.executor()
    first.kill()
    first.wait()
    assert executor.alive()
    second = node.init()
    wait_until(lambda: bool(node.events("executor adopted")), what="its adoption")
    assert node.executor() == executor and second.poll() is None
    wait_until(_passed(3.0), what="time to count as silent")
    assert executor.alive(), "its beats arrive"
    node.order("hang")
    wait_until(lambda: not executor.alive(), what="it hangs, and is ended")
    node.order("hang", is_on=False)
    assert node.executor(other_than=executor) != executor


def test_an_adopted_executor_that_dies_is_replaced_and_one_that_ends_is_not(node: Node) -> None:
    first = node.init()
    executor = node.executor()
    first.kill()
    first.wait()
    second = node.init()
    wait_until(lambda: len(node.events("executor adopted")) == 1, what="an adoption")
    executor.kill()
    node.executor(other_than=executor)
    second.kill()
    second.wait()
    last = node.init()
    wait_until(lambda: len(node.events("executor adopted")) == 2, what="an adoption")
    node.order("end")
    assert last.wait(20) == 0, "it said so, since only a parent learns the exit code"
    assert node.cluster.living(0) is None


def test_inits_killed_at_any_moment_leave_one_executor(node: Node) -> None:
    for count in range(6):
        init = node.init()
        claimed = Path(f"/proc/{init.pid}")
        wait_until(
            lambda p=claimed: b"HEADWAY_ROLE=init" in (p / "environ").read_bytes(), what="it"
        )  # type: ignore[misc]
        wait_until(_passed(0.04 * count), what="another moment")
        init.kill()
        init.wait()
    node.init()
    executor = node.executor()
    wait_until(
        lambda: holder_of(node.cluster.path / "nodes" / "0.lock") == executor, what="one owner"
    )
    wait_until(lambda: _executors(node) == [executor], what="it alone")


def _executors(node: Node) -> list[ProcessId]:
    return [
        process
        for process in processes_of(node.cluster.id, 0)
        if b"headway.controller" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ]


@pytest.mark.parametrize(
    ("cluster", "node_number", "words"),
    [("nowhere", "0", "holds no cluster"), ("cluster", "5", "outside the cluster's 1 nodes")],
)
def test_a_wrong_place_is_refused_in_one_line(
    node: Node, tmp_path: Path, cluster: str, node_number: str, words: str
) -> None:
    del node
    command = [sys.executable, "-m", "headway.launch.init", "--cluster", tmp_path / cluster]
    done = subprocess.run(
        [*command, "--node", node_number],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, headway.launch.init.__main__; "
        "print({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "{'__main__', 'headway'}" or done.stdout.strip() == (
        "{'headway', '__main__'}"
    )
