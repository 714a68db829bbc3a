"""The frame of a service: built-in messages, beats, drain, signals, metrics;
threads and real processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headway.common.errors import InputError, RemoteError
from headway.common.node.process import ProcessId
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.service import (
    Describe,
    Description,
    Done,
    Drain,
    Drained,
    Ping,
    Pong,
    ServiceBeat,
)
from headway.common.wire.server import Server
from headway.common.wire.service import Beat, Service
from headway.testkit.wire import serving


class Work(Message, tag="test.work/1"):
    seconds: float = 0.0


def dawdle(message: Work, _peer: bytes) -> None:
    time.sleep(message.seconds)


@contextmanager
def running(service: Service) -> Iterator[list[int]]:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(service.run()))
    thread.start()
    try:
        yield codes
    finally:
        service.stop()
        thread.join()


@contextmanager
def listening(sock_dir: Path) -> Iterator[tuple[str, list[ServiceBeat]]]:
    beats: list[ServiceBeat] = []
    endpoint = f"ipc://{sock_dir}/executor.sock"
    with serving(Server(endpoint, {ServiceBeat: lambda beat, _peer: beats.append(beat)})):
        yield endpoint, beats


def test_every_service_answers_ping_and_describe(sock_dir: Path) -> None:
    server = Server(f"ipc://{sock_dir}/a.sock", {Work: dawdle})
    service = Service("store", server, describe=lambda: {"open": 3, "path": "x"}, run_id="0badcafe")
    with running(service), Client(server.endpoint) as client:
        pong = client.call(Ping(), Pong)
        me = ProcessId.current()
        assert (pong.name, pong.pid, pong.start_ticks, pong.run_id) == (
            "store",
            me.pid,
            me.start_ticks,
            "0badcafe",
        )
        description = client.call(Describe(), Description)
        assert description.name == "store"
        assert description.messages == sorted(
            ["service.describe/1", "service.drain/1", "service.ping/1", "test.work/1"]
        )
        assert description.state == {"open": 3, "path": "x"}


def test_a_handler_of_its_own_is_not_replaced_by_the_built_in_one(sock_dir: Path) -> None:
    server = Server(f"ipc://{sock_dir}/a.sock", {Ping: lambda _message, _peer: None})
    with running(Service("store", server)), Client(server.endpoint) as client:
        assert client.call(Ping(), Done) == Done()


def test_beats_tell_who_and_whether_useful_work_is_done(sock_dir: Path) -> None:
    done = [0]
    with listening(sock_dir) as (endpoint, beats):
        service = Service(
            "loader", beat=Beat(endpoint=endpoint, progress=lambda: done[0], period_s=0.01)
        )
        with running(service):
            wait_until(lambda: len(beats) >= 5)
            assert {beat.progress for beat in beats} == {0}
            done[0] = 7
            wait_until(lambda: beats[-1].progress == 7)
        assert beats[0].name == "loader"
        assert ProcessId(beats[0].pid, beats[0].start_ticks) == ProcessId.current()
        numbers = [beat.alive_seq for beat in beats]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_handler_that_takes_long_holds_the_beats(sock_dir: Path) -> None:
    with listening(sock_dir) as (endpoint, beats):
        server = Server(f"ipc://{sock_dir}/a.sock", {Work: dawdle})
        service = Service(
            "loader", server, beat=Beat(endpoint=endpoint, progress=int, period_s=0.01)
        )
        with running(service), Client(server.endpoint) as client:
            wait_until(lambda: len(beats) >= 2)
            before = beats[-1].alive_seq
            client.call(Work(seconds=0.5), Done)
            assert beats[-1].alive_seq - before < 25  # 50 if they went on


def test_beats_go_on_without_an_executor_and_reach_the_next_one(sock_dir: Path) -> None:
    beat = Beat(endpoint=f"ipc://{sock_dir}/executor.sock", progress=int, period_s=0.01)
    with running(Service("loader", beat=beat)):
        for _ in range(2):
            with listening(sock_dir) as (_, beats):
                wait_until(lambda beats=beats: len(beats) >= 3)  # type: ignore[misc]


def test_failing_timers_and_progress_end_neither_a_service_nor_its_beats(sock_dir: Path) -> None:
    beats: list[ServiceBeat] = []
    server = Server(f"ipc://{sock_dir}/a.sock", {})
    endpoint = f"ipc://{sock_dir}/executor.sock"
    service = Service(
        "x", server, beat=Beat(endpoint=endpoint, progress=lambda: 1 // 0, period_s=0.01)
    )

    def fail() -> None:
        raise KeyError("oops")

    service.every(0.01, fail)
    with (
        serving(Server(endpoint, {ServiceBeat: lambda beat, _: beats.append(beat)})),
        running(service) as codes,
        Client(server.endpoint) as client,
    ):
        wait_until(
            lambda: min(service.errors.values(), default=0) >= 3 and len(service.errors) == 2
        )
        wait_until(lambda: len(beats) >= 3, what="beats")
        assert beats[-1].progress == 0
        assert client.call(Ping(), Pong).name == "x"
    assert codes == [0]


def test_a_flood_of_requests_does_not_starve_the_timers(sock_dir: Path) -> None:
    turns = [0]

    def tick() -> None:
        turns[0] += 1

    server = Server(f"ipc://{sock_dir}/a.sock", {Work: dawdle})
    service = Service("x", server)
    service.every(0.01, tick)
    with running(service), Client(server.endpoint) as client:
        wait_until(lambda: turns[0] > 0)
        before = turns[0]
        wait_until(lambda: not client.notify(Work(seconds=0.0001)) or turns[0] > before + 5)
        wait_until(lambda: turns[0] > before + 5)


def test_drain_finishes_what_is_open_answers_meanwhile_and_then_ends(sock_dir: Path) -> None:
    left = [3]

    def drain() -> bool:
        left[0] -= 1
        return left[0] == 0

    server = Server(f"ipc://{sock_dir}/a.sock", {})
    service = Service("x", server)
    service.on_drain(drain)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(service.run()))
    thread.start()
    with Client(server.endpoint) as client:
        assert client.call(Drain(), Drained) == Drained(done=False)
        thread.join()
    assert codes == [0]
    assert left == [0]


def test_drain_with_nothing_open_ends_at_once_and_its_answer_arrives(sock_dir: Path) -> None:
    server = Server(f"ipc://{sock_dir}/a.sock", {})
    service = Service("x", server)
    thread = threading.Thread(target=service.run)
    thread.start()
    with Client(server.endpoint) as client:
        assert client.call(Drain(), Drained, retries=0) == Drained(done=True)
    thread.join()
    assert list(sock_dir.iterdir()) == []


def test_the_largest_last_reply_leaves_before_the_service_ends(sock_dir: Path) -> None:
    class Big(Message, tag="test.big/1"):
        data: bytes = b""

    def answer_and_stop(_message: Big, _peer: bytes) -> Big:
        service.stop()
        return Big(data=bytes(1_000_000))

    server = Server(f"ipc://{sock_dir}/a.sock", {Big: answer_and_stop})
    service = Service("x", server)
    thread = threading.Thread(target=service.run)
    thread.start()
    with Client(server.endpoint) as client:
        assert len(client.call(Big(), Big, retries=0).data) == 1_000_000
    thread.join()


def test_a_drain_that_never_ends_is_cut_at_its_limit(sock_dir: Path) -> None:
    service = Service("x", Server(f"ipc://{sock_dir}/a.sock", {}), drain_limit_s=0.1)
    service.on_drain(lambda: False)
    with running(service) as codes:
        service.stop()
        wait_until(lambda: bool(codes))
    assert codes == [1]


def test_a_drain_that_raises_is_counted_and_the_service_ends(sock_dir: Path) -> None:
    def fail() -> bool:
        raise OSError("disk full")

    service = Service("x", Server(f"ipc://{sock_dir}/a.sock", {}))
    service.on_drain(fail)
    with running(service) as codes:
        service.stop()
        wait_until(lambda: bool(codes))
    assert list(service.errors.values()) == [1]


def test_stop_twice_does_not_cut_the_drain_short(sock_dir: Path) -> None:
    turns = [0]

    def drain() -> bool:
        turns[0] += 1
        return turns[0] >= 3

    service = Service("x", Server(f"ipc://{sock_dir}/a.sock", {}))
    service.on_drain(drain)
    with running(service) as codes:
        service.stop()
        service.stop()
        wait_until(lambda: bool(codes))
    assert (codes, turns) == ([0], [3])


PROGRAM = """
import sys, time
from headway.common.wire.server import Server
from headway.common.wire.service import Service
service = Service("x", Server(sys.argv[1], {}))
service.on_drain(lambda: sys.argv[2] != "stuck" and print("drained", flush=True) is None)
service.after(0.0, lambda: print("ready", flush=True))
sys.exit(service.run())
"""


@contextmanager
def process(sock_dir: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", PROGRAM, f"ipc://{sock_dir}/a.sock", mode]
    child = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        while "ready" not in child.stdout.readline():
            assert child.poll() is None
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signalled_process_drains_exits_0_and_removes_its_socket_file(
    sock_dir: Path, number: signal.Signals
) -> None:
    with process(sock_dir, "quick") as child:
        child.send_signal(number)
        assert child.wait(30) == 0
        assert child.stdout is not None
        assert "drained" in child.stdout.read()
    assert list(sock_dir.iterdir()) == []


def test_a_second_signal_cuts_a_stuck_drain_short_with_exit_1(sock_dir: Path) -> None:
    with process(sock_dir, "stuck") as child, Client(f"ipc://{sock_dir}/a.sock") as client:
        child.send_signal(signal.SIGINT)
        wait_until(lambda: client.call(Drain(), Drained) == Drained(done=False))
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 1


def test_metrics_are_exported_on_loopback_from_a_registry_of_its_own(sock_dir: Path) -> None:
    server = Server(f"ipc://{sock_dir}/a.sock", {Work: dawdle})
    service = Service("x", server, metrics_port=0)

    def fail() -> None:
        raise KeyError("oops")

    service.every(0.01, fail)
    with running(service), Client(server.endpoint) as client:
        client.call(Work(), Done)
        with pytest.raises(RemoteError):
            client.call(Drained(done=True), Done)
        wait_until(lambda: bool(service.errors))
        with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics") as answer:
            text = answer.read().decode()
    assert 'headway_wire_messages_total{outcome="requests"} 1.0' in text
    assert 'headway_wire_messages_total{outcome="bad_body"} 1.0' in text
    assert "headway_service_callback_errors_total{callback=" in text
    assert "python_info" not in text


def test_a_metrics_port_in_use_is_an_input_error_that_leaves_nothing_open(sock_dir: Path) -> None:
    with serving(Server("tcp://127.0.0.1:0", {})) as taken:
        port = int(taken.endpoint.rpartition(":")[2])
        Client(f"ipc://{sock_dir}/e.sock").close()  # opens what all clients of a process share
        before = settled_descriptors()
        with pytest.raises(InputError, match=f"port {port}.*choose another metrics port"):
            Service("x", metrics_port=port)
        wait_until(lambda: settled_descriptors() == before)  # sockets close in the background


def test_a_service_goes_without_metrics_until_their_port_is_free(
    sock_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.common.wire.service.METRICS_RETRY_S", 0.02)
    server = Server(f"ipc://{sock_dir}/a.sock", {Work: dawdle})
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    beat = Beat(endpoint=f"ipc://{sock_dir}/e.sock", progress=int)
    service = Service("x", server, beat=beat, metrics_port=port)
    assert service.metrics_port is None
    with running(service), Client(server.endpoint) as client:
        client.call(Work(), Done)  # the port in use does not keep it from serving
        assert service.metrics_port is None
        taken.close()
        wait_until(lambda: service.metrics_port == port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"headway_wire_messages_total" in answer.read()


def test_metrics_that_are_ended_free_their_port(sock_dir: Path) -> None:
    service = Service("x", Server(f"ipc://{sock_dir}/a.sock", {}), metrics_port=0)
    port = service.metrics_port
    assert port is not None
    service.end_metrics()
    assert service.metrics_port is None
    socket.create_server(("127.0.0.1", port)).close()
    service.close()


def test_a_service_without_a_server_runs_its_timers_and_leaves_no_descriptor() -> None:
    before = settled_descriptors()
    for _ in range(3):
        service = Service("x")
        service.after(0.01, service.stop)
        assert service.run() == 0
        service.close()
    assert settled_descriptors() == before


def settled_descriptors() -> int:
    """Open descriptors, once their number has been the same for ten looks, 5 ms apart."""
    looks: list[int] = []

    def look() -> bool:
        looks.append(len(list(Path("/proc/self/fd").iterdir())))
        time.sleep(0.005)
        return len(looks) >= 10 and len(set(looks[-10:])) == 1

    wait_until(look)
    return looks[-1]
