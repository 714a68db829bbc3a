"""The generation's store: values meet waiters, garbage harms nobody, and its end is heard."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import wait_until
from headway.common.wire import endpoint
from headway.common.wire.endpoint import reconnect
from headway.common.wire.keys import KeyPair
from headway.trainer.comm import store
from headway.trainer.comm.interface import PeerLost
from headway.trainer.comm.store import (
    MAX_FRAME_BYTES,
    StoreClient,
    StoreEndpoint,
    StoreServer,
)

HOST = "127.0.0.1"


def _server(ports: str = "", world_size: int = 2000) -> StoreServer:
    return StoreServer(HOST, ports, world_size=world_size, timeout_s=20.0)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    started = _server()
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


def test_closing_a_connection_ends_the_call_that_waits_on_another_thread(
    server: StoreServer,
) -> None:
    """libzmq crashes the process where a socket is closed under a thread that uses it."""
    for number in range(1, 31):
        client = StoreClient(server.endpoint, 20.0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, "never")
            wait_until(lambda n=number: len(server._waiting) == n, what="the request")
            client.close()
            with pytest.raises(PeerLost, match="this rank has closed its connection"):
                waiting.result(20)
        client.close()
        with pytest.raises(PeerLost, match="an earlier request failed"):
            client.num_keys()
    unused = StoreClient(server.endpoint, 20.0)
    unused.close()
    with pytest.raises(PeerLost, match="this rank has closed its connection"):
        unused.num_keys()


def test_a_port_of_the_range_that_is_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(InputError, match=f"the ports {taken}-{taken} are all in use"):
            _server(f"{taken}-{taken}")
        low = min(taken, 65530)
        for _ in range(8):  # which one is tried first is chance
            server = _server(f"{low}-{low + 5}")
            assert server.endpoint.port != taken
            server.close()


def test_a_missing_store_is_one_clear_error() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match=f"no store answers at {HOST}:{port}"):
        StoreClient(StoreEndpoint(HOST, port, KeyPair.generate().public.decode()), 0.5)


def test_garbage_of_strangers_harms_nobody(server: StoreServer, client: StoreClient) -> None:
    draw = random.Random(5)
    client.set("k", b"v")
    for _ in range(300):
        with socket.create_connection((HOST, server.endpoint.port)) as stranger:
            stranger.sendall(draw.randbytes(draw.randrange(1, 200)))
        assert client.get("k") == b"v"
    assert client.num_keys() == 1


def test_garbage_of_members_is_answered_with_an_error(
    server: StoreServer, client: StoreClient
) -> None:
    draw = random.Random(6)
    for _ in range(50):
        member = StoreClient(server.endpoint, 20.0)
        member._socket.send(b"\xc1" + draw.randbytes(draw.randrange(1, 200)))
        with pytest.raises(PeerLost, match="gone: "):
            member.num_keys()  # gets the answer to what was sent before
        with pytest.raises(PeerLost, match="an earlier request failed"):
            member.num_keys()
        member.close()
    client.set("k", b"v")
    assert client.get("k") == b"v"


def test_a_frame_that_is_too_large_ends_its_connection(
    server: StoreServer, client: StoreClient
) -> None:
    member = StoreClient(server.endpoint, 20.0)
    with pytest.raises(PeerLost, match="the connection has ended"):
        member.set("large", bytes(MAX_FRAME_BYTES + 1))
    member.close()
    assert client.num_keys() == 0


@pytest.mark.parametrize("secret", ["", "wrong", "another key"])
def test_who_lacks_the_secret_is_refused_at_once(
    server: StoreServer, client: StoreClient, secret: str
) -> None:
    if secret == "another key":
        secret = KeyPair.generate().public.decode()
    with pytest.raises(PeerLost, match="no store answers"):
        StoreClient(StoreEndpoint(HOST, server.endpoint.port, secret), 60.0)
    assert client.num_keys() == 0


def test_nothing_crosses_in_plain(server: StoreServer) -> None:
    with Relay(server.endpoint.port) as relay:
        through = StoreEndpoint(HOST, relay.port, server.endpoint.secret)
        client = StoreClient(through, 20.0)
        client.set("the-name-of-a-key", b"the value of a key")
        assert client.get("the-name-of-a-key") == b"the value of a key"
        client.close()
    seen = bytes(relay.seen)
    assert b"CURVE" in seen
    for text in (b"the-name-of-a-key", b"the value of a key", server.endpoint.secret.encode()):
        assert text not in seen


def test_a_client_tries_until_the_server_can_be_reached(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def count(opened: Any, address: str) -> None:
        attempts.append(address)
        reconnect(opened, address)

    monkeypatch.setattr(store, "reconnect", count)
    relay = Relay(server.endpoint.port)
    through = StoreEndpoint(HOST, relay.port, server.endpoint.secret)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(StoreClient, through, 20.0)
        wait_until(lambda: len(attempts) > 2 or connecting.done(), what="failed attempts")
        with relay:
            client = connecting.result(20)
            client.set("k", b"v")
            client.close()


def test_an_attempt_without_an_answer_is_one_connection_that_shows_its_repetitions() -> None:
    """As over a cable that carries nothing: by these the agents recognise the cut."""
    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):  # more than it lets wait
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        wanted = StoreEndpoint(HOST, port, KeyPair.generate().public.decode())
        before = _attempts(port)

        def connect() -> None:
            with contextlib.suppress(PeerLost):
                StoreClient(wanted, 6.0)

        thread = threading.Thread(target=connect)
        thread.start()
        repeats = [0]

        def look() -> bool:
            found = _attempts(port).items() - before.items()
            own = {inode: number for inode, number in found if inode not in before}
            repeats.extend(own.values())
            return len(own) == 1 and max(repeats) >= 2

        wait_until(look, what="two repetitions of one attempt")
        thread.join()


def _attempts(port: int) -> dict[str, int]:
    """By inode: how often connections to the port that are not answered have repeated."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {
        row[9]: int(row[6], 16)
        for row in rows
        if row[2].endswith(f":{port:04X}") and row[3] == "02"
    }


def test_a_handshake_may_take_as_long_as_the_time_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 may pause, and thousands of handshakes take its one I/O thread seconds."""
    monkeypatch.setattr(endpoint, "HANDSHAKE_S", 0.1)
    server = _server()
    with Relay(server.endpoint.port, pause_s=0.5) as relay:
        client = StoreClient(StoreEndpoint(HOST, relay.port, server.endpoint.secret), 20.0)
        client.set("k", b"v")
        client.close()
    server.close()


def test_as_many_ranks_as_there_are_may_connect_in_the_same_moment() -> None:
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    for world_size in (2, 3000):
        server = _server(world_size=world_size)
        with socket.socket(fileno=os.dup(server.listener)) as listening:
            info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (backlog,) = struct.unpack_from("I", info, 28)  # ``tcpi_sacked``
        assert backlog == min(most, max(1024, world_size))
        server.close()


class Relay:
    """Keeps everything that one client and the server send each other.

    Args:
        port: of the server.
        pause_s: between the connection and the first byte that it passes on.
    """

    def __init__(self, port: int, pause_s: float = 0.0) -> None:
        self._listener = socket.socket()
        self._listener.settimeout(20.0)
        self._listener.bind((HOST, 0))
        self.port, self._target = self._listener.getsockname()[1], port
        self._pause_s = pause_s
        self.seen = bytearray()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Relay:
        self._listener.listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)

    def _run(self) -> None:
        address = (HOST, self._target)
        with (
            self._listener,
            self._listener.accept()[0] as client,
            socket.create_connection(address) as server,
        ):
            time.sleep(self._pause_s)
            ways = {client: server, server: client}
            while True:
                for source in select.select([*ways], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    self.seen += data
                    ways[source].sendall(data)


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


def test_a_waiter_that_is_gone_does_not_end_the_server(
    server: StoreServer, client: StoreClient
) -> None:
    waiter = StoreClient(server.endpoint, 20.0)
    waiter._socket.send(store._encode(store._Request("wait", ("k",))))
    wait_until(lambda: bool(server._waiting), what="a waiter")
    waiter.close()
    client.set("k", b"v")
    assert client.get("k") == b"v"


def test_a_server_that_is_cut_off_is_an_error_after_the_time_of_the_connection() -> None:
    with socket.create_server((HOST, 0)) as silent:
        secret = KeyPair.generate().public.decode()
        with pytest.raises(PeerLost, match=r"no answer within 0\.2 s"):
            StoreClient(StoreEndpoint(HOST, silent.getsockname()[1], secret), 0.2)
