"""All-reduces of real peers on loopback addresses: the sum, and the odd one below a switch."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.common.errors import HeadwayError
from headway.common.node.testing import child_environment, python_child, read_line
from headway.common.wire.client import Client
from headway.common.wire.messages.peer import OpenRing, RingOpened, RingSummed, SumRing
from headway.health.measure import streams
from headway.health.pairwise import ring
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.fleet import Member
from headway.health.pairwise.hosts import read_hosts
from headway.health.pairwise.keys import load_keys
from headway.health.pairwise.neighbours import SwitchReport, _slow_switches
from headway.health.pairwise.ring import Edge, Place, all_reduce, content
from headway.health.pairwise.ring_plan import Odd, edges, odd_ones, rings
from hypothesis import given
from hypothesis import strategies as st

LIMITS = PairwiseConfig().thresholds
PEER = """
import sys, time
from pathlib import Path
from headway.health.measure.streams import BLOCK_BYTES
from headway.health.pairwise import peer, ring
endpoint, keys, mib_per_s, damage = sys.argv[1:]

def paced(stream, part):
    part = bytearray(part)
    if damage == "damage":
        part[-1] ^= 1
    due_s = time.monotonic()
    for at in range(0, len(part), 1 << 16):
        stream.sendall(part[at : at + (1 << 16)])
        due_s += (1 << 16) / (float(mib_per_s) * 2**20)
        time.sleep(max(0.0, due_s - time.monotonic()))

ring.send_part = paced
sys.exit(peer.run_peer(peer.PeerOptions(endpoint, Path(keys) if keys else None, 100.0)))
"""
"""A peer that sends at a given rate, so that a busy machine changes nothing."""
QUICK = ("--set", "ring_mib=4", "--set", "answer_s=5", "--set", "ring_s=20")
USUAL, SLOW = 16.0, 4.0


class Fleet:
    """Peers on 127.0.0.2 and up, with the hosts file and keys to reach them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.hosts, self.keys, self._stack = folder / "hosts.txt", folder / "keys", stack
        self.children: list[subprocess.Popen[str]] = []
        self.names: list[str] = []

    def start(self, *links: float, damage: int = -1, switches: tuple[str, ...] = ()) -> None:
        load_keys(self.keys)
        for n, mib_per_s in enumerate(links):
            words = f"tcp://127.0.0.{n + 2}:0", self.keys, mib_per_s
            child = python_child(PEER, *words, "damage" if n == damage else "")
            self.children.append(self._stack.enter_context(child))
        self.names = [read_line(one).removeprefix("listening at tcp://") for one in self.children]
        lines = [f"{a} switch={b}" for a, b in zip(self.names, switches, strict=False)]
        self.hosts.write_text("\n".join(lines or self.names) + "\n")

    def client(self, number: int) -> Client:
        keys = load_keys(self.keys)
        made = Client(
            f"tcp://{self.names[number]}", keys=keys.coordinator, server_key=keys.peer.public
        )
        return self._stack.enter_context(made)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headway.health", "pairwise", "--neighbours", *QUICK,
             "--hosts", self.hosts, "--keys", self.keys, *words],
            capture_output=True, text=True, env=child_environment(), timeout=200,
        )  # fmt: skip

    def report(self, code: int) -> dict[str, Any]:
        done = self.run("--json")
        assert done.returncode == code, done.stdout + done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield Fleet(tmp_path, stack)


# ---- whom the command names ---------------------------------------------------------------------
def test_a_healthy_switch_has_no_odd_node_and_exit_code_0(fleet: Fleet) -> None:
    fleet.start(*[USUAL] * 4)
    report = fleet.report(0)
    assert (report["schema"], report["num_answered"], report["bad"]) == (1, 4, {})
    (switch,) = report["switches"]
    assert switch["bytes_per_s"] > 0 and [len(one) for one in switch["rings"]] == [4, 4]
    assert all(one["bytes_per_s"] > 0 for ring_ in switch["rings"] for one in ring_)


def test_the_member_with_a_slow_link_is_named_below_its_switch(fleet: Fleet) -> None:
    fleet.start(*[USUAL] * 2, SLOW, *[USUAL] * 4, switches=("leaf1",) * 4 + ("leaf2",) * 3)
    report = fleet.report(1)
    assert list(report["bad"]) == [fleet.names[2]]
    assert "in a sum below leaf1" in report["bad"][fleet.names[2]][0]
    assert [(one["switch"], len(one["nodes"])) for one in report["switches"]] == [
        ("leaf1", 4), ("leaf2", 3)
    ]  # fmt: skip
    assert f"BAD     {fleet.names[2]}: in a sum" in fleet.run().stdout


def test_a_member_that_damages_bytes_is_named_and_those_behind_it_are_not(fleet: Fleet) -> None:
    fleet.start(*[USUAL] * 5, damage=3)
    report = fleet.report(1)
    assert list(report["bad"]) == [fleet.names[3]]
    assert "damaged 8 parts" in report["bad"][fleet.names[3]][0]


def test_a_dead_peer_is_named_and_the_others_sum_without_it(fleet: Fleet) -> None:
    fleet.start(*[USUAL] * 4)
    fleet.children[1].kill()
    fleet.children[1].wait()
    report = fleet.report(1)
    assert list(report["bad"]) == [fleet.names[1]] and report["num_answered"] == 3
    assert "does not answer" in report["bad"][fleet.names[1]][0]


def test_two_nodes_are_not_compared_and_exit_code_3(fleet: Fleet) -> None:
    fleet.start(USUAL, SLOW)
    report = fleet.report(3)
    assert report["bad"] == {} and "3 are needed" in report["notes"][0]


@pytest.mark.parametrize(
    "wrong",
    [{"size": 1}, {"number": 3}, {"num_bytes": 0}, {"num_bytes": 1 << 40},
     {"limit_s": float("nan")}, {"limit_s": 0.0}],
    ids=str,
)  # fmt: skip
def test_impossible_rings_are_refused_and_the_peer_lives(
    wrong: dict[str, Any], fleet: Fleet
) -> None:
    fleet.start(USUAL)
    client = fleet.client(0)
    opened = client.call(OpenRing(), RingOpened)
    asked = {"number": 0, "size": 3, "num_bytes": 1 << 20, "limit_s": 1.0} | wrong
    ask = SumRing(address=opened.address, port=opened.port, token=opened.token, **asked)
    with pytest.raises(HeadwayError, match="cannot be summed"):
        client.call(ask, RingSummed)
    assert client.call(OpenRing(), RingOpened).port


def test_a_ring_that_was_not_opened_is_refused(fleet: Fleet) -> None:
    fleet.start(USUAL)
    ask = SumRing(
        number=0, size=3, address="127.0.0.1", port=1, token=b"t", num_bytes=1 << 20, limit_s=1.0
    )
    with pytest.raises(HeadwayError, match="no ring is open"):
        fleet.client(0).call(ask, RingSummed)


# ---- a ring by itself ---------------------------------------------------------------------------
def sum_of(size: int, num_words: int, limit_s: float = 30.0) -> list[Edge]:
    tokens = [secrets.token_bytes(streams.TOKEN_BYTES) for _ in range(size)]
    listeners = [streams.listen("127.0.0.1") for _ in range(size)]
    ports = [one.getsockname()[1] for one in listeners]

    def member(number: int) -> Edge:
        after = (number + 1) % size
        place = Place(number, size, "127.0.0.1", ports[after], tokens[after], num_words, limit_s)
        return all_reduce(listeners[number], tokens[number], place, "127.0.0.1")

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_every_part_that_arrives_is_the_sum_that_it_must_be(size: int) -> None:
    for edge in sum_of(size, 1000 * size):
        assert (edge.trouble, edge.num_damaged) == ("", 0)
        assert edge.has_reached_next and edge.duration_s > 0
        assert len(edge.rates) == 2 * (size - 1) and edge.bytes_per_s > 0


@given(size=st.integers(2, 7), words=st.integers(1, 9), data=st.data())
def test_what_is_expected_is_what_the_members_add_up_to(
    size: int, words: int, data: st.DataObject
) -> None:
    first, begin = data.draw(st.integers(0, 99)), data.draw(st.integers(0, size - 1))
    members = range(begin, begin + data.draw(st.integers(1, size)))
    summed = sum((content(one % size, words, first) for one in members), np.zeros(words, np.uint32))
    assert ring.expected(members, size, words, first).tolist() == summed.tolist()


def test_a_member_that_never_comes_is_missed_by_its_neighbours_in_time() -> None:
    """Its listener takes the connection, but it reads and sends nothing."""
    token = secrets.token_bytes(streams.TOKEN_BYTES)
    with streams.listen("127.0.0.1") as own, streams.listen("127.0.0.1") as silent:
        place = Place(0, 2, "127.0.0.1", silent.getsockname()[1], token, 1 << 10, 0.3)
        edge = all_reduce(own, token, place, "127.0.0.1")
    assert edge.has_reached_next and edge.trouble and edge.bytes_per_s == edge.duration_s == 0.0


def test_an_edge_that_crawls_is_cut_by_the_limit_and_has_a_rate() -> None:
    token = secrets.token_bytes(streams.TOKEN_BYTES)
    ended = threading.Event()
    with streams.listen("127.0.0.1") as own, streams.listen("127.0.0.1") as other:
        port = own.getsockname()[1]

        def crawl() -> None:
            with (
                contextlib.suppress(OSError),
                streams.connect("127.0.0.1", port, token) as after,
                streams.accept(other, token, 10.0) as before,
            ):
                while not ended.wait(0.02):
                    after.sendall(bytes(100))
                before.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=crawl)
        thread.start()
        place = Place(0, 2, "127.0.0.1", other.getsockname()[1], token, 1 << 20, 0.5)
        edge = all_reduce(own, token, place, "127.0.0.1")
        ended.set()
        thread.join()
    assert edge.trouble and 0 < edge.bytes_per_s < 1 << 20 and not edge.duration_s


# ---- what two rings show ------------------------------------------------------------------------
NODES = list("abcdefgh")


def judged(slow: dict[tuple[str, str], float], nodes: list[str] = NODES) -> Odd:
    measured = [{edge: slow.get(edge, 100.0) for edge in edges(order)} for order in rings(nodes)]
    return odd_ones(measured, LIMITS)


@pytest.mark.parametrize("nodes", [NODES[:3], NODES[:4], NODES])
def test_a_node_slow_in_one_direction_or_both_is_named(nodes: list[str]) -> None:
    pairs = [edge for order in rings(nodes) for edge in edges(order)]
    for sends, receives in ((True, False), (False, True), (True, True)):
        if (sends, receives) == (True, True) and len(nodes) < 4:
            continue  # two of three edges are slow then, and nobody can say which are usual
        slow = {(a, b): 40.0 for a, b in pairs if (sends and a == "b") or (receives and b == "b")}
        assert judged(slow, nodes) == Odd(("b",))


def test_a_slow_path_names_neither_end() -> None:
    assert judged({("b", "c"): 40.0}) == Odd((), (("b", "c"),))
    assert judged({("b", "c"): 40.0, ("c", "b"): 0.0}) == Odd((), (("b", "c"), ("c", "b")))


def test_a_switch_that_is_slow_as_a_whole_is_named_next_to_others() -> None:
    def switch(name: str, rate: float) -> SwitchReport:
        return SwitchReport(name, [], rate, [[Member(("a", "b"), 1)]])

    rates = {"leaf1": 100e6, "leaf2": 97e6, "leaf3": 50e6, "leaf4": 103e6}
    found = [switch(name, rate) for name, rate in rates.items()]
    assert list(_slow_switches(found, PairwiseConfig())) == ["leaf3"]
    assert _slow_switches(found[:3], PairwiseConfig()) == {}, "too few to compare"


def test_the_hosts_file_names_switches(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("10.0.0.7 switch=leaf1\nnode-8:9000   switch=s0/1  # rack 2\n10.0.0.9\n")
    assert [(host.name, host.switch) for host in read_hosts(path)] == [
        ("10.0.0.7", "leaf1"), ("node-8:9000", "s0/1"), ("10.0.0.9", "")
    ]  # fmt: skip


def test_a_peer_with_an_open_ring_ends_at_once_on_sigterm(fleet: Fleet) -> None:
    fleet.start(USUAL)
    fleet.client(0).call(OpenRing(), RingOpened)
    fleet.children[0].send_signal(signal.SIGTERM)
    assert fleet.children[0].wait(60) == 0
