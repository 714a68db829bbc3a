"""Streams over real sockets: what arrives, what is damaged, who is let in."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from headway.health.measure import streams
from headway.health.measure.nics import nics

TOKEN = bytes(range(streams.TOKEN_BYTES))


def test_what_was_sent_arrives_whole() -> None:
    received = streams.transfer(8 << 20)
    assert received.num_damaged == 0 and received.bytes_per_s > 0
    assert received.num_bytes == 8 << 20


def test_a_stream_of_one_block_is_measured_too() -> None:
    received = streams.transfer(0)
    assert received.num_bytes == streams.BLOCK_BYTES and received.duration_s > 0


def test_a_changed_byte_counts_as_a_damaged_block() -> None:
    left, right = socket.socketpair()
    with left, right:
        flipped = bytearray(streams.MORE)
        flipped[7] ^= 16

        def sender() -> None:
            left.sendall(flipped)
            left.sendall(streams.LAST)

        thread = threading.Thread(target=sender)
        thread.start()
        assert streams.receive(right).num_damaged == 1
        thread.join()


def test_memory_that_changes_bytes_on_the_way_is_found() -> None:
    def forgetful(block: bytes | bytearray) -> bytes:
        return bytes([*block[:-1], 0])

    assert streams.transfer(1 << 20, via=forgetful).num_damaged > 0


def test_a_stream_that_ends_early_is_an_error_and_no_measurement() -> None:
    left, right = socket.socketpair()
    with right:
        left.sendall(streams.MORE[:1000])
        left.close()
        with pytest.raises(OSError, match="closed the connection early"):
            streams.receive(right)


def test_a_duration_ends_a_stream_before_its_bytes_do() -> None:
    left, right = socket.socketpair()
    with left, right:
        thread = threading.Thread(target=streams.send, args=(left, 1 << 40, 0.05))
        thread.start()
        assert streams.receive(right).num_bytes < 1 << 40
        thread.join()


@pytest.mark.parametrize("shown", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(streams.TOKEN_BYTES)])
def test_strangers_are_closed_and_the_one_with_the_token_is_let_in(shown: bytes) -> None:
    with streams.listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(shown)
        if not shown:
            stranger.close()  # a port scan
        with (
            streams.connect("127.0.0.1", port, TOKEN) as friend,
            streams.accept(listener, TOKEN, 10.0) as stream,
        ):
            assert stream.getpeername() == friend.getsockname()
        stranger.close()


def test_nobody_who_connects_is_an_error_that_names_the_time() -> None:
    with streams.listen("127.0.0.1") as listener, pytest.raises(TimeoutError):
        streams.accept(listener, TOKEN, 0.05)


def test_interfaces_with_a_device_are_preferred_and_loopback_is_none(tmp_path: Path) -> None:
    every = nics(tmp_path)
    assert "lo" not in every
    for name in list(every)[:1]:
        (tmp_path / name / "device").mkdir(parents=True)
        assert list(nics(tmp_path)) == [name]
