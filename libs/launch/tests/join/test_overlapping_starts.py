"""Commands about one node that overlap: none locks it out, and none waits long for another."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headway.common.errors import DeadlineError, HeadwayError
from headway.common.node.testing import wait_until
from headway.common.wire.addresses import Network
from headway.common.wire.keys import KeyPair
from headway.launch.join import scratch
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.join.ticket import Ticket
from headway.launch.machine import __main__ as verbs
from headway.launch.machine import ending

RUN = "0123ab06"


class Driver:
    """Admits who asks; ``meanwhile`` is done before it answers."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.meanwhile = bundle, list[Callable[[], object]]()
        self.asked: list[KeyPair] = []

    def join(self, _ticket: Ticket, keys: KeyPair, *, limit_s: float) -> Bundle:
        del limit_s
        self.asked.append(keys)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return self.bundle

    def admits(self, folder: NodeFolder) -> bool:
        """Whether it knows the key of the node's executor: the last one that asked."""
        return folder.cluster.key_of("executor") == folder.key() == self.asked[-1]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    for name in ("control", "checkpoints"):
        (tmp_path / name).mkdir()
    bundle = Bundle(RUN, "a", 2, "[train]\n", Network(), {}, str(tmp_path), "ab" * 32, "k" * 40)
    found = Driver(bundle)
    monkeypatch.setattr(verbs, "join", found.join)
    return found


@pytest.fixture
def ticket(tmp_path: Path, driver: Driver) -> Ticket:
    return Ticket.of(driver.bundle, 1, str(tmp_path / "scratch"))


@pytest.fixture
def node(ticket: Ticket) -> NodeFolder:
    return NodeFolder(ticket.folder)


def _fail() -> None:
    raise DeadlineError("no driver answers")


def test_a_node_that_is_ended_while_it_waits_for_the_driver_does_not_join(
    node: NodeFolder, ticket: Ticket, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        with scratch.locked(node.path):
            pass  # it need not wait
        assert ending.end(node, ticket) == 0

    monkeypatch.setattr(scratch, "LOCK_LIMIT_S", 0.0)
    driver.meanwhile = [end]
    with pytest.raises(HeadwayError, match=f"node 1 of run {RUN} was ended while it was being"):
        verbs.take_part(node, ticket, 5.0)
    assert not node.path.exists()
    verbs.take_part(node, ticket, 5.0)
    assert node.has_joined(1, "") and driver.admits(node)


def test_a_start_after_the_end_of_one_that_waits_keeps_its_key(
    node: NodeFolder, ticket: Ticket, driver: Driver
) -> None:
    """The driver may answer the former start last."""

    def end_and_start() -> None:
        assert ending.end(node, ticket) == 0
        verbs.take_part(node, ticket, 5.0)
        driver.asked.append(driver.asked[0])  # as if it were asked by the former one only now

    driver.meanwhile = [end_and_start]
    verbs.take_part(node, ticket, 5.0)
    assert node.has_joined(1, "") and driver.admits(node)


def test_the_second_of_two_starts_joins_with_the_pair_of_the_first(
    tmp_path: Path, node: NodeFolder, ticket: Ticket, driver: Driver
) -> None:
    def start_another() -> None:
        verbs.take_part(node, ticket, 5.0)
        installed.append((node.path / "joined.json").stat().st_ino)

    driver.meanwhile, installed = [start_another], list[int]()
    verbs.take_part(node, ticket, 5.0)
    assert installed == [(node.path / "joined.json").stat().st_ino], "once: it may run already"
    assert len(driver.asked) == 2 and len({one.public for one in driver.asked}) == 1
    assert driver.admits(node)
    assert list((tmp_path / "scratch").iterdir()) == [node.path], "no lock stays"


def test_a_start_that_fails_leaves_the_folder_to_one_that_still_waits(
    node: NodeFolder, ticket: Ticket, driver: Driver
) -> None:
    may_answer = threading.Event()

    def start_another_and_fail() -> None:
        driver.meanwhile.append(may_answer.wait)
        started.append(pool.submit(verbs.take_part, node, ticket, 5.0))
        wait_until(lambda: len(driver.asked) == 2, what="the second start")
        _fail()

    driver.meanwhile, started = [start_another_and_fail], []
    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(DeadlineError):
                verbs.take_part(node, ticket, 5.0)
        finally:
            may_answer.set()
        started[0].result(20.0)
    assert node.has_joined(1, "") and driver.admits(node)


def test_two_starts_that_fail_leave_nothing(
    tmp_path: Path, node: NodeFolder, ticket: Ticket, driver: Driver
) -> None:
    def start_another_and_fail() -> None:
        driver.meanwhile.append(_fail)
        with pytest.raises(DeadlineError):
            verbs.take_part(node, ticket, 5.0)
        _fail()

    driver.meanwhile = [start_another_and_fail]
    with pytest.raises(DeadlineError):
        verbs.take_part(node, ticket, 5.0)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_start_that_fails_keeps_the_logs_of_a_former_one(
    node: NodeFolder, ticket: Ticket, driver: Driver
) -> None:
    verbs.take_part(node, ticket, 5.0)
    log = node.path / "runs" / "a" / "logs" / "n1-agent.log"
    log.write_text("a line\n")
    assert ending.end(node, ticket) == 0
    driver.meanwhile = [_fail]
    with pytest.raises(DeadlineError):
        verbs.take_part(node, ticket, 5.0)
    assert log.exists()


def test_what_is_installed_is_the_pair_that_was_admitted(node: NodeFolder, driver: Driver) -> None:
    scratch.make(node.path)
    for _ in range(2):
        keys = KeyPair.generate()
        node.install(driver.bundle, 1, keys=keys, is_first=False)
        assert node.cluster.key_of("executor") == node.cluster.key_of("agent") == keys


def test_no_init_begins_after_an_end(
    node: NodeFolder, ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_part_and_be_ended(*_: object) -> None:
        take_part(node, ticket, 5.0)
        assert ending.end(node, ticket) == 0

    take_part = verbs.take_part
    monkeypatch.setattr(verbs, "take_part", take_part_and_be_ended)
    with pytest.raises(HeadwayError, match="was ended while it was being started"):
        verbs.start(node, ticket, 5.0, kill_hung=False)
    assert not node.has_init(1)


LOCKED = """
import sys
from pathlib import Path
from headway.launch.join import scratch
with scratch.locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_command_that_keeps_the_lock_delays_no_end_for_ever(
    node: NodeFolder, ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs.take_part(node, ticket, 5.0)
    monkeypatch.setattr(scratch, "LOCK_LIMIT_S", 0.05)
    words = [sys.executable, "-c", LOCKED, str(node.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        with pytest.raises(HeadwayError, match=r"scratch has been locked for 0.05 s"):
            verbs.restart(node, ticket)
        assert ending.end(node, ticket, lock_s=0.05) == 0 and not node.has_joined(1, "")
        other.kill()  # its lock ends with it
    assert verbs.restart(node, ticket) == verbs.NO_INIT


def test_neither_an_end_nor_a_restart_makes_a_scratch(
    tmp_path: Path, node: NodeFolder, ticket: Ticket
) -> None:
    assert ending.end(node, ticket) == 0 and verbs.restart(node, ticket) == verbs.NO_INIT
    assert not (tmp_path / "scratch").exists()
