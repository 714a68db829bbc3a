"""CURVE: who lacks the right keys gets nothing in, and is told to look at its keys."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from headway.common.errors import DeadlineError, InputError
from headway.common.wire import codec
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.service import Done, Ping
from headway.common.wire.server import Server
from headway.testkit.wire import serving
from headway.testkit.wire.inputs import Inputs

KEYS = KeyPair.generate()
MEMBER = KeyPair.generate()
STRANGER = KeyPair.generate()


def answer(_message: Ping, _peer: bytes) -> Done:
    return Done()


def test_any_client_that_knows_the_server_key_is_served() -> None:
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer}, KEYS)) as server:
        for keys in (None, MEMBER):
            with Client(server.endpoint, keys=keys, server_key=KEYS.public) as client:
                assert client.call(Ping(), Done) == Done()


@pytest.mark.parametrize("server_key", [None, STRANGER.public], ids=["no keys", "wrong server key"])
def test_a_client_without_the_right_server_key_is_refused_and_told_about_keys(
    server_key: bytes | None,
) -> None:
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer}, KEYS)) as server:
        with (
            Client(server.endpoint, server_key=server_key) as client,
            pytest.raises(DeadlineError) as caught,
        ):
            client.call(Ping(), Done, timeout_s=0.5)
        assert "key" in caught.value.remedy
        assert server.counts.total() == 0


def test_a_client_with_keys_is_told_about_them_by_a_server_without() -> None:
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer})) as server:
        client = Client(server.endpoint, server_key=KEYS.public)
        with client, pytest.raises(DeadlineError, match="keys"):
            client.call(Ping(), Done, timeout_s=0.5)
        assert server.counts.total() == 0


def test_only_known_clients_enter_where_they_are_listed() -> None:
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer}, KEYS, [MEMBER.public])) as server:
        for keys in (None, STRANGER):
            client = Client(server.endpoint, keys=keys, server_key=KEYS.public)
            with client, pytest.raises(DeadlineError, match="known client keys"):
                client.call(Ping(), Done, timeout_s=0.5)
        with Client(server.endpoint, keys=MEMBER, server_key=KEYS.public) as client:
            assert client.call(Ping(), Done) == Done()
        assert server.counts.total() == 1


def test_nobody_enters_an_empty_list() -> None:
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer}, KEYS, [])) as server:
        client = Client(server.endpoint, keys=MEMBER, server_key=KEYS.public)
        with client, pytest.raises(DeadlineError):
            client.call(Ping(), Done, timeout_s=0.5)


def test_old_protocols_cannot_walk_around_the_keys() -> None:
    """ZMTP 1.0 and 2.0 know no keys; libzmq must refuse them on a keyed socket."""
    inputs = Inputs(3, [codec.encode(Ping())])
    with serving(Server("tcp://127.0.0.1:0", {Ping: answer}, KEYS)) as server:
        host, port = server.endpoint.removeprefix("tcp://").split(":")
        for _ in range(50):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(inputs._old_zmtp())
        with Client(server.endpoint, server_key=KEYS.public) as client:
            client.call(Ping(), Done)
        assert server.counts == {"requests": 1}


def test_the_largest_message_fits_a_keyed_server(tmp_path: Path) -> None:
    from headway.common.wire.messages.service import Failure

    path = tmp_path / "run.key"
    KeyPair.generate().save(path)
    keys = KeyPair.load(path)
    large = Failure(code="", message="x" * (codec.MAX_MESSAGE_BYTES - 200))
    server = Server("tcp://127.0.0.1:0", {Failure: lambda message, _peer: message}, keys)
    client = Client(server.endpoint, server_key=keys.public)
    with serving(server), client:
        assert client.call(large, Failure) == large


def test_impossible_combinations_of_keys_are_input_errors() -> None:
    with pytest.raises(InputError, match="allowed clients without server keys"):
        Server("tcp://127.0.0.1:0", {}, None, [MEMBER.public])
    with pytest.raises(InputError, match="40 bytes"):
        Server("tcp://127.0.0.1:0", {}, KEYS, [b"short"])
    with pytest.raises(InputError, match="40 bytes"):
        Client("tcp://127.0.0.1:9", server_key=b"short")
