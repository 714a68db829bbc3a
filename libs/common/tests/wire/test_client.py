"""The client against real servers and misbehaving ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
import zmq
from headway.common.errors import (
    BusyError,
    DeadlineError,
    InputError,
    RemoteError,
    VersionError,
    WireError,
)
from headway.common.node.testing import wait_until
from headway.common.wire import client as client_module
from headway.common.wire import codec
from headway.common.wire.client import CallAbortedError, Client
from headway.common.wire.endpoint import HIGH_WATER_MARK
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.service import Failure
from headway.common.wire.server import Server
from headway.testkit.wire import serving


class Ask(Message, tag="test.ask/1"):
    text: str = ""


class Answer(Message, tag="test.answer/1"):
    text: str


def echo(message: Ask, _peer: bytes) -> Answer:
    return Answer(text=message.text)


@contextmanager
def strange_server() -> Iterator[tuple[str, zmq.Socket[bytes]]]:
    """A bare ROUTER, played by the test from a thread of its own."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.rcvtimeo = 10_000
        router.bind("tcp://127.0.0.1:*")
        yield router.getsockopt(zmq.LAST_ENDPOINT).decode(), router  # type: ignore[union-attr]


@contextmanager
def playing(act: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def reply(request: bytes, text: str) -> bytes:
    return codec.encode_frame(
        "rep", codec.decode_frame(request).id, codec.encode(Answer(text=text))
    )


def test_a_call_returns_the_typed_reply() -> None:
    with (
        serving(Server("tcp://127.0.0.1:0", {Ask: echo})) as server,
        Client(server.endpoint) as client,
    ):
        assert [client.call(Ask(text=text), Answer).text for text in "abc"] == ["a", "b", "c"]


def test_a_remote_error_carries_code_message_and_remedy() -> None:
    def refuse(_message: Ask, _peer: bytes) -> None:
        raise InputError("no such run: x", remedy="see headway runs")

    server = Server("tcp://127.0.0.1:0", {Ask: refuse})
    with serving(server), Client(server.endpoint) as client, pytest.raises(RemoteError) as caught:
        client.call(Ask(), Answer)
    assert (caught.value.remote_code, caught.value.message) == ("input", "no such run: x")
    assert caught.value.remedy == "see headway runs"


@pytest.mark.parametrize("code", ["bad_request", "busy", "internal"])
def test_only_a_busy_server_is_called_busy(code: str) -> None:
    failure = Failure(code=code, message="no", remedy="later")
    envelope = codec.decode_frame(codec.encode_frame("err", 1, codec.encode(failure)))
    with pytest.raises(RemoteError if code != "busy" else BusyError) as caught:
        client_module._result(envelope, Answer)
    assert isinstance(caught.value, BusyError) == (code == "busy")


def test_a_reply_of_another_type_is_a_wire_error() -> None:
    server = Server("tcp://127.0.0.1:0", {Ask: lambda message, _peer: message})
    with (
        serving(server),
        Client(server.endpoint) as client,
        pytest.raises(WireError, match=r"test\.ask/1"),
    ):
        client.call(Ask(), Answer)


def test_a_request_too_large_fails_at_once() -> None:
    with Client("tcp://127.0.0.1:9") as client, pytest.raises(WireError, match="shared memory"):
        client.call(Ask(text="x" * codec.MAX_MESSAGE_BYTES), Answer)


def test_a_lost_reply_is_asked_for_again_with_the_same_bytes() -> None:
    with strange_server() as (endpoint, router), Client(endpoint) as client:
        seen: list[bytes] = []

        def answer_the_third() -> None:
            for _ in range(3):
                peer, frame = router.recv_multipart()
                seen.append(frame)
            router.send_multipart([peer, reply(frame, "at last")])

        with playing(answer_the_third):
            assert client.call(Ask(), Answer, timeout_s=3.0, retries=2).text == "at last"
        assert len(set(seen)) == 1


def test_a_reply_that_comes_too_late_is_not_taken_for_the_next() -> None:
    with strange_server() as (endpoint, router), Client(endpoint) as client:

        def answer_twice() -> None:
            peer, first = router.recv_multipart()
            router.recv_multipart()
            router.send_multipart([peer, reply(first, "a")])
            router.send_multipart([peer, reply(first, "a again")])
            peer, second = router.recv_multipart()
            router.send_multipart([peer, reply(second, "b")])

        with playing(answer_twice):
            assert client.call(Ask(), Answer, timeout_s=1.0, retries=1).text == "a"
            assert client.call(Ask(), Answer, retries=0).text == "b"
        assert client.counts["late_replies"] == 1


def test_garbage_from_a_server_is_counted_and_skipped() -> None:
    with strange_server() as (endpoint, router), Client(endpoint) as client:

        def rave() -> None:
            peer, frame = router.recv_multipart()
            for frames in ([b"\xc1"], [b""], [b"a", b"b"], [codec.encode_frame("req", 1, b"")]):
                router.send_multipart([peer, *frames])
            router.send_multipart([peer, reply(frame, "still")])

        with playing(rave):
            assert client.call(Ask(), Answer).text == "still"
        assert client.counts["bad_wire"] == 3


@pytest.mark.parametrize(
    "frame",
    [
        msgpack.packb([3, "rep", 1, b""]),
        None,
    ],
    ids=["frame of another version", "error reply"],
)
def test_a_server_of_another_version_is_named_with_the_remedy(frame: bytes | None) -> None:
    with strange_server() as (endpoint, router), Client(endpoint) as client:

        def answer() -> None:
            peer, request = router.recv_multipart()
            body = codec.encode(
                Failure(code="version", message="version 1", remedy="install the same version")
            )
            refusal = codec.encode_frame("err", codec.decode_frame(request).id, body)
            router.send_multipart([peer, frame or refusal])

        with playing(answer), pytest.raises(VersionError, match="install the same version"):
            client.call(Ask(), Answer)


def test_nobody_there_is_a_deadline_error_that_says_so(sock_dir: Path) -> None:
    for endpoint in (f"ipc://{sock_dir}/none.sock", "tcp://127.0.0.1:9"):
        with (
            Client(endpoint) as client,
            pytest.raises(DeadlineError, match=r"no answer to Ask.*nothing listens there"),
        ):
            client.call(Ask(), Answer, timeout_s=0.1)


def test_a_server_that_fell_silent_is_a_deadline_error_that_says_so() -> None:
    with strange_server() as (endpoint, router), Client(endpoint) as client:

        def answer_once() -> None:
            peer, frame = router.recv_multipart()
            router.send_multipart([peer, reply(frame, "")])

        with playing(answer_once):
            client.call(Ask(), Answer)
        with pytest.raises(DeadlineError, match="answered before"):
            client.call(Ask(), Answer, timeout_s=0.1)


@pytest.mark.parametrize("keyed", [False, True])
def test_the_remedy_for_a_server_that_never_answered_follows_from_whether_keys_were_given(
    keyed: bool,
) -> None:
    with strange_server() as (endpoint, _):
        server_key = KeyPair.generate().public if keyed else None
        with (
            Client(endpoint, server_key=server_key) as client,
            pytest.raises(DeadlineError) as caught,
        ):
            client.call(Ask(), Answer, timeout_s=0.2)
    assert caught.value.remedy.startswith("check the keys") == keyed


def test_an_abort_ends_the_wait_and_the_request(sock_dir: Path) -> None:
    heard: list[str] = []

    def note(message: Ask, _peer: bytes) -> Answer:
        heard.append(message.text)
        return Answer(text=message.text)

    asked: list[int] = []
    with Client(f"ipc://{sock_dir}/s") as client:
        with pytest.raises(CallAbortedError):
            client.call(
                Ask(text="left"),
                Answer,
                600.0,
                abort=lambda: bool(asked.append(1)) or len(asked) == 4,
            )
        with serving(Server(f"ipc://{sock_dir}/s", {Ask: note})):
            assert client.call(Ask(text="kept"), Answer, 20.0).text == "kept"
    assert heard == ["kept"] and len(asked) == 4


def test_the_reply_to_a_slow_request_is_not_lost_to_a_caller_that_may_abort() -> None:
    waits: list[int] = []
    runs: list[int] = []

    def slow(message: Ask, _peer: bytes) -> Answer:
        runs.append(1)
        wait_until(lambda: len(waits) > 4, what="a caller that has asked its abort several times")
        return Answer(text=message.text)

    server = Server("tcp://127.0.0.1:0", {Ask: slow})
    with serving(server), Client(server.endpoint) as client:
        reply = client.call(
            Ask(text="x"), Answer, 60.0, retries=30, abort=lambda: bool(waits.append(1))
        )
    assert (reply.text, runs) == ("x", [1])


def test_a_request_given_up_is_not_delivered_to_a_server_that_comes_later(sock_dir: Path) -> None:
    endpoint = f"ipc://{sock_dir}/late.sock"
    texts = []
    with Client(endpoint) as client:
        with pytest.raises(DeadlineError):
            client.call(Ask(text="given up"), Answer, timeout_s=0.2)
        handlers = {Ask: lambda message, peer: texts.append(message.text) or echo(message, peer)}
        with serving(Server(endpoint, handlers)):  # type: ignore[arg-type]
            client.call(Ask(text="now"), Answer)
    assert texts == ["now"]


def test_a_client_outlives_a_restart_of_its_server(sock_dir: Path) -> None:
    endpoint = f"ipc://{sock_dir}/a.sock"
    with Client(endpoint) as client:
        for _ in range(3):
            with serving(Server(endpoint, {Ask: echo})):
                assert client.call(Ask(text="x"), Answer, timeout_s=20.0, retries=40).text == "x"


def test_notes_wait_for_a_server_up_to_the_mark_and_are_then_dropped_and_counted(
    sock_dir: Path,
) -> None:
    endpoint = f"ipc://{sock_dir}/a.sock"
    texts: list[str] = []
    with Client(endpoint) as client:
        outcomes = [client.notify(Ask(text=str(number))) for number in range(HIGH_WATER_MARK + 10)]
        assert outcomes == [True] * HIGH_WATER_MARK + [False] * 10
        assert client.counts["notes_dropped"] == 10
        with serving(Server(endpoint, {Ask: lambda message, _peer: texts.append(message.text)})):
            wait_until(lambda: len(texts) == HIGH_WATER_MARK)
    assert texts == [str(number) for number in range(HIGH_WATER_MARK)]


def test_notes_from_the_server_arrive_in_order_and_only_of_accepted_types() -> None:
    server = Server("tcp://127.0.0.1:0", {})

    def greet(message: Ask, peer: bytes) -> Answer:
        for text in ("1", "2"):
            server.send(peer, Answer(text=text))
            server.send(peer, Ask(text="not wanted"))
        return echo(message, peer)

    server.add_handlers({Ask: greet})
    with serving(server), Client(server.endpoint, accept=[Answer]) as client:
        client.call(Ask(), Answer)
        assert client.receive() == [Answer(text="1"), Answer(text="2")]
        assert client.counts["notes_refused"] == 2
        assert client.receive() == []
        client.call(Ask(), Answer)
        assert client.receive(accept=[Ask]) == [Ask(text="not wanted")] * 2


def test_unread_notes_are_bounded_and_the_oldest_fall_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_UNREAD_NOTES", 5)
    server = Server("tcp://127.0.0.1:0", {})

    def greet(message: Ask, peer: bytes) -> Answer:
        for number in range(8):
            server.send(peer, Answer(text=str(number)))
        return echo(message, peer)

    server.add_handlers({Ask: greet})
    with serving(server), Client(server.endpoint, accept=[Answer]) as client:
        client.call(Ask(), Answer)
        assert [note.text for note in client.receive()] == ["3", "4", "5", "6", "7"]
        assert client.counts["notes_lost"] == 3


def test_a_last_note_leaves_within_the_linger_of_close() -> None:
    texts: list[str] = []
    server = Server("tcp://127.0.0.1:0", {Ask: lambda message, _peer: texts.append(message.text)})
    with serving(server):
        client = Client(server.endpoint)
        client.notify(Ask(text="last words"))
        client.close(linger_s=10.0)
        wait_until(lambda: texts == ["last words"])


def test_the_identity_is_what_handlers_see() -> None:
    server = Server("tcp://127.0.0.1:0", {Ask: lambda _message, peer: Answer(text=peer.decode())})
    with serving(server), Client(server.endpoint, identity=b"rank-3") as client:
        assert client.call(Ask(), Answer).text == "rank-3"


def test_a_restarted_client_of_the_same_name_is_not_answered_with_its_predecessors_replies() -> (
    None
):
    runs: list[Ask] = []

    def count(message: Ask, _peer: bytes) -> Answer:
        runs.append(message)
        return Answer(text=str(len(runs)))

    with serving(Server("tcp://127.0.0.1:0", {Ask: count})) as server:
        for number in ("1", "2"):
            with Client(server.endpoint, identity=b"rank-3") as client:
                assert client.call(Ask(), Answer).text == number


@pytest.mark.parametrize("identity", [b"", b"\0x", b"x" * 256])
def test_an_impossible_identity_is_an_input_error(identity: bytes) -> None:
    with pytest.raises(InputError, match="1 to 255 bytes"):
        Client("tcp://127.0.0.1:9", identity=identity)


def test_leaving_the_machine_without_a_server_key_is_an_input_error() -> None:
    with pytest.raises(InputError, match="keys"):
        Client("tcp://192.0.2.1:9")
    with pytest.raises(InputError, match="server_key"):
        Client("tcp://127.0.0.1:9", keys=KeyPair.generate())


def test_a_second_thread_is_refused() -> None:
    with Client("tcp://127.0.0.1:9") as client:
        client.notify(Ask())
        outcome: list[BaseException] = []

        def use() -> None:
            try:
                client.notify(Ask())
            except RuntimeError as error:
                outcome.append(error)

        with playing(use):
            pass
        assert "one thread only" in str(outcome[0])
