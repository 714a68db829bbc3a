"""A cut of the ranks' network is found and the right node named, also on a real cut cable."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from headway.common.node.testing import many_open_files, wait_until
from headway.common.wire.messages.health import AgentBeat, SilentPeer, Verdict
from headway.health.config import HealthConfig
from headway.health.sources.connections import _parse
from headway.health.sources.probes import MAX_PROBES, Asked, Probes
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, beat_times, lockstep
from headway.testkit.bed import Bed

CUT_S = 20.0
LOCAL = "127.0.0.1"
RETRIES_S = (0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 25.4)
"""When Linux has repeated a segment so often (RFC 6298, with its least interval of 0.2 s)."""


class Cluster:
    """Four nodes of one rank each, whose ranks all wait from ``CUT_S`` on."""

    def __init__(
        self, own_node: int = 0, domains: dict[str, tuple[int, ...]] | None = None
    ) -> None:
        self.timelines = lockstep(4, 100, lambda _: 0.4)
        for timeline in self.timelines:
            timeline.hang(CUT_S, "NORM")
        self.nodes = [SimulatedNode(node, [one]) for node, one in enumerate(self.timelines)]
        self.state = MonitorState(HealthConfig(domains=domains or {}), RUN_ID, own_node)
        self.cut: dict[int, set[int]] = {}
        """Node -> peers that do not acknowledge what it sends."""
        self.reached: dict[int, set[int]] = {}
        self.num_asked = 3
        self.shared: set[int] = set()
        """Nodes that report the address of node 0."""
        self.silent: set[int] = set()
        """Nodes whose beats do not arrive."""
        self.cut_s, self.healed_s = CUT_S, float("inf")
        self.named: list[tuple[float, Verdict]] = []

    def _beat(self, node: int, now_s: float) -> AgentBeat:
        since_s = now_s - self.cut_s
        lasts_s = min(since_s, self.healed_s - self.cut_s)
        repeats = sum(after_s <= lasts_s for after_s in RETRIES_S)
        due_s = next(one for one in (*RETRIES_S, 1e9) if one > lasts_s)
        is_waiting = repeats > 0 and (now_s < self.healed_s or since_s < due_s)
        peers = sorted(self.cut.get(node, ())) if is_waiting else []
        return msgspec.structs.replace(  # type: ignore[type-var]
            self.nodes[node].beat(now_s),
            fabric_address=_address(0 if node in self.shared else node),
            silent_peers=tuple(
                SilentPeer(address=_address(peer), num_repeats=repeats, age_s=since_s)
                for peer in peers
            ),
            reached=tuple(_address(peer) for peer in sorted(self.reached.get(node, ()))),
            num_asked=self.num_asked if node in self.reached else 0,
        )

    def play(self, start_s: float, until_s: float) -> list[tuple[float, Verdict]]:
        """The verdicts on cuts, each with its time; also kept in ``named``."""
        found = []
        for now_s in beat_times(until_s, start_s=start_s):
            for node in range(4):
                beat = self._beat(node, now_s)
                if node not in self.silent:
                    self.state.on_beat(beat, now_s)
            found += [(now_s, one) for one in self.state.tick(now_s) if "fabric" in one.kind]
        self.named += found
        return found


def _address(node: int) -> str:
    return f"10.250.0.{10 + node}"


def test_both_ends_of_a_cut_are_named_once_and_no_rank_is_ended_for_it() -> None:
    cluster = Cluster()
    cluster.cut, cluster.reached = {1: {2}, 2: {1}}, {1: {0, 3}, 2: {0, 3}}
    [(at_s, verdict)] = cluster.play(0.0, 30.0)
    assert (verdict.node, verdict.rank, verdict.action) == (2, -1, "replace_node")
    assert at_s <= CUT_S + HealthConfig().fabric_silence_s + 1.0
    assert "nodes 1 and 2 do not reach each other" in verdict.remedy
    rows = [one.value for one in verdict.evidence]
    assert rows[0].startswith("node 1 (10.250.0.11) to node 2 (10.250.0.12): nothing acknowledged")
    assert rows[1].startswith("node 2 (10.250.0.12) to node 1 (10.250.0.11): nothing acknowledged")
    others = [one for one in cluster.state.open_verdicts() if one.kind != "fabric_cut"]
    assert all(one.confidence <= 0.5 for one in others), "only a guess may precede it"


def test_a_cut_that_outlasts_its_generation_is_named_again_with_the_next_one() -> None:
    """The driver acts on no verdict of a generation that has ended."""
    cluster = Cluster()
    cluster.cut, cluster.reached = {1: {2}, 2: {1}}, {1: {0, 3}, 2: {0, 3}}
    [(_, first)] = cluster.play(0.0, 30.0)
    for node in cluster.nodes:
        node.generation = 1  # the ranks were fenced, and join the next generation
    (_, closed), (_, again) = cluster.play(30.0, 60.0)
    assert (closed.id, closed.is_open) == (first.id, False)
    assert (again.node, again.is_open) == (first.node, True)
    assert (first.generation, again.generation) == (0, 1)


def test_a_cut_before_the_newest_steps_counts_against_nobody() -> None:
    """Else the healthy end of a new cut is replaced for one that was healed minutes ago."""
    cluster = Cluster(own_node=3)
    cluster.cut, cluster.reached = {1: {2}, 2: {1}}, {1: {0, 3}, 2: {0, 3}}
    [(_, first)] = cluster.play(0.0, 30.0)
    assert first.node == 2
    timelines = lockstep(4, 400, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(60.0, "NORM")
    cluster.nodes = [SimulatedNode(node, [one]) for node, one in enumerate(timelines)]
    for node in cluster.nodes:
        node.generation = 1
    cluster.cut_s = 60.0
    cluster.cut, cluster.reached = {0: {2}, 2: {0}}, {0: set(), 2: {1, 3}}
    named = [one.node for _, one in cluster.play(30.0, 75.0) if one.is_open]
    assert named == [0], "it reaches nobody"


@pytest.mark.parametrize("alone", range(4))
def test_the_node_that_reaches_nobody_is_named_whoever_waits_for_it(alone: int) -> None:
    for waiting in sorted({0, 1, 2, 3} - {alone}):
        cluster = Cluster()
        cluster.cut = {waiting: {alone}}  # the only one that had just sent something
        cluster.reached = {node: {0, 1, 2, 3} - {node, alone} for node in range(4) if node != alone}
        [(_, verdict)] = cluster.play(0.0, 30.0)
        assert verdict.node == alone


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_has_not_asked_yet_is_waited_for_and_then_suspected(late: bool) -> None:
    """Of two peers the other node reaches one, which proves little by itself."""
    cluster = Cluster()
    cluster.num_asked = 2
    cluster.cut, cluster.reached = {3: {1}}, {3: {2}}
    early = cluster.play(0.0, CUT_S + 1.5 * HealthConfig().fabric_silence_s + 1.0)
    assert early == [], "node 1 has not asked anybody"
    if not late:
        cluster.reached[1] = set()
    [(_, verdict)] = cluster.play(CUT_S + 1.5 * HealthConfig().fabric_silence_s + 1.0, 40.0)
    assert verdict.node == 1


def test_without_answers_the_node_of_which_several_were_cut_off_is_named() -> None:
    cluster = Cluster(own_node=3)
    cluster.cut = {1: {2}}
    assert [one.node for _, one in cluster.play(0.0, 28.0)] == [2], "either one may be to blame"
    for timeline in cluster.timelines:
        timeline.now_s = 33.0
    cluster.cut = {1: {0}}  # the spare that took over
    assert [one.node for _, one in cluster.play(28.0, 48.0) if one.is_open] == [1]


def test_a_node_of_few_peers_is_not_named_for_reaching_fewer() -> None:
    cluster = Cluster()
    cluster.cut = {1: {2}}
    cluster.reached = {1: set(), 2: {0}}  # of three peers each
    for _, verdict in cluster.play(0.0, 30.0):
        assert verdict.node == 1
    assert (
        "0 of 3 peers of node 1 answer, of node 2 1 of 3" in cluster.named[0][1].evidence[0].value
    )


@pytest.mark.parametrize("since_s", [0.0, CUT_S + 4.0])
def test_a_peer_whose_kernel_answers_is_not_cut_off(since_s: float) -> None:
    """Its backlog is full, or the cable works again before the next repetition."""
    cluster = Cluster()
    cluster.cut = {0: {2}, 1: {2}, 3: {2}}
    if since_s:
        cluster.play(0.0, CUT_S + 2.5)
    cluster.reached = {0: {1, 2, 3}, 1: {0, 2, 3}, 3: {0, 1, 2}}
    assert cluster.play(since_s, 60.0) == []


def test_an_address_of_several_nodes_names_none_of_them() -> None:
    cluster = Cluster()
    cluster.cut, cluster.shared = {3: {0}}, {1}
    assert cluster.play(0.0, 40.0) == []


def test_a_network_that_came_apart_costs_no_node_until_one_is_to_blame() -> None:
    cluster = Cluster()
    cluster.cut = {0: {2, 3}, 1: {2, 3}}
    [(_, verdict)] = cluster.play(0.0, 30.0)
    assert (verdict.kind, verdict.action) == ("fabric_split", "observe")
    assert "nodes 0 and 2, 0 and 3, 1 and 2, 1 and 3 do not reach each other" in verdict.remedy
    for timeline in cluster.timelines:
        timeline.now_s = 30.0
    cluster.cut = {1: {2, 3}}
    kinds = [(one.kind, one.action, one.node) for _, one in cluster.play(30.0, 50.0) if one.is_open]
    assert kinds[-1] == ("fabric_cut", "replace_node", 1)


@pytest.mark.parametrize("neighbours", [True, False])
def test_a_switch_that_loses_the_others_costs_no_node_below_it(neighbours: bool) -> None:
    """Node 1 reaches its neighbour still; one that reaches nobody is cut off itself."""
    cluster = Cluster(domains={"switch-a": (0, 1), "switch-b": (2, 3)})
    cluster.cut = {1: {2}}
    cluster.reached = {1: {0} if neighbours else set(), 2: {0, 3}}
    told = [one for _, one in cluster.play(0.0, 30.0)]
    if neighbours:
        assert [(one.kind, one.name, one.node) for one in told] == [
            ("fabric_split", "switch-a", -1)
        ]
    else:
        assert [(one.kind, one.action, one.node) for one in told] == [
            ("fabric_cut", "replace_node", 1)
        ]


def test_a_node_that_is_silent_altogether_is_no_cut_of_the_fabric() -> None:
    cluster = Cluster()
    cluster.cut, cluster.silent = {0: {2}, 1: {2}, 3: {2}}, set()
    cluster.play(0.0, CUT_S)
    cluster.silent = {2}
    assert cluster.play(CUT_S, 40.0) == []


@pytest.mark.parametrize("length_s", [1.5, 3.0, 6.0, 10.0])
def test_a_cut_of_everything_that_has_healed_costs_no_node(length_s: float) -> None:
    """Beats arrive again, but connections are silent until their next repetition."""
    cluster = Cluster()
    cluster.cut, cluster.healed_s = {0: {2}, 1: {2}, 3: {2}, 2: {0, 1, 3}}, CUT_S + length_s
    cluster.play(0.0, CUT_S)
    cluster.silent = {2}
    cluster.play(CUT_S, CUT_S + length_s)
    cluster.silent = set()
    assert cluster.play(CUT_S + length_s, CUT_S + 4 * length_s) == []
    assert cluster.named == []


def test_a_verdict_ends_with_the_silence() -> None:
    cluster = Cluster()
    cluster.cut, cluster.healed_s = {1: {2}}, CUT_S + 8.0
    assert [(one.node, one.is_open) for _, one in cluster.play(0.0, 40.0)] == [
        (2, True),
        (2, False),
    ]


RECORDED = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0AF0FA0A:8A3B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1
   1: 0AF0FA0A:8A3B 0BF0FA0A:C350 01 00000400:00000000 01:0000009C 00000004     0        0 102 2
   2: 0AF0FA0A:8A3B 0CF0FA0A:C351 01 00000000:00000000 00:00000000 00000000     0        0 103 1
   3: 0100007F:8A3B 0100007F:C352 01 00000400:00000000 01:00000010 00000001     0        0 104 2
   4: 0AF0FA0A:9000 0DF0FA0A:8A3C 02 00000001:00000000 01:00000010 00000003     0        0 105 2
   5: 0AF0FA0A:9001 0EF0FA0A:8A3D 01 00000400:00000000 04:00000A10 00000000     0       12 106 2
   6: 0AF0FA0A:9002 0FF0FA0A:8A3E 01 00000400:00000000 01:00000A10 00000007     0        0 107 2
"""


@pytest.mark.skipif(sys.byteorder == "big", reason="recorded on a little-endian machine")
def test_the_kernels_table_is_read_as_it_is_written() -> None:
    rows = _parse(RECORDED, range(101, 107))
    found = [(one.address, one.num_repeats, one.inode) for one in rows]
    assert found == [
        ("10.250.240.11", 4, 102),
        ("10.250.240.12", 0, 103),
        ("10.250.240.13", 3, 105),
        ("10.250.240.14", 12, 106),
    ]
    mapped = RECORDED.splitlines()[2].replace("0BF0FA0A", "0000000000000000FFFF00000BF0FA0A")
    assert [one.address for one in _parse("\n" + mapped, [102])] == ["10.250.240.11"]


def test_a_probe_counts_answers_only_and_leaves_nothing_open() -> None:
    now_s = [0.0]
    probes = Probes(LOCAL, lambda: now_s[0])
    before = set(os.listdir("/proc/self/fd"))
    wait_until(lambda: probes.ask([LOCAL]) == Asked(1, (LOCAL,)), what="a refusal")
    now_s[0] = 100.0
    assert probes.ask([]) == Asked()
    probes.close()
    assert probes.ask([]) == Asked()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_process_with_many_open_files_can_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    with many_open_files(), contextlib.ExitStack() as held:
        silent = held.enter_context(socket.create_server((LOCAL, 0), backlog=0))
        for _ in range(4):  # more than it lets wait
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        monkeypatch.setattr("headway.health.sources.probes.PORT", silent.getsockname()[1])
        probes = held.enter_context(contextlib.closing(Probes(LOCAL)))
        assert probes.ask([LOCAL]) == probes.ask([LOCAL]) == Asked()


def test_more_peers_than_can_be_tried_at_once_take_turns_and_silent_ones_come_first() -> None:
    many = sorted(f"127.0.{number}.1" for number in range(3 * MAX_PROBES))
    probes = Probes(LOCAL)
    probes.ask(many, first=many[-1:])
    answered = probes.ask(many, first=many[-1:]).reached
    assert answered == tuple(sorted([*many[: MAX_PROBES - 1], many[-1]]))
    wait_until(lambda: probes.ask(many) == Asked(len(many), tuple(many)), what="all")
    probes.close()


WORKER = """
import json, os, socket, sys, time
from headway.health.sources.connections import ConnectionSource
own, peer, other = sys.argv[1:]
source = ConnectionSource(own)
made = [socket.create_connection((address, 7000)) for address in (peer, other) if address]
if not peer:
    made[0].setblocking(False)
if peer:
    for _ in range(8):  # more than the other side lets wait
        made.append(socket.socket())
        made[-1].setblocking(False)
        made[-1].connect_ex((peer, 7001))
while True:
    for one in made[:2]:
        try:
            while one.send(b"x" if peer else bytes(1 << 20)) and not peer:
                pass
        except BlockingIOError:
            pass
    peers = source.read([os.getpid()])
    silent = [(p.address, p.num_repeats, p.age_s) for p in peers.silent]
    print(json.dumps([silent, peers.asked.reached]), flush=True)
    time.sleep(0.2)
"""
SERVER = """
import socket, threading, sys
listening = socket.create_server((sys.argv[1], 7000))
full = socket.create_server((sys.argv[1], 7001), backlog=1)
print("up", flush=True)
held = []
while True:
    held.append(listening.accept()[0])
"""


def _newest(log: Path) -> tuple[dict[str, int], list[str]]:
    """The silent peers with the times that something was repeated, and those that answer."""
    whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
    lines = whole.splitlines()  # without the one that is just being written
    silent, reached = json.loads(lines[-1]) if lines else ([], [])
    return {address: repeats for address, repeats, _ in silent}, reached


@pytest.mark.timeout(120)
def test_a_cut_cable_shows_in_the_kernels_table_and_a_hanging_peer_answers(tmp_path: Path) -> None:
    if reason := Bed.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    with Bed(tmp_path, nodes=3) as bed:
        own, hung, away = (node.fabric_address for node in bed.nodes)
        for node in bed.nodes[1:]:
            log = tmp_path / f"server-{node.index}.log"
            command = [sys.executable, "-c", SERVER, node.fabric_address]
            server = node.start(command, log=log)
            wait_until(lambda log=log: log.exists() and "up" in log.read_text(), what="a server")
            if node.fabric_address == hung:
                server.send_signal(19)  # SIGSTOP: its kernel acknowledges for it
        sends, full = tmp_path / "sends.log", tmp_path / "full.log"
        for peer, log in ((hung, sends), ("", full)):
            bed.node(0).start([sys.executable, "-c", WORKER, own, peer, away], log=log)
        wait_until(
            lambda: _newest(sends)[1] == [hung, away] and _newest(full) == ({}, [away]),
            what="both peers",
        )
        wait_until(lambda: _newest(sends)[0].get(hung, 0) >= 3, what="a full backlog")
        bed.cut(0, 2, plane="fabric")
        for log in (sends, full):
            wait_until(
                lambda log=log: _newest(log)[0].get(away, 0) >= 3, what="a cut", timeout_s=30
            )
        assert hung in _newest(sends)[1], "it answers another question"
        wait_until(lambda: _newest(sends)[1] == [hung], what="no answer of the one that is cut off")
        bed.heal()
        wait_until(
            lambda: away not in _newest(sends)[0] and _newest(full) == ({}, [away]),
            what="the peer again",
            timeout_s=60,
        )
