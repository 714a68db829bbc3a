"""The generation's store: values meet waiters, garbage harms nobody, and its end is heard."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import wait_until
from headway.trainer.comm import store
from headway.trainer.comm.interface import PeerLost
from headway.trainer.comm.store import (
    MAX_FRAME_BYTES,
    StoreClient,
    StoreEndpoint,
    StoreServer,
)

HOST = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    started = StoreServer(HOST)
    yield started
    started.close()
    started._thread.join(20)
    assert not started._thread.is_alive()


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    connected = StoreClient(server.endpoint, 20.0)
    yield connected
    connected.close()


def test_values_numbers_and_keys_come_back(client: StoreClient) -> None:
    client.set("a", b"\x00\xff")
    client.set("b", "text")
    assert (client.get("a"), client.get("b")) == (b"\x00\xff", b"text")
    assert [client.add("n", 2), client.add("n", 3)] == [2, 5]
    assert client.check(["a", "b"]) and not client.check(["a", "c"])
    assert client.num_keys() == 3
    assert client.delete_key("a") and not client.delete_key("a")


def test_a_get_waits_for_the_value_of_another_client(
    server: StoreServer, client: StoreClient
) -> None:
    found: list[bytes] = []
    waiter = StoreClient(server.endpoint, 20.0)
    thread = threading.Thread(target=lambda: found.append(waiter.get("late")))
    thread.start()
    client.set("other", b"1")
    assert not found
    client.set("late", b"2")
    thread.join(20)
    waiter.close()
    assert found == [b"2"]


def test_its_end_is_an_error_for_whoever_waits(server: StoreServer, client: StoreClient) -> None:
    errors: list[str] = []

    def wait() -> None:
        try:
            client.wait(["never"])
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    server.close()
    thread.join(20)
    assert errors and "store is gone" in errors[0]


def test_a_port_of_the_range_that_is_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(InputError, match=f"the ports {taken}-{taken} are all in use"):
            StoreServer("127.0.0.1", f"{taken}-{taken}")
        low = min(taken, 65530)
        for _ in range(8):  # which one is tried first is chance
            server = StoreServer("127.0.0.1", f"{low}-{low + 5}")
            assert server.endpoint.port != taken
            server.close()


def test_a_missing_store_is_one_clear_error() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match=f"no store answers at {HOST}:{port}"):
        StoreClient(StoreEndpoint(HOST, port, ""), 5.0)


def test_garbage_is_disconnected_while_others_are_served(
    server: StoreServer, client: StoreClient
) -> None:
    draw = random.Random(5)
    client.set("k", b"v")
    for round_ in range(300):
        with socket.create_connection((HOST, server.endpoint.port)) as stranger:
            stranger.settimeout(20)
            if round_ % 3 == 0:
                stranger.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
            else:
                body = draw.randbytes(draw.randrange(1, 200))
                stranger.sendall(struct.pack("<I", len(body)) + body)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):  # until the server hangs up
                pass
        assert client.get("k") == b"v"
    client.num_keys()
    assert len(server._peers) == 1
    assert server.num_refused == 300


def test_garbage_behind_the_right_secret_is_disconnected_too(
    server: StoreServer, client: StoreClient
) -> None:
    draw = random.Random(6)
    for _ in range(100):
        member = StoreClient(server.endpoint, 20.0)
        body = draw.randbytes(draw.randrange(1, 200))
        member._socket.sendall(struct.pack("<I", len(body)) + body)
        member._socket.shutdown(socket.SHUT_WR)
        while member._socket.recv(4096):
            pass
        member.close()
    client.set("k", b"v")
    assert client.get("k") == b"v"
    assert (len(server._peers), server.num_refused) == (1, 0)


@pytest.mark.parametrize("secret", ["", "wrong", None])
def test_who_does_not_show_the_secret_first_stores_nothing(
    server: StoreServer, client: StoreClient, secret: str | None
) -> None:
    endpoint = server.endpoint
    if secret is not None:
        with pytest.raises(PeerLost):
            StoreClient(StoreEndpoint(HOST, endpoint.port, secret), 20.0)
    else:
        with socket.create_connection((HOST, endpoint.port)) as stranger:
            stranger.settimeout(20)
            stranger.sendall(store._frame(store._Request("set", ("k",), b"forged")))
            assert stranger.recv(1) == b""
    assert client.num_keys() == 0
    assert server.num_refused == 1


def test_a_secret_is_wanted_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SECRET_LIMIT_S", 0.05)
    server = StoreServer(HOST)
    try:
        with socket.create_connection((HOST, server.endpoint.port)) as silent:
            silent.settimeout(20)
            assert silent.recv(1) == b""
        assert server.num_refused == 1
    finally:
        server.close()
        server._thread.join(20)


def test_connections_without_a_secret_are_few_and_small(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_STRANGERS", 3)
    address = (HOST, server.endpoint.port)
    strangers = [socket.create_connection(address) for _ in range(5)]
    wait_until(lambda: server.num_refused == 2, what="the two oldest refused")
    strangers[4].sendall(struct.pack("<I", store.MAX_FIRST_FRAME_BYTES + 1))
    wait_until(lambda: server.num_refused == 3, what="a first frame that is too long refused")
    StoreClient(server.endpoint, 20.0).close()
    for stranger in strangers:
        stranger.close()


def test_the_values_have_a_bound_together(
    server: StoreServer, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_STORED_BYTES", 100)
    for _ in range(5):
        client.set("a", b"x" * 50)
        client.set("b", b"x" * 40)
        client.delete_key("b")
    greedy = StoreClient(server.endpoint, 20.0)
    with pytest.raises(PeerLost):
        greedy.set("b", b"x" * 60)
    greedy.close()
    assert client.num_keys() == 1


def test_a_waiter_that_is_dropped_in_the_turn_in_which_it_is_read_ends_nothing(
    server: StoreServer, client: StoreClient
) -> None:
    may_look, select = threading.Event(), server._selector.select

    def gated(timeout: float | None = None) -> Any:
        may_look.wait(20)
        return select(timeout)

    waiter, setter = (StoreClient(server.endpoint, 20.0) for _ in range(2))
    waiter._socket.sendall(store._frame(store._Request("wait", ("k",))))
    wait_until(lambda: any(peer.waiting for peer in server._peers.values()), what="a waiter")
    server._selector.select = gated  # type: ignore[method-assign]
    client.num_keys()  # the turn after this one is gated
    setter._socket.sendall(store._frame(store._Request("set", ("k",), b"v")))
    waiter._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    waiter.close()  # by a reset: the answer cannot be sent
    may_look.set()
    assert client.get("k") == b"v"
    setter.close()
