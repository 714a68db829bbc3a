"""Keys that a server admits from one moment to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headway.common.errors import DeadlineError
from headway.common.polling import wait_until
from headway.common.wire.admission import Admission, KeyFile
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.service import Done, Ping
from headway.common.wire.server import Server


@contextmanager
def serving(admits: Callable[[bytes], bool]) -> Iterator[Callable[[KeyPair], bool]]:
    """Yields whether a client with these keys gets an answer."""
    keys, is_over = KeyPair.generate(), threading.Event()
    server = Server("tcp://127.0.0.1:0", {Ping: lambda *_: Done()}, keys=keys, allowed=admits)

    def serve() -> None:
        while not is_over.is_set():
            if server.socket.poll(20):
                server.handle_ready()

    def answers(client_keys: KeyPair) -> bool:
        with Client(server.endpoint, keys=client_keys, server_key=keys.public) as client:
            try:
                client.call(Ping(), Done, timeout_s=1.5, retries=0)
            except DeadlineError:
                return False
            return True

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()
        server.close()


def test_keys_are_admitted_and_revoked_while_the_server_runs() -> None:
    known, other = KeyPair.generate(), KeyPair.generate()
    admission = Admission({known.public})
    with serving(admission) as answers:
        assert answers(known) and not answers(other)
        admission.admit(other.public)
        admission.revoke(known.public)
        assert answers(other) and not answers(known)


def test_a_key_that_was_revoked_sends_nothing_more_over_its_open_connection() -> None:
    own, keys, received = KeyPair.generate(), KeyPair.generate(), []
    admission = Admission({own.public})
    handlers = {Ping: lambda *got: received.append(got) or Done()}
    with (
        Server("tcp://127.0.0.1:0", handlers, keys=keys, allowed=admission) as server,
        Client(server.endpoint, keys=own, server_key=keys.public) as client,
    ):

        def is_handled() -> bool:
            return bool(server.socket.poll(20) and server.handle_ready())

        client.notify(Ping())
        assert wait_until(is_handled, 10.0) and len(received) == 1
        admission.revoke(own.public)
        client.notify(Ping())
        assert wait_until(is_handled, 10.0) and len(received) == 1
        assert server.counts["revoked"] == 1
        admission.admit(own.public)
        client.notify(Ping())
        assert wait_until(is_handled, 10.0) and len(received) == 2


def test_a_file_of_keys_is_followed(tmp_path: Path) -> None:
    one, two = KeyPair.generate(), KeyPair.generate()
    file = KeyFile(tmp_path / "keys")
    assert not file(one.public), "there is no file yet"
    file.write([one.public])
    assert file(one.public) and not file(two.public)
    KeyFile(tmp_path / "keys").write([two.public])
    assert file(two.public) and not file(one.public)
    (tmp_path / "keys").unlink()
    assert file(two.public), "those of before count while it is being replaced"
    assert not list(tmp_path.iterdir())


def test_what_is_no_key_is_not_admitted() -> None:
    with pytest.raises(ValueError, match="not a Z85 key"):
        Admission().admit(b"short")
