"""A machine finds the driver and asks to be a node; what it reports where that fails."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common import installed
from headway.common.errors import BusyError, DeadlineError
from headway.common.node.process import ProcessId
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Join, Joined
from headway.common.wire.server import Server
from headway.launch.join import client
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease


def _publish(control: Path, endpoint: str, keys: KeyPair) -> Ticket:
    me = ProcessId.current()
    key = keys.public.decode()
    holder = Holder(1, 0, me.pid, me.start_ticks, server_key=key, join_endpoint=endpoint)
    FileLease(control).publish(holder)
    return Ticket("0123abcd", 1, "token", str(control), "/nowhere")


@pytest.fixture
def unreachable() -> Iterator[str]:
    """An address at which nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def test_an_address_of_the_driver_that_is_not_reached_is_named(
    tmp_path: Path, unreachable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_S", 0.2)
    keys = KeyPair.generate()
    ticket = _publish(tmp_path, unreachable, keys)
    with pytest.raises(DeadlineError) as error:
        client.join(ticket, keys, limit_s=0.5)
    wanted = f"within 0 s: the driver does not answer at {unreachable}"
    assert error.value.message.endswith(wanted)
    assert "its firewall the port" in error.value.remedy


def test_a_run_without_a_driver_is_named_by_its_folder(tmp_path: Path) -> None:
    ticket = Ticket("0123abcd", 1, "token", str(tmp_path), "/nowhere")
    with pytest.raises(DeadlineError, match=f"no driver has announced itself in {tmp_path}"):
        client.join(ticket, KeyPair.generate(), limit_s=0.3)


def test_a_driver_that_stays_busy_has_the_last_word(tmp_path: Path) -> None:
    asked: list[Join] = []

    def refuse(message: Join, peer: bytes) -> Joined:
        del peer
        asked.append(message)
        raise BusyError("another machine has this id", remedy="give it one of its own")

    keys, is_over = KeyPair.generate(), threading.Event()
    with contextlib.closing(Server("tcp://127.0.0.1:0", {Join: refuse}, keys=keys)) as server:

        def serve() -> None:
            while not is_over.is_set():
                if server.socket.poll(20):
                    server.handle_ready()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            ticket = _publish(tmp_path, server.endpoint, keys)
            with pytest.raises(DeadlineError, match="another machine has this id") as error:
                client.join(ticket, keys, limit_s=1.5)
        finally:
            is_over.set()
            thread.join()
    assert error.value.remedy == "give it one of its own"
    assert len(asked) > 1
    assert (asked[0].address, asked[0].source) == ("127.0.0.1", installed.source())
    assert asked[0].torch == installed.torch()


def test_two_commits_of_one_version_differ_in_their_source(tmp_path: Path) -> None:
    def look() -> str:
        return installed.digest_of([tmp_path / "a", tmp_path / "b"])

    for package in ("a/controller/driver", "b/launch", "b/testkit"):
        (tmp_path / package).mkdir(parents=True)
    for package in ("a/controller", "b/launch"):
        (tmp_path / package / "__init__.py").touch()
    module = tmp_path / "a" / "controller" / "driver" / "gate.py"
    module.write_text("one")
    first = look()
    (tmp_path / "b" / "testkit" / "bed.py").write_text("a node does not run it")
    (tmp_path / "b" / "launch" / "notes.txt").write_text("not a module")
    assert look() == first and len(first) == 16
    module.write_text("two")
    second = look()
    module.rename(module.with_name("door.py"))
    assert len({first, second, look()}) == 3
    (tmp_path / "b" / "launch" / "new.py").touch()
    assert look() != second


def test_the_source_is_that_of_the_package_which_is_imported(tmp_path: Path) -> None:
    modules = [tmp_path / place / "trainer" / "step.py" for place in ("first", "second")]
    for module in modules:
        module.parent.mkdir(parents=True)
        module.write_text("one")
        module.with_name("__init__.py").touch()
    roots = [tmp_path / "first", tmp_path / "second"]
    before = installed.digest_of(roots)
    modules[1].write_text("two")
    assert installed.digest_of(roots) == before, "it is hidden by the first"
    modules[0].write_text("two")
    assert installed.digest_of(roots) != before
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "first" / "trainer" / "__pycache__").mkdir(parents=True)
    after = installed.digest_of(roots)
    modules[1].write_text("three")
    assert installed.digest_of(roots) != after, "an import passes over what is left of a package"
