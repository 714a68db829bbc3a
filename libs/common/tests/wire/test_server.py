"""A server binds where it may, answers what it knows, and counts the rest."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
import zmq
from headway.common.errors import BusyError, InputError
from headway.common.node.testing import wait_until
from headway.common.wire import codec, replies
from headway.common.wire import server as server_module
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.service import Done, Ping
from headway.common.wire.server import BACKLOG, Later, Server
from headway.testkit.wire import serving


class Count(Message, tag="test.count/1"):
    by: int = 1


class Counted(Message, tag="test.counted/1"):
    total: int


class Big(Message, tag="test.big/1"):
    data: bytes


class Counter:
    """A handler with an effect that must happen once."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, message: Count, _peer: bytes) -> Counted:
        self.total += message.by
        return Counted(total=self.total)


@contextmanager
def dealer(endpoint: str, identity: bytes = b"raw") -> Iterator[zmq.Socket[bytes]]:
    """A plain DEALER, for messages that no Client would send."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as opened:
        opened.linger = 0
        opened.setsockopt(zmq.IDENTITY, identity)
        opened.rcvtimeo = 10_000
        opened.connect(endpoint)
        yield opened


def test_port_0_becomes_the_port_that_the_system_chose() -> None:
    with Server("tcp://127.0.0.1:0", {}) as first, Server("tcp://127.0.0.1:0", {}) as second:
        assert first.endpoint != second.endpoint
        assert int(first.endpoint.rpartition(":")[2]) > 0


def test_as_many_clients_may_connect_at_the_same_moment_as_the_server_is_made_for() -> None:
    with (
        Server("tcp://127.0.0.1:0", {}) as usual,
        Server("tcp://127.0.0.1:0", {}, backlog=120) as (large),
    ):
        assert [_backlog(server.listener) for server in (usual, large)] == [BACKLOG, 120]


def _backlog(listener: int) -> int:
    """As the kernel reports it of a listening socket, in ``tcpi_sacked``."""
    with socket.socket(fileno=os.dup(listener)) as listening:
        info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 28)[0])


def test_a_port_in_use_is_an_input_error_with_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"cannot listen on {endpoint}.*choose another port"):
            Server(endpoint, {})


def test_an_address_of_another_machine_is_an_input_error() -> None:
    from headway.common.wire.keys import KeyPair

    with pytest.raises(InputError, match="an address of this machine"):
        Server("tcp://192.0.2.1:0", {}, KeyPair.generate())


def test_a_stale_socket_file_is_replaced(sock_dir: Path) -> None:
    path = sock_dir / "a.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with (
        serving(Server(f"ipc://{path}", {Count: Counter()})) as server,
        Client(server.endpoint) as client,
    ):
        assert client.call(Count(), Counted).total == 1
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_a_socket_file_of_a_killed_server_is_replaced(sock_dir: Path) -> None:
    path = sock_dir / "a.sock"
    program = (
        "from headway.common.wire.server import Server\n"
        f"server = Server('ipc://{path}', {{}})\n"
        "print('up', flush=True)\n"
        "server.socket.poll()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    with pytest.raises(InputError, match=f"in use by process {child.pid}"):
        Server(f"ipc://{path}", {})
    child.kill()
    child.wait()
    child.stdout.close()
    assert path.exists()
    Server(f"ipc://{path}", {}).close()


def test_a_file_that_is_no_socket_is_left_alone(sock_dir: Path) -> None:
    path = sock_dir / "a.sock"
    path.write_text("precious")
    with pytest.raises(InputError, match="not a socket"):
        Server(f"ipc://{path}", {})
    assert path.read_text() == "precious"


def test_a_missing_folder_is_an_input_error(sock_dir: Path) -> None:
    with pytest.raises(InputError, match="create the folder"):
        Server(f"ipc://{sock_dir}/none/a.sock", {})


def test_a_failed_bind_leaves_nothing_open(sock_dir: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(InputError):
            Server(f"ipc://{sock_dir}/none/a.sock", {})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_repeated_request_is_answered_once_more_but_run_once() -> None:
    counter = Counter()
    with (
        serving(Server("tcp://127.0.0.1:0", {Count: counter})) as server,
        dealer(server.endpoint) as raw,
    ):
        frame = codec.encode_frame("req", 9, codec.encode(Count()))
        for _ in range(3):
            raw.send(frame)
        assert len({raw.recv() for _ in range(3)}) == 1
        assert counter.total == 1
        assert server.counts["repeated"] == 2


def test_the_reply_memory_outlives_a_reconnect_of_the_same_client() -> None:
    counter = Counter()
    with serving(Server("tcp://127.0.0.1:0", {Count: counter})) as server:
        for _ in range(2):
            with dealer(server.endpoint, b"same") as raw:
                raw.send(codec.encode_frame("req", 9, codec.encode(Count())))
                raw.recv()
        with dealer(server.endpoint, b"else") as raw:
            raw.send(codec.encode_frame("req", 9, codec.encode(Count())))
            raw.recv()
    assert counter.total == 2


def test_one_id_with_another_body_is_another_request() -> None:
    counter = Counter()
    with (
        serving(Server("tcp://127.0.0.1:0", {Count: counter})) as server,
        dealer(server.endpoint) as raw,
    ):
        for by in (1, 10):
            raw.send(codec.encode_frame("req", 9, codec.encode(Count(by=by))))
            raw.recv()
    assert counter.total == 11


def test_the_reply_memory_is_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_CACHED_REPLIES", 10)
    monkeypatch.setattr(replies, "MAX_CACHED_BYTES", 5000)
    server = Server("tcp://127.0.0.1:0", {Big: lambda message, _: message})
    with serving(server), Client(server.endpoint) as client:
        for _ in range(30):
            client.call(Big(data=b""), Big)
        assert len(server._replies) == 10
        for _ in range(30):
            client.call(Big(data=bytes(1000)), Big)
        assert len(server._replies) == 4


def test_a_failing_handler_is_answered_and_runs_once_too() -> None:
    calls = []

    def fail(message: Message, _peer: bytes) -> None:
        calls.append(message)
        raise KeyError("oops")

    with (
        serving(Server("tcp://127.0.0.1:0", {Count: fail})) as server,
        dealer(server.endpoint) as raw,
    ):
        for _ in range(2):
            raw.send(codec.encode_frame("req", 9, codec.encode(Count())))
            version, kind, request_id, body = msgpack.unpackb(raw.recv())
            assert (version, kind, request_id) == (2, "err", 9)
            assert msgpack.unpackb(body)["code"] == "internal"
        assert server.counts["internal_errors"] == 1
    assert len(calls) == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_reply_may_come_later_and_then_answers_every_retry(is_refused: bool) -> None:
    deferred: list[Later] = []

    def defer(_message: Count, _peer: bytes) -> Later:
        deferred.append(Later())
        return deferred[-1]

    request = codec.encode_frame("req", 9, codec.encode(Count()))
    with Server("tcp://127.0.0.1:0", {Count: defer}) as server, dealer(server.endpoint) as raw:
        for _ in range(2):
            raw.send(request)
        wait_until(lambda: server.handle_ready() >= 0 and server.counts["repeated"] == 1)
        assert not raw.poll(0)
        (later,) = deferred
        later.answer(BusyError("not now", remedy="later") if is_refused else Counted(total=1))
        replies = [raw.recv()]
        raw.send(request)
        wait_until(lambda: server.handle_ready() == 1)
        replies.append(raw.recv())
        assert replies[0] == replies[1]
        assert msgpack.unpackb(replies[0])[1:3] == ["err" if is_refused else "rep", 9]
    assert len(deferred) == 1


def test_bad_input_is_counted_by_kind_and_valid_requests_go_on() -> None:
    with (
        serving(Server("tcp://127.0.0.1:0", {Count: Counter()})) as server,
        dealer(server.endpoint) as raw,
    ):
        raw.send(b"\xc1")
        raw.send_multipart([b"a", b"b"])
        raw.send_multipart([b"a"] * 1000)
        raw.send(codec.encode_frame("rep", 1, b""))
        raw.send(codec.encode_frame("note", 1, b"\xc1"))
        raw.send(msgpack.packb([3, "req", 7, b""]))
        raw.send(codec.encode_frame("req", 8, codec.encode(Ping())))
        raw.send(codec.encode_frame("req", 9, codec.encode(Count())))
        answers = [msgpack.unpackb(raw.recv()) for _ in range(3)]
        assert [(kind, number) for _, kind, number, _ in answers] == [
            ("err", 7),
            ("err", 8),
            ("rep", 9),
        ]
        assert msgpack.unpackb(answers[0][3])["code"] == "version"
        assert "service.ping/1" in msgpack.unpackb(answers[1][3])["message"]
        refused = {
            "bad_wire": 1,
            "wrong_frame_count": 2,
            "wrong_kind": 1,
            "bad_body": 2,
            "bad_version": 1,
        }
        assert server.counts == {**refused, "requests": 1}


def test_an_oversize_frame_ends_its_connection_and_nothing_else() -> None:
    with (
        serving(Server("tcp://127.0.0.1:0", {Count: Counter()})) as server,
        Client(server.endpoint) as client,
    ):
        assert client.call(Count(), Counted).total == 1
        with dealer(server.endpoint) as raw:
            raw.send(bytes(codec.MAX_SOCKET_BYTES + 1))
            raw.rcvtimeo = 200
            with pytest.raises(zmq.Again):
                raw.recv()
        assert client.call(Count(), Counted).total == 2
        assert server.counts["bad_wire"] == 0


def test_a_reply_that_is_too_large_becomes_an_error_reply() -> None:
    huge = Big(data=bytes(codec.MAX_MESSAGE_BYTES))
    server = Server("tcp://127.0.0.1:0", {Count: lambda _message, _peer: huge})
    with serving(server), dealer(server.endpoint) as raw:
        raw.send(codec.encode_frame("req", 9, codec.encode(Count())))
        assert "travel in a message" in msgpack.unpackb(msgpack.unpackb(raw.recv())[3])["message"]


def test_a_connection_that_never_identifies_itself_is_closed() -> None:
    with Server("tcp://127.0.0.1:0", {}) as server:
        host, port = server.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(30)
            while silent.recv(100):  # its greeting, then the end
                pass


def test_sending_to_nobody_or_to_a_deaf_peer_never_blocks() -> None:
    with Server("tcp://127.0.0.1:0", {Count: lambda _message, peer: peers.append(peer)}) as server:
        peers: list[bytes] = []
        assert server.send(b"nobody", Done()) is False
        with dealer(server.endpoint, b"deaf") as raw:
            raw.send(codec.encode_frame("note", 0, codec.encode(Count())))
            wait_until(lambda: server.handle_ready() > 0 or bool(peers))
            assert peers == [b"deaf"]
            note = Big(data=bytes(100_000))
            sent = 0
            while server.send(b"deaf", note):
                sent += 1
                assert sent < 5000, "an unread peer's queue has no bound"
            assert sent >= server_module.HIGH_WATER_MARK / 2


def test_handle_ready_leaves_a_flood_after_one_turn() -> None:
    with Server("tcp://127.0.0.1:0", {Count: Counter()}) as server, dealer(server.endpoint) as raw:
        for _ in range(200):
            raw.send(codec.encode_frame("note", 0, codec.encode(Count())))
        wait_until(lambda: bool(server.socket.poll(0)))
        turns = []
        wait_until(lambda: turns.append(server.handle_ready()) is None and sum(turns) == 200)
        assert max(turns) <= server_module.MAX_FRAMES_A_TURN


FLOOD = """
import sys, time, zmq
from headway.common.wire.server import Server
with Server("ipc://" + sys.argv[1], {}, high_water_mark=4) as server:
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.connect(server.endpoint)
    for _ in range(200):
        try:
            client.send(bytes(1000), zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(0.001)
    time.sleep(0.3)
    client.close(linger=0)
    context.term()
    time.sleep(2.5)
    while server.handle_ready():
        pass
"""


def test_a_peer_that_vanishes_behind_its_own_backlog_ends_nothing(sock_dir: Path) -> None:
    """With ZMTP heartbeats every 2 s libzmq 4.3.5 aborts the process here."""
    program = [sys.executable, "-c", FLOOD, str(sock_dir / "s")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
