"""The process of one node that measures its CPU and its links when the coordinator asks it to."""

from __future__ import annotations

import math
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from headway.common.errors import HeadwayError, InputError
from headway.common.log import get_logger
from headway.common.wire.addresses import address_of
from headway.common.wire.loop import Loop
from headway.common.wire.messages.peer import (
    CpuMeasured,
    LinkMeasured,
    LinkOpened,
    MeasureCpu,
    MeasureLink,
    OpenLink,
    OpenRing,
    RingOpened,
    RingSummed,
    SumRing,
)
from headway.common.wire.server import Handler, Server
from headway.health.checks.gemm import multiply
from headway.health.measure.streams import TOKEN_BYTES, listen
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.hosts import DEFAULT_PORT
from headway.health.pairwise.keys import load_keys
from headway.health.pairwise.link import Bursts, measure_link, serve_link
from headway.health.pairwise.ring import FIRST_SHARE, Place, all_reduce

MOST_BURST_S = 60.0
MOST_BURSTS = 100
MOST_MEMBERS = 1024
MOST_SUMMED_BYTES = 1 << 30
LOOK_S = 1.0

_log = get_logger("pairwise")


@dataclass(frozen=True)
class PeerOptions:
    """Command line of a peer."""

    endpoint: str
    """``tcp://WHERE:PORT``; WHERE is an address, an interface or a network of this machine."""
    keys: Path | None
    """Folder with both key pairs; required off loopback."""
    idle_s: float
    """Ends by itself when nobody has asked for anything for so long."""


class Peer:
    """Answers one request after the other: measurements must not disturb each other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.asked_at_s = time.monotonic()
        self.handlers: dict[type[Any], Handler] = {
            MeasureCpu: self._on_measure_cpu,
            OpenLink: self._on_open_link,
            MeasureLink: self._on_measure_link,
            OpenRing: self._on_open_ring,
            SumRing: self._on_sum_ring,
        }
        self._ring: tuple[socket.socket, bytes] | None = None
        """Where the member before will connect to, and its token."""

    def _on_measure_cpu(self, asked: MeasureCpu, _peer: bytes) -> CpuMeasured:
        self.asked_at_s = time.monotonic()
        _bursts(asked)
        rates, exact = zip(*(_compute(asked.burst_s) for _ in range(asked.num_bursts)), strict=True)
        return CpuMeasured(products_per_s=max(rates), is_exact=all(exact))

    def _on_open_link(self, asked: OpenLink, _peer: bytes) -> LinkOpened:
        self.asked_at_s = time.monotonic()
        bursts = _bursts(asked)
        token = secrets.token_bytes(TOKEN_BYTES)
        listener = listen(self._address)
        port = int(listener.getsockname()[1])
        # a plain thread, no SideThread: it reports nothing, and its own limit ends it
        threading.Thread(target=_serve, args=(listener, token, bursts), daemon=True).start()
        return LinkOpened(address=self._address, port=port, token=token)

    def _on_measure_link(self, asked: MeasureLink, _peer: bytes) -> LinkMeasured:
        self.asked_at_s = time.monotonic()
        bursts = _bursts(asked)
        try:
            found = measure_link(asked.address, asked.port, asked.token, self._address, bursts)
        except OSError as error:
            raise HeadwayError(
                f"the link to {asked.address} carries nothing, or too little: {error}",
                remedy="see cable, routes and firewall; peers use ports that the system chooses",
            ) from error
        return LinkMeasured(
            sent_bytes_per_s=found.sent_bytes_per_s,
            received_bytes_per_s=found.received_bytes_per_s,
            latency_s=found.latency_s,
            num_damaged=found.num_damaged,
        )

    def _on_open_ring(self, _asked: OpenRing, _peer: bytes) -> RingOpened:
        self.asked_at_s = time.monotonic()
        self.close()
        token, listener = secrets.token_bytes(TOKEN_BYTES), listen(self._address)
        self._ring = listener, token
        return RingOpened(address=self._address, port=int(listener.getsockname()[1]), token=token)

    def _on_sum_ring(self, asked: SumRing, _peer: bytes) -> RingSummed:
        self.asked_at_s = time.monotonic()
        place = _place(asked)
        if self._ring is None:
            raise InputError("no ring is open", remedy="ask for one first (peer.open_ring/1)")
        (listener, token), self._ring = self._ring, None
        edge = all_reduce(listener, token, place, self._address)
        return RingSummed(
            has_reached_next=edge.has_reached_next,
            duration_s=edge.duration_s,
            bytes_per_s=edge.bytes_per_s,
            num_damaged=edge.num_damaged,
            trouble=edge.trouble,
        )

    def close(self) -> None:
        """Give up a ring that nobody has summed."""
        if self._ring is not None:
            self._ring[0].close()
            self._ring = None


def run_peer(options: PeerOptions) -> int:
    """Serve until a signal comes or nobody asks any more; returns the exit code.

    Raises:
        InputError: the endpoint is not one of this machine's, or needs keys.
    """
    address, endpoint = local_endpoint(options.endpoint)
    keys = load_keys(options.keys) if options.keys is not None else None
    peer = Peer(address)
    loop = Loop(lambda _: loop.end())
    with Server(
        endpoint,
        peer.handlers,
        keys.peer if keys else None,
        [keys.coordinator.public] if keys else None,
    ) as server:
        print(f"listening at {server.endpoint}", flush=True)

        def look() -> None:
            if time.monotonic() - peer.asked_at_s > options.idle_s:
                _log.info("nobody has asked for anything, ending", idle_s=options.idle_s)
                loop.end()

        loop.watch(server.socket, server.handle_ready)
        loop.every(LOOK_S, look)
        try:
            loop.run()
        finally:
            peer.close()
            loop.close()
    return 0


def local_endpoint(endpoint: str) -> tuple[str, str]:
    """(own address, endpoint with it) of ``tcp://WHERE[:PORT]``.

    Raises:
        InputError: it has another form, or this machine has no such address.
    """
    where = endpoint.removeprefix("tcp://")
    if where == endpoint or not where:
        raise InputError(
            f"{endpoint!r} is not an endpoint of a peer",
            remedy=f"write tcp://ADDRESS:PORT, tcp://eth0:{DEFAULT_PORT} or tcp://10.0.0.0/16",
        )
    host, _, port = where.rpartition(":") if not where.endswith("]") else (where, "", "")
    if not host or not port.isdigit():
        host, port = where, str(DEFAULT_PORT)
    address = address_of(host.strip("[]"))
    return address, f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _bursts(asked: MeasureCpu | OpenLink | MeasureLink) -> Bursts:
    """What was asked for, within bounds. Raises InputError."""
    is_possible = math.isfinite(asked.burst_s) and 0 < asked.burst_s <= MOST_BURST_S
    if not is_possible or not 1 <= asked.num_bursts <= MOST_BURSTS:
        raise InputError(
            f"{asked.num_bursts} bursts of {asked.burst_s} s cannot be measured",
            remedy=f"ask for at most {MOST_BURSTS} of at most {MOST_BURST_S:g} s",
        )
    config = PairwiseConfig(burst_s=asked.burst_s, num_bursts=asked.num_bursts)
    return Bursts(asked.burst_s, asked.num_bursts, config.link_s)


def _place(asked: SumRing) -> Place:
    """What was asked for, within bounds. Raises InputError."""
    is_possible = (
        2 <= asked.size <= MOST_MEMBERS
        and 0 <= asked.number < asked.size
        and 4 * FIRST_SHARE * asked.size <= asked.num_bytes <= MOST_SUMMED_BYTES
        and 0 < asked.limit_s <= MOST_BURST_S
    )
    if not is_possible:
        raise InputError(
            f"{asked.num_bytes} bytes cannot be summed as member {asked.number} of {asked.size} "
            f"in {asked.limit_s} s",
            remedy=f"ask for at most {MOST_SUMMED_BYTES} bytes, {MOST_MEMBERS} members and "
            f"{MOST_BURST_S:g} s",
        )
    part_words = asked.num_bytes // (4 * asked.size)
    return Place(
        number=asked.number,
        size=asked.size,
        next_address=asked.address,
        next_port=asked.port,
        next_token=asked.token,
        num_words=part_words * asked.size,
        limit_s=asked.limit_s,
    )


def _compute(burst_s: float) -> tuple[float, bool]:
    """(runs of the fixed products per second, whether all were exact)."""
    began_s = time.perf_counter()
    num_runs, is_exact = 0, True
    while (elapsed_s := time.perf_counter() - began_s) < burst_s or not num_runs:
        is_exact &= multiply(np, None).is_exact
        num_runs += 1
    return num_runs / elapsed_s, is_exact


def _serve(listener: socket.socket, token: bytes, bursts: Bursts) -> None:
    try:
        serve_link(listener, token, bursts)
    except OSError as error:  # the other peer reports the same to the coordinator
        _log.warning("a link was not measured to its end", reason=str(error))
