"""Real peers on loopback addresses, and the coordinator's command: who is named, who is let in."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.testing import child_environment, python_child, read_line
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.peer import (
    CpuMeasured,
    LinkMeasured,
    LinkOpened,
    MeasureCpu,
    MeasureLink,
    OpenLink,
)  # fmt: skip
from headway.health.measure import streams
from headway.health.pairwise import link
from headway.health.pairwise.hosts import DEFAULT_PORT, read_hosts
from headway.health.pairwise.keys import load_keys
from headway.health.pairwise.link import Bursts
from headway.health.pairwise.peer import local_endpoint

PEER = """
import sys, time
from pathlib import Path
from headway.health.measure.streams import BLOCK_BYTES, LAST, MORE
from headway.health.pairwise import link, peer
endpoint, keys, mib_per_s, products_per_s, damage = sys.argv[1:]

def paced(stream, num_bytes, duration_s):
    due_s = time.monotonic()
    until_s = due_s + duration_s
    while time.monotonic() < until_s:
        stream.sendall(MORE[:-1] + b"?" if damage == "damage" else MORE)
        due_s += BLOCK_BYTES / (float(mib_per_s) * 2**20)
        time.sleep(max(0.0, due_s - time.monotonic()))
    stream.sendall(LAST)

link.send = paced
if products_per_s != "real":
    peer._compute = lambda burst_s: (float(products_per_s), True)
sys.exit(peer.run_peer(peer.PeerOptions(endpoint, Path(keys) if keys else None, 100.0)))
"""
"""A peer that sends and computes at given rates, so that a busy machine changes nothing."""
QUICK = tuple(
    word
    for one in ("burst_s=0.2", "num_bursts=1", "answer_s=3", "cpu_burst_s=0.1")
    for word in ("--set", one)
)
USUAL, HALF = 24.0, 12.0


class Peers:
    """Peers on 127.0.0.2 and up, with the hosts file and keys to reach them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.hosts, self.keys, self._stack = folder / "hosts.txt", folder / "keys", stack
        self.children: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []

    def start(self, *links: float, cpus: Mapping[int, float | str] = {}, damage: int = -1) -> None:
        load_keys(self.keys)
        for n, mib_per_s in enumerate(links):
            words = f"tcp://127.0.0.{n + 2}:0", self.keys, mib_per_s, cpus.get(n, 10.0)
            child = python_child(PEER, *words, "damage" if n == damage else "")
            self.children.append(self._stack.enter_context(child))
        self.endpoints = [read_line(one).removeprefix("listening at ") for one in self.children]
        names = [endpoint.removeprefix("tcp://") for endpoint in self.endpoints]
        self.hosts.write_text("# the fleet\n\n" + "\n".join(names) + "\n")

    def name(self, number: int) -> str:
        return self.endpoints[number].removeprefix("tcp://")

    def client(self, number: int) -> Client:
        keys = load_keys(self.keys)
        client = Client(self.endpoints[number], keys=keys.coordinator, server_key=keys.peer.public)
        return self._stack.enter_context(client)

    def pairwise(self, *words: str) -> subprocess.CompletedProcess[str]:
        return pairwise("--hosts", str(self.hosts), "--keys", str(self.keys), *QUICK, *words)

    def report(self, code: int) -> dict[str, Any]:
        done = self.pairwise("--json")
        assert done.returncode == code, done.stdout + done.stderr
        return dict(json.loads(done.stdout))


def pairwise(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway.health", "pairwise", *words],
        capture_output=True, text=True, env=child_environment(), timeout=110,
    )  # fmt: skip


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with contextlib.ExitStack() as stack:
        yield Peers(tmp_path, stack)


# ---- whom the command names ---------------------------------------------------------------------
def test_a_healthy_fleet_has_no_bad_node_and_exit_code_0(peers: Peers) -> None:
    peers.start(*[USUAL] * 4)
    report = peers.report(0)
    assert (report["schema"], report["num_answered"], report["bad"]) == (1, 4, {})
    assert len(report["links"][0]) == 2 and report["links"][1] == []
    assert all(one["latency_s"] > 0 for one in report["links"][0])


def test_a_node_whose_link_is_slow_is_named_in_two_rounds(peers: Peers) -> None:
    peers.start(*[USUAL] * 4, HALF, *[USUAL] * 3)
    report = peers.report(1)
    assert list(report["bad"]) == [peers.name(4)] and len(report["links"]) == 2
    done = peers.pairwise()
    assert done.stdout.startswith(f"BAD     {peers.name(4)}: its link carries")
    assert "8 of 8 nodes answered, 1 bad" in done.stdout


def test_a_node_that_computes_slowly_is_named(peers: Peers) -> None:
    peers.start(*[USUAL] * 6, cpus={3: 5.0})
    report = peers.report(1)
    assert list(report["bad"]) == [peers.name(3)]
    assert "computes 5 and 5 products/s, others 10" in report["bad"][peers.name(3)][0]


def test_a_node_that_damages_bytes_is_named(peers: Peers) -> None:
    peers.start(*[USUAL] * 6, damage=1)
    report = peers.report(1)
    assert list(report["bad"]) == [peers.name(1)]
    assert "damaged blocks" in report["bad"][peers.name(1)][0]


def test_two_bad_nodes_of_one_pair_are_both_named_and_it_says_so(peers: Peers) -> None:
    peers.start(HALF, HALF, *[USUAL] * 6)
    report = peers.report(1)
    assert set(report["bad"]) == {peers.name(0), peers.name(1)}
    assert "paired with each other and are both slow" in report["notes"][0]


def test_a_dead_and_a_frozen_peer_are_named_and_the_others_judged(peers: Peers) -> None:
    peers.start(*[USUAL] * 7)
    peers.children[1].kill()
    peers.children[1].wait()
    peers.children[5].send_signal(signal.SIGSTOP)
    report = peers.report(1)
    assert set(report["bad"]) == {peers.name(1), peers.name(5)}
    assert "nothing listens there" in report["bad"][peers.name(1)][0]
    assert report["num_answered"] == 5


def test_too_few_nodes_are_exit_code_3_and_no_judgement(peers: Peers) -> None:
    peers.start(USUAL, HALF, USUAL)
    report = peers.report(3)
    assert report["bad"] == {} and "4 are needed" in report["notes"][0]


def test_real_arithmetic_is_exact(peers: Peers) -> None:
    peers.start(USUAL, cpus={0: "real"})
    asked = MeasureCpu(burst_s=0.01, num_bursts=1)
    found = peers.client(0).call(asked, CpuMeasured, timeout_s=60.0)
    assert found.is_exact and found.products_per_s > 0


# ---- who is let in ------------------------------------------------------------------------------
def test_a_client_without_the_coordinators_key_is_not_answered(peers: Peers) -> None:
    peers.start(USUAL)
    server_key = load_keys(peers.keys).peer.public
    asked = MeasureCpu(burst_s=0.01, num_bursts=1)
    with (
        Client(peers.endpoints[0], keys=KeyPair.generate(), server_key=server_key) as stranger,
        pytest.raises(DeadlineError, match="keys"),
    ):
        stranger.call(asked, CpuMeasured, timeout_s=1.0)


@pytest.mark.parametrize("burst_s", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_impossible_measurements_are_refused_and_the_peer_lives(
    burst_s: float, peers: Peers
) -> None:
    peers.start(USUAL)
    client = peers.client(0)
    with pytest.raises(HeadwayError, match="cannot be measured"):
        client.call(MeasureCpu(burst_s=burst_s, num_bursts=1), CpuMeasured)
    with pytest.raises(HeadwayError, match="cannot be measured"):
        client.call(OpenLink(burst_s=0.1, num_bursts=0), LinkOpened)
    assert client.call(MeasureCpu(burst_s=0.01, num_bursts=1), CpuMeasured).is_exact


def test_a_token_opens_one_link_once(peers: Peers) -> None:
    peers.start(USUAL, USUAL)
    opened = peers.client(0).call(OpenLink(burst_s=0.05, num_bursts=1), LinkOpened)
    ask = MeasureLink(
        address=opened.address, port=opened.port, token=opened.token, burst_s=0.05, num_bursts=1
    )
    assert peers.client(1).call(ask, LinkMeasured, timeout_s=30.0).num_damaged == 0
    with pytest.raises(HeadwayError, match="carries nothing"):
        peers.client(1).call(ask, LinkMeasured, timeout_s=30.0)


def test_a_peer_off_loopback_without_keys_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway.health", "peer", "--endpoint", "tcp://203.0.113.9:0"],
        capture_output=True, text=True, env=child_environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_peers_that_start_together_agree_on_their_keys(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from headway.health.pairwise.keys import load_keys\n"
        "print(load_keys(Path(sys.argv[1])).peer.public.decode())"
    )
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(python_child(code, tmp_path / "k")) for _ in range(4)]
        assert len({read_line(child) for child in children}) == 1


def test_an_idle_peer_ends_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway.health", "peer", "--endpoint", "tcp://127.0.0.1:0",
         "--keys", tmp_path, "--idle-s", "0.1"],
        capture_output=True, text=True, env=child_environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("listening at tcp://127.0.0.1:")


# ---- a link by itself ---------------------------------------------------------------------------
def test_a_link_too_slow_to_measure_is_cut_by_its_limit() -> None:
    """The other side reads one byte at a time: each read succeeds, and it would never be done."""
    token = secrets.token_bytes(streams.TOKEN_BYTES)
    ended = threading.Event()
    with streams.listen("127.0.0.1") as listener:

        def crawl() -> None:
            with contextlib.suppress(OSError), streams.accept(listener, token, 10.0) as stream:
                while stream.recv(1) and not ended.wait(0.05):
                    stream.sendall(b"\0")

        thread = threading.Thread(target=crawl)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="closed the connection early"):
            link.measure_link("127.0.0.1", port, token, "127.0.0.1", Bursts(0.05, 1, 0.5))
        ended.set()
        thread.join()


def test_a_peer_that_reports_no_number_is_not_believed() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(link._RESULT.pack(float("nan"), 0))
        with pytest.raises(OSError, match="nan"):
            link._read_result(right)


# ---- the hosts file and endpoints ---------------------------------------------------------------
def test_hosts_are_read_with_ports_comments_and_ipv6(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("# rack 1\n10.0.0.7\nnode-8:9000  # by name\n\n[fd00::7]:7711\n")
    assert [host.endpoint for host in read_hosts(path)] == [
        f"tcp://10.0.0.7:{DEFAULT_PORT}", "tcp://node-8:9000", "tcp://[fd00::7]:7711"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"10.0.0.7\n10.0.0.7:7711\n", ":2: 10.0.0.7:7711 is there twice"),
        (b"10.0.0.7:99999\n", ":1: '10.0.0.7:99999' is not ADDRESS"),
        (b"tcp://10.0.0.7\n", "is not ADDRESS"),
        (b"a b\n", "is not ADDRESS"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_bad_hosts_file_is_refused_with_its_line(
    content: bytes, part: str, tmp_path: Path
) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_hosts(path)
    assert part in str(caught.value)
    done = pairwise("--hosts", str(path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_endpoints_of_peers_name_an_address_an_interface_or_a_network() -> None:
    assert local_endpoint("tcp://127.0.0.3:5") == ("127.0.0.3", "tcp://127.0.0.3:5")
    assert local_endpoint("tcp://lo") == ("127.0.0.1", f"tcp://127.0.0.1:{DEFAULT_PORT}")
    assert local_endpoint("tcp://127.0.0.1/32:9")[1] == "tcp://127.0.0.1:9"
    for wrong in ("ipc:///tmp/x", "127.0.0.1:5", "tcp://"):
        with pytest.raises(InputError, match="is not an endpoint"):
            local_endpoint(wrong)


def test_a_peer_ends_at_once_on_sigterm(peers: Peers) -> None:
    peers.start(USUAL)
    peers.client(0).call(MeasureCpu(burst_s=0.01, num_bursts=1), CpuMeasured)  # its loop runs
    peers.children[0].send_signal(signal.SIGTERM)
    assert peers.children[0].wait(20) == 0
