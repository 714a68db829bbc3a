"""Throws seeded bad input at an endpoint and lets the caller probe that it still serves.

``fuzz_endpoint`` takes ZeroMQ endpoints (``ipc://``, ``tcp://``) and ``http://HOST:PORT``. About
one input in ten is a plain connection (garbage, broken ZMTP, old ZMTP, HTTP, silence); the others
are messages over valid ZMTP.
"""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from headway.common.wire.endpoint import set_client_keys
from headway.common.wire.keys import KeyPair, ipc_path
from headway.testkit.wire.inputs import Inputs

STREAM_SHARE = 0.1
OVERSIZE_SHARE = 0.0005  # a megabyte each
NUM_HELD = 32  # silent connections kept open
NUM_DEALERS = 4
DEAF_DEALER = 0  # never reads its replies
CONNECT_S = 5.0
STUCK_S = 60.0


@dataclass
class FuzzReport:
    """What was sent, by kind.

    ``refused_handshake``: no message was let in, all inputs were plain bytes.
    """

    sent: Counter[str] = field(default_factory=Counter)
    refused_handshake: bool = False

    @property
    def total(self) -> int:
        return self.sent.total()


def fuzz_endpoint(
    endpoint: str,
    *,
    count: int,
    seed: int,
    corpus: Sequence[bytes],
    server_key: bytes | None = None,
    keys: KeyPair | None = None,
    probe: Callable[[], object] | None = None,
    probe_every: int = 1000,
) -> FuzzReport:
    """Send ``count`` bad inputs and return what was sent; everything follows from ``seed``.

    ``corpus``: bodies of valid messages of the service (``codec.encode``) to mutate; leave out what
    ends it, since some mutations stay valid. ``server_key``: speak CURVE, with ``keys`` or a fresh
    client key. ``probe`` is called every ``probe_every`` inputs and at the end, and raises if the
    service no longer serves.

    Raises:
        TimeoutError: the endpoint read nothing for 60 s.
        Whatever ``probe`` raises, with a note of seed and position.
    """
    report = FuzzReport()
    inputs = Inputs(seed, corpus)
    with (
        _Plain(endpoint, report) as plain,
        _Messages(endpoint, server_key, keys, report) as messages,
    ):
        for number in range(count):
            draw = inputs.rng.random()
            if endpoint.startswith("http://"):
                plain.send(*(("http", inputs.http_request()) if draw < 0.7 else inputs.stream()))
            elif draw < STREAM_SHARE or report.refused_handshake:
                plain.send(*inputs.stream())
            elif draw > 1 - OVERSIZE_SHARE:
                messages.send_large("oversize", inputs.oversize())
            elif draw > 1 - 2 * OVERSIZE_SHARE:
                messages.send_large("heavy", inputs.heavy())
            else:
                messages.send(inputs.rng.randrange(NUM_DEALERS), *inputs.frames())
            if probe is not None and ((number + 1) % probe_every == 0 or number + 1 == count):
                _probe(probe, seed, number)
    return report


def _probe(probe: Callable[[], object], seed: int, number: int) -> None:
    try:
        probe()
    except Exception as error:
        error.add_note(f"after input {number} of seed {seed}")
        raise


class _Plain:
    """Plain connections; the newest silent ones are held open."""

    def __init__(self, endpoint: str, report: FuzzReport) -> None:
        self._report = report
        self._held: deque[socket.socket] = deque()
        # a thread per request: faster than accepted helps nobody
        self._waits_for_end = endpoint.startswith("http://")
        path = ipc_path(endpoint)
        if path is not None:
            self._family = socket.AF_UNIX
            self._address: str | tuple[str, int] = str(path)
        else:
            host, _, port = endpoint.partition("://")[2].rpartition(":")
            self._family, self._address = socket.AF_INET, (host, int(port.rstrip("/")))

    def send(self, kind: str, data: bytes) -> None:
        self._report.sent[f"stream_{kind}"] += 1
        connection = socket.socket(self._family, socket.SOCK_STREAM)
        connection.settimeout(STUCK_S)
        try:
            connection.connect(self._address)
            connection.sendall(data)
            if self._waits_for_end and len(data) % 4:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        except TimeoutError:
            connection.close()
            raise
        except OSError:  # a shutdown after the other side has ended it is no ConnectionError
            pass  # ended by the other side, as it may
        if len(data) % 4:  # by the data, not by the clock: the run stays a function of its seed
            connection.close()
            return
        self._held.append(connection)
        if len(self._held) > NUM_HELD:
            self._held.popleft().close()

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._held:
            connection.close()


class _Messages:
    """DEALERs that send anything. One never reads, the others throw their replies away."""

    def __init__(
        self, endpoint: str, server_key: bytes | None, keys: KeyPair | None, report: FuzzReport
    ) -> None:
        self._endpoint, self._server_key, self._keys, self._report = (
            endpoint,
            server_key,
            keys,
            report,
        )
        self._context: zmq.Context[Any] = zmq.Context()
        self._dealers: dict[int, zmq.Socket[bytes]] = {}

    def send(self, number: int, kind: str, frames: list[bytes]) -> None:
        dealer = self._dealers.get(number)
        if dealer is None:
            dealer = self._dealers[number] = self._open()
            if not dealer.poll(int(CONNECT_S * 1000), zmq.POLLOUT):
                self._report.refused_handshake = True
                return
        if not dealer.poll(int(STUCK_S * 1000), zmq.POLLOUT):
            raise TimeoutError(f"{self._endpoint} read nothing for {STUCK_S:g} s")
        dealer.send_multipart(frames)
        self._report.sent[kind] += 1
        if number != DEAF_DEALER:
            while dealer.poll(0):
                dealer.recv_multipart()

    def send_large(self, kind: str, frame: bytes) -> None:
        """On a connection of its own, since the receiver may end it with all that follows."""
        dealer = self._open()
        if dealer.poll(int(CONNECT_S * 1000), zmq.POLLOUT):
            dealer.send(frame)
            self._report.sent[kind] += 1
        dealer.close(linger=1000)

    def _open(self) -> zmq.Socket[bytes]:
        dealer: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 1000)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        set_client_keys(dealer, self._keys, self._server_key)
        dealer.connect(self._endpoint)
        return dealer

    def __enter__(self) -> _Messages:
        return self

    def __exit__(self, *_: object) -> None:
        for dealer in self._dealers.values():
            dealer.close()
        self._context.term()
