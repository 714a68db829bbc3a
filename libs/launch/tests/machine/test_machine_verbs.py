"""What engines run on a machine: it ends what is meant, and nothing else."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from headway.common.errors import DeadlineError, RemoteError
from headway.common.node.janitor import role_of
from headway.common.node.process import ProcessId
from headway.common.node.testing import wait_until
from headway.common.wire.addresses import Network
from headway.common.wire.messages.ckpt_store import Flush
from headway.launch.engine import TERM_S
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import Holder, LeaseTerm
from headway.launch.lease.file import FileLease
from headway.launch.machine import __main__ as verbs
from headway.launch.machine import ending
from headway.launch.machine import foreground as stays
from headway.launch.machine.foreground import ForegroundNode

RUN = "0123ab07"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts one that looks as if it belonged to node 1 of the run."""
    made: list[subprocess.Popen[bytes]] = []

    def start(role: str, *words: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "HEADWAY_RUN_ID": RUN, "HEADWAY_NODE": "1", "HEADWAY_ROLE": role}
        made.append(subprocess.Popen([sys.executable, "-c", SLEEP, *words], env=env))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def _ticket(folder: Path, epoch: int = 0) -> Ticket:
    return Ticket(RUN, 1, "", str(folder / "control"), str(folder / "scratch"), epoch=epoch)


def test_a_fence_ends_drivers_of_earlier_epochs_alone(
    tmp_path: Path, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    former, newer = process("driver", "--epoch", "3"), process("driver", "--epoch", "4")
    executor, command = process("executor", "--epoch", "1"), process("driver")
    everybody = (former, newer, executor, command)
    wait_until(lambda: all(role_of(_id(one)) for one in everybody), what="the processes")
    ending.fence(_ticket(tmp_path, epoch=4))
    assert former.wait(20.0) == -9
    assert [one.poll() for one in everybody[1:]] == [None] * 3


def test_a_node_whose_folder_was_removed_is_ended_all_the_same(
    tmp_path: Path, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    worker = process("zygote")
    wait_until(lambda: role_of(_id(worker)) == "zygote", what="the process")
    assert ending.end(NodeFolder(tmp_path / "absent"), _ticket(tmp_path)) == 0
    assert worker.wait(20.0) == -9


def test_a_node_whose_disk_has_become_read_only_is_ended_all_the_same(
    tmp_path: Path,
    process: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = NodeFolder(tmp_path / "node")
    folder.cluster.path.mkdir(parents=True)
    folder.cluster.describe(RUN, 2)
    (folder.path / "joined.json").touch()
    worker = process("zygote")
    wait_until(lambda: role_of(_id(worker)) == "zygote", what="the process")

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert ending.end(folder, _ticket(tmp_path)) == 0
    assert worker.wait(20.0) == -9
    assert "the node's secrets stay on this machine" in capsys.readouterr().err


def test_what_an_earlier_start_left_is_ended_before_the_machine_joins_the_next_one(
    tmp_path: Path, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    for name in ("control", "checkpoints"):
        (tmp_path / name).mkdir()
    slow = Bundle(RUN, "a", 2, "[train]\nlr = 1e-3\n", Network(), {}, str(tmp_path), "ab" * 32)
    slow = replace(slow, console_key="k" * 40, start="one")
    fast = replace(slow, config="[train]\nlr = 1e-2\n", start="two")

    def start(bundle: Bundle) -> str:
        ticket = Ticket.of(bundle, 1, str(tmp_path / "scratch"), is_first=True)
        verbs.take_part(NodeFolder(ticket.folder), ticket, 5.0)
        return (ticket.folder / "runs" / "a" / "config.toml").read_text()

    assert start(slow) == slow.config
    worker = process("zygote")  # the run is stopped now, and this machine is not reached
    wait_until(lambda: role_of(_id(worker)) == "zygote", what="the process")
    assert start(slow) == slow.config and worker.poll() is None, "it has joined this start"
    assert start(fast) == fast.config and worker.wait(20.0) == -9


def _id(process: subprocess.Popen[bytes]) -> ProcessId:
    found = ProcessId.of(process.pid)
    assert found is not None
    return found


# ---- a stay ------------------------------------------------------------------------------------
class Driver:
    """Notes what it is asked; refuses drains until a spare is ready, and is replaced by others."""

    def __init__(self, control: Path) -> None:
        self.asked: list[str] = []
        self.has_spare, self.has_hung, self.num_flushes = False, False, 0
        self._lease = FileLease(control)

    def lead(self, epoch: int) -> None:
        """Take the lease as the driver of this epoch."""
        me = ProcessId.current()
        self._lease.claim(epoch - 1)
        endpoint = "tcp://127.0.0.1:1"
        holder = Holder(epoch, 0, me.pid, me.start_ticks, endpoint=endpoint, server_key="k")
        LeaseTerm(self._lease, holder).renew()

    def client(self, *_: object, **__: object) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, command: object, *_: object, **__: object) -> None:
        if isinstance(command, Flush):  # to the node's own store
            self.num_flushes += 1
            return
        self.asked.append(command.id)  # type: ignore[attr-defined]
        if self.has_hung:
            raise DeadlineError("no answer")
        if command.operation == "drain" and not self.has_spare:  # type: ignore[attr-defined]
            raise RemoteError("no spare is ready")


def _stay(folder: Path, node: int, *, at_end: stays.AtEnd = "drain") -> ForegroundNode:
    ticket = Ticket(RUN, node, "", str(folder / "control"), str(folder / "scratch"))
    found = ForegroundNode(
        NodeFolder(folder), ticket, at_end=at_end, notice_s=30.0, end=lambda: 0,
        release=lambda _: None,
    )  # fmt: skip
    found._bundle = Bundle(RUN, "a", 2, "", Network(), {}, str(folder), "ab" * 32)
    return found


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    (tmp_path / "control").mkdir()
    found = Driver(tmp_path / "control")
    found.lead(1)
    monkeypatch.setattr(stays, "Client", found.client)
    monkeypatch.setattr(stays.NodeFolder, "__init__", _folder)
    return found


def _folder(self: NodeFolder, path: Path) -> None:
    class Cluster:
        def key_of(self, _role: str) -> None:
            return None

    self.path, self.cluster = path, Cluster()  # type: ignore[assignment]


def test_each_stay_asks_for_its_own_drain_once_and_for_a_checkpoint_if_that_is_refused(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stays, "AGAIN_S", 600.0)
    for _ in range(2):  # the node left, came back, and leaves again under the same driver
        stay = _stay(tmp_path, 1)
        stay._ask_when_due()
        stay._ask_when_due()
    assert _kinds(driver) == ["drain", "checkpoint"] * 2
    assert len(set(driver.asked)) == 4, "a driver carries each request out once"


def test_a_drain_that_is_refused_is_asked_for_again_until_it_is_accepted(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stays, "AGAIN_S", 0.0)
    stay = _stay(tmp_path, 1)
    stay._ask_when_due()
    stay._ask_when_due()
    assert _kinds(driver) == ["drain", "checkpoint", "drain"], "one checkpoint"
    driver.has_spare = True
    stay._ask_when_due()
    stay._ask_when_due()
    assert _kinds(driver) == ["drain", "checkpoint", "drain", "drain"], "not after that"


@pytest.mark.parametrize("at_end", ["drain", "stop"])
def test_each_further_driver_is_asked_too(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, at_end: stays.AtEnd
) -> None:
    monkeypatch.setattr(stays, "AGAIN_S", 0.0)
    driver.has_spare, stay = True, _stay(tmp_path, 1, at_end=at_end)
    for epoch in (1, 1, 3, 3):
        driver.lead(epoch)
        stay._ask_when_due()
    assert [one.rpartition("-")[2] for one in driver.asked] == ["1", "3"]


def test_a_driver_that_does_not_answer_is_asked_again_at_once(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stays, "AGAIN_S", 600.0)
    driver.has_spare = driver.has_hung = True
    stay = _stay(tmp_path, 1)
    stay._ask_when_due()
    assert driver.num_flushes == 1, "meanwhile the node's store writes what is in memory"
    driver.has_hung = False
    stay._ask_when_due()
    stay._ask_when_due()
    assert len(driver.asked) == 2


def _kinds(driver: Driver) -> list[str]:
    return [one.split("-")[0] for one in driver.asked]


def test_all_nodes_of_an_allocation_ask_for_the_same_stop(tmp_path: Path, driver: Driver) -> None:
    for node in range(3):
        _stay(tmp_path, node, at_end="stop")._ask_when_due()
    assert driver.asked == ["stop-under-1"] * 3


def test_a_lease_that_says_so_has_one_pod_that_ends_stop_the_whole_run(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = FileLease.look
    monkeypatch.setattr(FileLease, "look", lambda self: replace(look(self), is_to_stop=True))
    _stay(tmp_path, 2, at_end="drain")._ask_when_due()
    assert driver.asked == ["stop-under-1"]


SENT = """
import os, sys
from headway.launch.init.signals import on_socket, received
from headway.launch.machine.foreground import SIGNALS
with on_socket(*SIGNALS) as source:
    os.kill(os.getpid(), int(sys.argv[1]))
    print(*received(source))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_each_signal_that_announces_an_end_is_taken(number: signal.Signals) -> None:
    """Slurm sends SIGUSR1 before the time limit, SIGTERM for scancel, a terminal SIGINT."""
    words = [sys.executable, "-c", SENT, str(int(number))]
    assert subprocess.run(words, capture_output=True, text=True).stdout.split() == [str(number)]


def test_only_the_signal_before_a_time_limit_gives_the_longer_notice(
    tmp_path: Path, driver: Driver
) -> None:
    del driver
    stay = _stay(tmp_path, 1)
    stay._notice_s, began = 100 * TERM_S, time.monotonic()
    stay._take(bytes([signal.SIGUSR1]))
    assert stay._until is not None and stay._until >= began + 100 * TERM_S
    stay._take(bytes([signal.SIGTERM]))
    assert stay._until < began + 100 * TERM_S


# ---- a ticket in a file ------------------------------------------------------------------------
def test_a_ticket_whose_file_is_gone_or_not_seen_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, expected in (
        (tmp_path / "ticket-a", "cannot read the ticket {}: No such file or directory; start the"),
        (tmp_path / "absent" / "ticket-a", "this machine does not see {.parent}; check that"),
    ):
        assert verbs.main(["start", "--ticket", str(path)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {expected.format(path)}"), line


def test_an_answer_that_nobody_waits_for_any_more_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, wanted = NodeFolder(tmp_path / "scratch" / "n1"), tmp_path / "answer"
    wanted.touch()
    verbs.answer("log", folder, wanted)
    assert "no logs in" in wanted.read_text() and "no logs" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        verbs.answer("log", folder, tmp_path / "gone")


def test_what_is_left_of_no_list_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("{not JSON"))
    assert verbs.main(["left"]) == 2
    assert "standard input is not a list of run ids" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("[]"))
    assert verbs.main(["left"]) == 0 and capsys.readouterr().out == "[]\n"
