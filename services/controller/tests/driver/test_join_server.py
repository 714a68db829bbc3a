"""Machines join by the driver's gate, over CURVE, with a real journal behind it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import zmq
from headway.common.errors import BusyError, RemoteError
from headway.common.node.testing import wait_until
from headway.common.wire.addresses import Network
from headway.common.wire.admission import Admission
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Join, Joined
from headway.controller.decisions.events import Memory
from headway.controller.driver import join_server as gates
from headway.controller.driver.join_server import JoinServer, members_of
from headway.controller.driver.memory import remember
from headway.controller.journal.journal import Journal
from headway.controller.journal.writer import JournalWriter
from headway.launch.cluster import ClusterFolder
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.client import this_machine

RUN = "0123ab08"
SECRET = tokens.new_secret()


class Door:
    """A gate that is served by a thread, and its journal."""

    def __init__(self, folder: Path, **options: Any) -> None:
        bundle = Bundle(RUN, "a", 4, "[train]\n", Network(), {}, str(folder), SECRET)
        self.bundle, self.keys, self.admission = bundle, KeyPair.generate(), Admission()
        self.path = folder / "run.sqlite"
        journal = Journal(self.path, is_shared=True)
        self.known = members_of(journal)
        self.writer = JournalWriter(journal, lambda: None)
        path = folder / "cluster"
        cluster = ClusterFolder(path) if path.exists() else ClusterFolder.create(path, nodes=1)
        self.gate = JoinServer(
            bundle, cluster, 0, self.keys, self.known, self.admission, self.writer
        )
        self.agents = path / "keys" / gates.AGENTS
        for name, value in options.items():
            setattr(self.gate, name, value)
        self._is_open = True
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self.gate.server.socket, zmq.POLLIN)
        poller.register(self.writer.done_fd, zmq.POLLIN)
        while self._is_open:
            ready = dict(poller.poll(20))
            if self.gate.server.socket in ready:
                self.gate.server.handle_ready()
            if self.writer.done_fd in ready:
                self.writer.run_callbacks()

    def close(self) -> None:
        self._is_open = False
        self._thread.join()
        self.gate.close()
        self.writer.close(5.0)

    def ask(self, node: int = 1, keys: KeyPair | None = None, **changes: Any) -> Joined:
        keys = keys or KeyPair.generate()
        token = tokens.mint(SECRET, RUN, node)
        question = this_machine(node, keys.public, token=token)
        question = msgspec.structs.replace(question, **{"uid": f"machine-{node}", **changes})
        return self.send(question, keys)

    def send(self, question: Join, keys: KeyPair) -> Joined:
        endpoint, server_key = self.gate.server.endpoint, self.keys.public
        with Client(endpoint, keys=keys, server_key=server_key) as client:
            return client.call(question, Joined, timeout_s=20.0, retries=0)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    found = Door(tmp_path)
    with contextlib.closing(found):
        yield found


def test_a_machine_gets_the_bundle_and_its_key_is_admitted(door: Door) -> None:
    keys = KeyPair.generate()
    joined = door.ask(keys=keys)
    assert joined.node == 1 and Bundle.from_json(joined.bundle, source="it") == door.bundle
    assert door.admission(keys.public)
    assert keys.public in door.agents.read_bytes().split()
    assert door.ask(keys=keys) == joined, "asked twice, answered alike"


def test_a_next_gate_knows_the_members(tmp_path: Path) -> None:
    keys = KeyPair.generate()
    with contextlib.closing(Door(tmp_path)) as first:
        first.ask(keys=keys)
    with contextlib.closing(Door(tmp_path)) as second:
        assert set(second.known) == {0, 1}
        assert second.admission(keys.public)


def test_a_machine_that_was_rebooted_takes_its_number_again(door: Door) -> None:
    old, new, rebooted = KeyPair.generate(), KeyPair.generate(), []
    door.gate.rebooted = rebooted.append
    door.ask(keys=old, boot_id="first")
    door.ask(keys=old, boot_id="first")
    assert rebooted == []
    door.ask(keys=new, boot_id="second")
    assert rebooted == [1]
    assert door.admission(new.public) and not door.admission(old.public)
    assert old.public not in door.agents.read_bytes().split()


def test_the_key_of_an_evicted_node_is_worth_nothing(tmp_path: Path) -> None:
    keys = KeyPair.generate()
    leaving: set[int] = set()
    with contextlib.closing(Door(tmp_path, is_leaving=leaving.__contains__)) as door:
        door.ask(keys=keys)
        leaving.add(1)
        door.gate.revoke(1)
        assert not door.admission(keys.public)
        with pytest.raises(BusyError, match="was evicted"):
            door.ask(keys=keys)
        leaving.clear()
        assert door.ask(keys=keys).node == 1, "its machine was ended; somebody started it anew"


def test_a_next_gate_does_not_admit_a_node_that_was_evicted_and_may_still_run(
    tmp_path: Path,
) -> None:
    """The write that revokes its key may have failed."""
    keys = {node: KeyPair.generate() for node in (1, 2)}
    with contextlib.closing(Door(tmp_path)) as first:
        for node, one in keys.items():
            first.ask(node, one)
        done = threading.Event()
        memory = Memory(evicted=(1, 2), released=(2,))  # node 2 has ended, and has joined again
        first.writer.submit(lambda journal: remember(journal, memory), lambda *_: done.set())
        assert done.wait(20.0)
    with contextlib.closing(Door(tmp_path)) as second:
        assert set(second.known) == {0, 2}
        assert not second.admission(keys[1].public) and second.admission(keys[2].public)


def _other_token(**changes: Any) -> dict[str, Any]:
    made = {"secret": SECRET, "run_id": RUN, "node": 1, "valid_s": 60.0, **changes}
    return {"token": tokens.mint(**made)}


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "another secret": (lambda: _other_token(secret=tokens.new_secret()), "does not belong to run"),
    "another run": (lambda: _other_token(run_id="ffffffff"), "does not belong to run"),
    "another node": (lambda: _other_token(node=2), "is for node 2, not node 1"),
    "expired": (lambda: _other_token(valid_s=-90.0), "expired 9"),
    "no token": (lambda: {"token": ""}, "malformed"),
    "another version": (lambda: {"version": "0.0.1"}, r"has Headway 0\.0\.1, the driver's machine"),
    "another commit": (lambda: {"source": "0" * 16}, "source 0{16}, the driver's machine [0-9a-f]"),
    "an older commit": (lambda: {"source": ""}, "has Headway's source unknown, the driver's"),
    "another torch": (lambda: {"torch": "0.4"}, r"has torch 0\.4, the driver's machine [0-9]"),
    "a torch of two lines": (lambda: {"torch": "1\n2"}, r"torch='1\\n2', which"),
    "an address with a blank": (lambda: {"address": "a b"}, "address='a b', which"),
    "a clock": (lambda: {"unix_s": time.time() + 3600}, r"\+3[56]\d\d s off"),
    "no key": (lambda: {"public_key": "no key"}, "sent no public key"),
    "no time": (lambda: {"unix_s": math.nan}, r"clock of \S+ is \+nan s off"),
    "the end of time": (lambda: {"unix_s": math.inf}, r"clock of \S+ is \+inf s off"),
    "a long token": (lambda: {"token": f"{'9' * 5000}.1.{'0' * 64}"}, "malformed"),
    "digits of another script": (lambda: {"token": f"1.\u0661.{'0' * 64}"}, "malformed"),
    "a host of two lines": (lambda: {"host": "a\nb"}, r"host='a\\nb', which is not 1 to 255"),
    "a host that clears screens": (lambda: {"host": "\x1b[2J"}, r"host='\\x1b\[2J', which"),
    "a long host": (lambda: {"host": "h" * 300_000}, r"host='h{40}\.\.\.', which"),
    "no identity": (lambda: {"uid": ""}, "uid='', which"),
    "a boot with a zero": (lambda: {"boot_id": "\0"}, r"boot_id='\\x00', which"),
    "a version with a blank": (lambda: {"version": "1 2"}, "version='1 2', which"),
    "negative GPUs": (lambda: {"num_gpus": -1}, "num_gpus=-1, which is not 0 or more"),
    "negative memory": (lambda: {"memory_bytes": -5}, "memory_bytes=-5, which"),
}


@pytest.mark.parametrize(("changes", "expected"), REFUSED.values(), ids=REFUSED)
def test_who_may_not_join_learns_why(
    door: Door, changes: Callable[[], dict[str, Any]], expected: str
) -> None:
    keys = KeyPair.generate()
    with pytest.raises(RemoteError, match=expected) as error:
        door.ask(keys=keys, **changes())
    assert error.value.remedy and error.value.remote_code == "input"
    assert str(error.value).isprintable() and len(str(error.value)) < 300
    assert not door.admission(keys.public)
    assert set(door.known) == {0}


def test_a_full_run_admits_no_other(door: Door) -> None:
    with pytest.raises(RemoteError, match="the run has only 4 nodes, so there is no node 4"):
        door.ask(node=4)


def test_one_machine_is_one_node(tmp_path: Path) -> None:
    alive: set[int] = set()
    with contextlib.closing(Door(tmp_path, is_alive=alive.__contains__)) as door:
        door.ask(node=1, uid="m", boot_id="b")
        with pytest.raises(BusyError, match="which is node 1 of the run"):
            door.ask(node=2, uid="m", boot_id="b")
        alive.add(1)
        with pytest.raises(RemoteError, match="is node 1 of the run already"):
            door.ask(node=2, uid="m", boot_id="b")


def test_machines_with_one_id_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """They were copied from one image; only their boots differ."""
    alive: set[int] = set()
    first, second = KeyPair.generate(), KeyPair.generate()
    with contextlib.closing(Door(tmp_path, is_alive=alive.__contains__)) as door:
        door.ask(node=1, keys=first, uid="image", boot_id="b", host="gpu-01")
        with pytest.raises(BusyError, match="has the machine id of gpu-01, which is node 1"):
            door.ask(node=2, keys=second, uid="image", boot_id="c", host="gpu-02")
        alive.add(1)
        with pytest.raises(RemoteError, match="gpu-02 has the machine id of gpu-01") as error:
            door.ask(node=2, keys=second, uid="image", boot_id="c", host="gpu-02")
        assert "systemd-machine-id-setup" in error.value.remedy
        assert error.value.remote_code == "input"
        with pytest.raises(BusyError, match="gpu-01, which still reports as node 1") as busy:
            door.ask(node=1, keys=second, uid="image", boot_id="c", host="gpu-02")
        assert "systemd-machine-id-setup" in busy.value.remedy
        assert door.admission(first.public) and not door.admission(second.public)


def test_a_machine_that_was_rebooted_is_admitted_once_its_former_boot_is_silent(
    tmp_path: Path,
) -> None:
    alive = {1}
    with contextlib.closing(Door(tmp_path, is_alive=alive.__contains__)) as door:
        door.ask(boot_id="first")
        with pytest.raises(BusyError, match="still reports as node 1"):
            door.ask(boot_id="second")
        alive.clear()
        assert door.ask(boot_id="second").node == 1


@pytest.mark.parametrize("boot_id", ["b", "c"])
def test_a_machine_becomes_another_node_once_its_former_one_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str
) -> None:
    """Slurm numbers the machines of a resumed run anew, and gives them to further jobs."""
    monkeypatch.setattr(gates, "START_S", 0.0)
    with contextlib.closing(Door(tmp_path)) as first:
        first.ask(node=1, uid="m", boot_id="b")
        assert first.ask(node=2, uid="m", boot_id=boot_id).node == 2
    early = pytest.raises(BusyError, match="which is node 1 of the run")
    with contextlib.closing(Door(tmp_path)) as second, early:
        second.ask(node=3, uid="m", boot_id=boot_id)
    monkeypatch.setattr(gates, "RETURN_S", 0.0)
    with contextlib.closing(Door(tmp_path)) as third:
        assert third.ask(node=3, uid="m", boot_id=boot_id).node == 3


def test_a_key_belongs_to_one_node(door: Door) -> None:
    keys = KeyPair.generate()
    door.ask(node=1, keys=keys)
    with pytest.raises(RemoteError, match="sent the public key of another node"):
        door.ask(node=2, keys=keys)
    door.gate.revoke(1)
    assert door.ask(node=2, keys=keys).node == 2


def test_refusals_take_one_line_per_node_and_period(door: Door) -> None:
    with structlog.testing.capture_logs() as lines:
        for _ in range(50):
            for node in (1, 2, 4, 5, 2**63):
                with pytest.raises(RemoteError):
                    door.ask(node=node, host="h\n" * 1000, token="")
    said = [line for line in lines if line["event"] == "refused a node"]
    assert [line["node"] for line in said] == [1, 2, 4]
    assert all(str(line).isprintable() and len(str(line)) < 400 for line in said)
    assert {len(line["host"]) for line in said} == {63}, "the beginning, with its escapes"


def test_a_number_belongs_to_the_machine_that_reports(tmp_path: Path) -> None:
    alive = {1}
    with contextlib.closing(Door(tmp_path, is_alive=alive.__contains__)) as door:
        door.ask(uid="m")
        with pytest.raises(RemoteError, match="is another machine already"):
            door.ask(uid="other")
        alive.clear()
        assert door.ask(uid="other").node == 1


def test_nobody_is_admitted_whom_a_next_driver_would_not_know(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    keys = KeyPair.generate()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "set_facts", fail)
        for _ in range(2):
            with pytest.raises(BusyError, match="cannot be recorded: OSError: the disk is full"):
                door.ask(keys=keys)
        assert not door.admission(keys.public)
    assert door.ask(keys=keys).node == 1
    door.writer.trouble = "the disk is full again"
    with pytest.raises(BusyError, match="cannot be recorded: the disk is full again"):
        door.ask(node=2)


class SlowJournal:
    """Each write of the members waits until it may end; one that finds a lock begins again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_begun, self.num_done, self._may_end = 0, 0, threading.Event()
        self._write = Journal.set_facts
        monkeypatch.setattr(Journal, "set_facts", lambda *one, **facts: self._set(*one, **facts))

    def _set(self, journal: Journal, **facts: str) -> None:
        self.num_begun += 1
        assert self._may_end.wait(20)
        self._write(journal, **facts)
        self.num_done += 1

    @contextlib.contextmanager
    def asked(self, door: Door, *asks: dict[str, Any]) -> Iterator[list[Future[Joined]]]:
        """Several ask in turn, while the write for the first is open; afterwards it ends."""
        with ThreadPoolExecutor(len(asks)) as pool:
            asked = []
            try:
                for ask in asks:
                    asked.append(pool.submit(door.ask, **ask))
                    wait_until(lambda: len(door.gate._pending) == len(asked), what="the request")
                    wait_until(lambda: self.num_begun == 1, what="a write without the next one")
                yield asked
            finally:
                self._may_end.set()


def test_a_slow_journal_holds_up_neither_the_driver_nor_a_node(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, other = KeyPair.generate(), KeyPair.generate()
    with SlowJournal(monkeypatch).asked(door, {"keys": keys}) as (first,):
        for asking in (keys, other):
            with pytest.raises(BusyError, match="the journal has not recorded it yet"):
                door.ask(keys=asking)
        with pytest.raises(RemoteError, match="there is no node 4"):
            door.ask(node=4)
        assert not door.admission(keys.public) and not first.done()
    assert first.result(20).node == 1, "it need not ask again"
    assert door.admission(keys.public)
    assert door.ask(keys=other, boot_id="next").node == 1
    assert not door.admission(keys.public)


def test_nodes_that_join_during_a_write_share_the_next_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, keys = SlowJournal(monkeypatch), KeyPair.generate()
    asks = [{"node": 1, "uid": "m", "boot_id": "b"}, {"node": 2, "keys": keys}]
    with slow.asked(door, *asks) as asked:
        with pytest.raises(BusyError, match="has the machine id of"):
            door.ask(node=3, uid="m", boot_id="b")
        with pytest.raises(RemoteError, match="sent the public key of another node"):
            door.ask(node=3, keys=keys)
    assert [one.result(20).node for one in asked] == [1, 2]
    assert slow.num_done == 2 and set(door.known) == {0, 1, 2}


def test_a_node_that_is_evicted_while_it_joins_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyPair.generate()
    with contextlib.closing(Door(tmp_path)) as door:
        with SlowJournal(monkeypatch).asked(door, {"keys": keys}, {"node": 2}) as asked:
            door.gate.revoke(1)
            with pytest.raises(BusyError, match="was evicted"):
                asked[0].result(20)
        assert asked[1].result(20).node == 2
        assert not door.admission(keys.public)
    with contextlib.closing(Door(tmp_path)) as second:
        assert set(second.known) == {0, 2}


def test_members_that_cannot_be_read_join_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.sqlite")
    journal.set_facts(members='{"1": {"uid": 5}}')
    assert members_of(journal) == {}
    journal.close()
