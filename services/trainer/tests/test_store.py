"""The generation's store: values meet waiters, garbage harms nobody, and its end is heard."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from headway.trainer.parallel.store import MAX_FRAME_BYTES, StoreClient, StoreServer

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
    connected = StoreClient(HOST, server.port, 20.0)
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
    waiter = StoreClient(HOST, server.port, 20.0)
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


def test_a_missing_store_is_one_clear_error() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match=f"no store answers at {HOST}:{port}"):
        StoreClient(HOST, port, 5.0)


def test_garbage_is_disconnected_while_others_are_served(
    server: StoreServer, client: StoreClient
) -> None:
    draw = random.Random(5)
    client.set("k", b"v")
    for round_ in range(300):
        with socket.create_connection((HOST, server.port)) as stranger:
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
