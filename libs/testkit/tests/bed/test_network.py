"""Between nodes: connections, black holes, slow cables, what listens and what crosses."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed, CannotError, Listener, streams
from headway.testkit.bed.node import Node

Within = Callable[[Node, Callable[[], Any]], Any]
SILENCE_S = 0.4
"""More than a TCP retransmission after 0.2 s, so that a path that works is not silent."""
PORTS = itertools.count(5000)
ACCEPT = """
import socket, sys
accepted, _ = socket.create_server((sys.argv[1], int(sys.argv[2]))).accept()
accepted.send(b"up")
while accepted.recv(1):
    pass
"""


class Pair:
    """A connection from node ``a`` to node ``b``."""

    def __init__(self, bed: Bed, within: Within, a: int, b: int) -> None:
        self.port = next(PORTS)
        address = (bed.node(b).address, self.port)
        self.server = within(bed.node(b), lambda: socket.create_server(address))
        self.client = within(bed.node(a), lambda: socket.create_connection(address, 10))
        self.accepted = within(bed.node(b), lambda: self.server.accept()[0])
        self.ends = (self.client, self.accepted)

    def passes(self, *, back: bool = False) -> bool:
        """Whether bytes that one end sends reach the other one. Raises what the kernel reports."""
        sender, receiver = reversed(self.ends) if back else self.ends
        receiver.settimeout(SILENCE_S)
        sender.send(b"x")
        try:
            return bool(receiver.recv(1 << 16))
        except TimeoutError:
            return False


@pytest.fixture
def connect(bed: Bed, within: Within) -> Callable[[int, int], Pair]:
    return lambda a, b: Pair(bed, within, a, b)


Connect = Callable[[int, int], Pair]


def attempt(
    bed: Bed, within: Within, a: int, b: int, port: int, *, plane: str = "control"
) -> int | str:
    """errno of a new connection, "silence" if there is no answer, 0 if it was made."""
    node = bed.node(b)
    address = (node.address if plane == "control" else node.fabric_address, port)
    try:
        within(bed.node(a), lambda: socket.create_connection(address, SILENCE_S))
    except TimeoutError as error:
        return error.errno or "silence"
    except OSError as error:
        return error.errno or "unknown"
    return 0


def test_nodes_reach_each_other_and_the_host_is_not_on_their_network(connect: Connect) -> None:
    pairs = [connect(a, b) for a, b in itertools.permutations(range(5), 2)]
    assert all(pair.passes() and pair.passes(back=True) for pair in pairs)
    names = {name for _, name in socket.if_nameindex()}
    assert not names & {"bridge", *(f"node{index}" for index in range(5))}


def test_a_cut_is_silence_and_heals(bed: Bed, within: Within, connect: Connect) -> None:
    pair, other = connect(0, 1), connect(0, 2)
    assert attempt(bed, within, 0, 1, 1) == errno.ECONNREFUSED
    bed.cut(0, 1)
    assert not pair.passes() and not pair.passes(back=True)
    assert attempt(bed, within, 0, 1, pair.port) == "silence"
    assert attempt(bed, within, 1, 0, 1) == "silence"
    assert other.passes() and other.passes(back=True)
    bed.join(1, 0)
    wait_until(pair.passes, what="the old connection, which repeats what was lost")
    wait_until(lambda: pair.passes(back=True), what="its other direction")
    assert attempt(bed, within, 0, 1, pair.port) == 0


def test_a_cut_of_one_way_lets_the_other_way_pass_also_after_a_boot(
    bed: Bed, within: Within, connect: Connect
) -> None:
    pair = connect(0, 1)
    bed.cut(0, 1, one_way=True)
    assert not pair.passes()
    assert pair.passes(back=True), "data arrives, although its acknowledgements do not"
    bed.node(0).kill()
    bed.node(0).boot()
    assert attempt(bed, within, 0, 1, 1) == "silence"


def test_ports_can_be_cut_alone(bed: Bed, within: Within, connect: Connect) -> None:
    below, first, last, above = (connect(0, 1) for _ in range(4))
    bed.cut(1, 0, ports=range(first.port, last.port + 1))
    assert [pair.passes() for pair in (below, first, last, above)] == [True, False, False, True]
    assert [pair.passes(back=True) for pair in (below, last, above)] == [True, False, True]
    assert attempt(bed, within, 0, 1, last.port) == "silence"
    assert attempt(bed, within, 0, 1, above.port) == 0
    with pytest.raises(ValueError, match="range of at least one port"):
        bed.cut(0, 1, ports=range(0))


def test_control_and_fabric_can_be_cut_alone(bed: Bed, within: Within, connect: Connect) -> None:
    control = connect(0, 1)
    bed.cut(0, 1, plane="fabric")
    assert control.passes() and control.passes(back=True)
    assert attempt(bed, within, 0, 1, 1) == errno.ECONNREFUSED
    assert attempt(bed, within, 0, 1, 1, plane="fabric") == "silence"
    assert attempt(bed, within, 1, 0, 1, plane="fabric") == "silence"
    assert attempt(bed, within, 2, 1, 1, plane="fabric") == errno.ECONNREFUSED
    bed.heal()
    bed.isolate(1, plane="control")
    assert attempt(bed, within, 0, 1, 1) == "silence"
    assert attempt(bed, within, 0, 1, 1, plane="fabric") == errno.ECONNREFUSED


def test_an_isolated_node_reaches_nobody(bed: Bed, within: Within, connect: Connect) -> None:
    others = connect(1, 2)
    bed.isolate(3)
    for index in (0, 4):
        assert attempt(bed, within, 3, index, 1) == attempt(bed, within, index, 3, 1) == "silence"
    assert others.passes()
    bed.heal()
    assert attempt(bed, within, 3, 0, 1) == attempt(bed, within, 0, 3, 1) == errno.ECONNREFUSED


def test_power_loss_is_silence_and_after_the_next_boot_a_reset(bed: Bed, within: Within) -> None:
    node, address = bed.node(1), (bed.node(1).address, next(PORTS))
    node.start([sys.executable, "-S", "-c", ACCEPT, address[0], str(address[1])])
    wait_until(lambda: Listener(1, *address) in bed.listening(), what="a process that listens")
    client = within(bed.node(0), lambda: socket.create_connection(address, 10))
    assert client.recv(2) == b"up"
    node.kill()
    client.settimeout(SILENCE_S)
    client.send(b"x")
    with pytest.raises(TimeoutError):
        client.recv(1)
    node.boot()
    client.settimeout(20)
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_limit_is_slower_or_refused_by_name(bed: Bed, connect: Connect) -> None:
    pair = connect(0, 1)
    try:
        bed.limit(1, 8)
    except CannotError as error:
        assert "CONFIG_NET_SCH_HTB" in str(error)
    else:
        started_s = time.monotonic()
        transfer(pair, bytes(400_000))
        assert time.monotonic() - started_s > 0.2, "8 megabits per second are 0.4 s"
        bed.limit(1, None)
    assert pair.passes() and pair.passes(back=True)


def test_a_delay_is_between_two_nodes_and_both_ways(
    bed: Bed, within: Within, connect: Connect, tmp_path: Path
) -> None:
    pair, other, sent = connect(0, 1), connect(0, 2), bytes(range(256)) * 8192
    with bed.capture(tmp_path / "all.pcap") as capture:
        bed.delay(0, 1, 100)
        started_s = time.monotonic()
        assert pair.passes() and pair.passes(back=True)
        assert time.monotonic() - started_s >= 0.2
        assert other.passes()
        late = connect(1, 0)
        assert transfer(late, sent) == sent, "large segments and their checksums are carried, too"
    carried = {(one.source, one.target_port): bytes(one.data) for one in streams(capture.path)}
    assert carried[bed.node(1).address, late.port] == sent
    bed.cut(0, 1)
    assert not pair.passes(), "a cut is not carried round"
    bed.join(0, 1)
    wait_until(pair.passes, what="the old connection, which repeats what was lost")
    bed.node(1).kill()
    bed.node(1).boot()
    started_s = time.monotonic()
    assert attempt(bed, within, 0, 1, 1) == errno.ECONNREFUSED
    assert time.monotonic() - started_s >= 0.2, "it is still slow after a boot"
    bed.delay(0, 1, 0)
    assert connect(0, 1).passes()


def test_a_loss_takes_a_share_of_the_fabric_in_both_directions(
    bed: Bed, within: Within, connect: Connect
) -> None:
    control = connect(0, 1)
    listening = within(bed.node(1), lambda: _receiver(bed.node(1).fabric_address))
    sender = within(bed.node(0), lambda: _receiver(bed.node(0).fabric_address))

    def arrive(one: socket.socket, other: socket.socket, count: int = 200) -> int:
        num = 0
        other.settimeout(SILENCE_S)
        for _ in range(count):
            one.sendto(b"x", other.getsockname())
        with contextlib.suppress(TimeoutError):
            while num < count:
                num += len(other.recv(1))
        return num

    arrive(sender, listening, 1)  # from then on hardware addresses are known
    assert arrive(sender, listening) == 200
    bed.lose(1, 0.5)
    for pair in ((sender, listening), (listening, sender)):
        assert 50 < arrive(*pair) < 150, "chance takes the half of it but once in 10**12 times"
    assert control.passes() and control.passes(back=True)
    bed.node(1).kill()
    bed.node(1).boot()
    listening = within(bed.node(1), lambda: _receiver(bed.node(1).fabric_address))
    wait_until(lambda: arrive(sender, listening, 4) > 0, what="a node that is up")
    assert 50 < arrive(sender, listening) < 150, "it is still there after a boot"
    bed.lose(1, 1.0)
    assert arrive(sender, listening) == 0
    bed.lose(1, 0.0)
    assert arrive(sender, listening) == 200
    with pytest.raises(ValueError, match=r"share=1\.5"):
        bed.lose(1, 1.5)


def _receiver(address: str) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((address, 0))
    return found


def transfer(pair: Pair, data: bytes) -> bytes:
    """What arrives of ``data``."""
    pair.client.settimeout(20)
    pair.accepted.settimeout(20)
    received = b""
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(pair.client.sendall, data)
        while len(received) < len(data):
            received += pair.accepted.recv(1 << 20)
        sending.result()
    return received


@pytest.mark.parametrize("pair", [(0, 0), (0, 5), (-1, 0)])
def test_faults_are_between_different_nodes(bed: Bed, pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="different nodes"):
        bed.cut(*pair)


def test_a_capture_has_every_byte_that_crosses_and_no_other(
    bed: Bed, connect: Connect, tmp_path: Path
) -> None:
    sent = bytes(range(256)) * 4096
    with bed.capture(tmp_path / "all.pcap") as capture:
        pair, local = connect(0, 1), connect(2, 2)
        assert transfer(pair, sent) == sent
        assert local.passes()
        bed.cut(0, 1)
        assert not pair.passes()
    found = {(one.source, one.target_port): bytes(one.data) for one in streams(capture.path)}
    assert found[bed.node(0).address, pair.port] == sent
    assert {source for source, _ in found} == {bed.node(0).address, bed.node(1).address}


def test_listening_shows_address_and_port_of_each_node(bed: Bed, within: Within) -> None:
    port = next(PORTS)
    own = bed.node(0).address
    within(bed.node(0), lambda: socket.create_server((own, port)))
    within(bed.node(1), lambda: socket.create_server(("127.0.0.1", port)))
    within(bed.node(2), lambda: socket.create_server(("", port)))
    within(
        bed.node(3),
        lambda: socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True),
    )
    assert bed.listening() == [
        Listener(0, own, port),
        Listener(1, "127.0.0.1", port),
        Listener(2, "0.0.0.0", port),
        Listener(3, "::", port),
    ]
    assert [one.node for one in bed.listening() if one.is_on_all_interfaces] == [2, 3]
