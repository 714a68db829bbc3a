"""Signs of a bad network are read from real connections, and what only looks like one is none."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import replace
from ipaddress import ip_address

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources import tcp_info
from headway.health.sources.changes import changed
from headway.health.sources.connections import sockets_of
from headway.health.sources.fabric_links import FabricLinks
from headway.health.sources.fabric_signs import Link, Sign
from headway.health.sources.source_thread import SourceThread
from headway.health.sources.tcp_info import TcpInfo, connections

OWN, PEER = "127.0.0.1", "127.0.0.2"
STEP_BYTES = 10_000_000
START = TcpInfo(
    cookie=7, inode=8, own=ip_address(OWN), peer=ip_address(PEER), num_repeats=0, num_unacked=0,
    rtt_s=1e-4, rtt_spread_s=5e-5, num_resent=0, num_needless=0, num_data_segments=0,
    num_received=0, acked_bytes=1, busy_s=0.0, held_s=0.0, sent_bytes=1,
)  # fmt: skip


class Recorded:
    """A connection that is read once a second."""

    def __init__(self) -> None:
        self.info, self.now_s = START, 100.0
        self.link = Link(self.info, self.now_s)

    def second(self, **changes: float) -> str:
        """The rule after one more second, in which a step's bytes are sent unless said else.

        Counts are added to those before, what is not a count replaces it.
        """
        grown = {"acked_bytes": STEP_BYTES, "num_data_segments": 7000, "num_received": 7000,
                 "busy_s": 0.3, "held_s": 0.0, "num_resent": 0, "num_needless": 0}  # fmt: skip
        grown["sent_bytes"] = int(changes.get("acked_bytes", STEP_BYTES))
        states = {"rtt_s": 1e-4, "rtt_spread_s": 5e-5, "num_unacked": 0, "num_repeats": 0}
        counts = {
            name: getattr(self.info, name) + changes.get(name, usual)
            for name, usual in grown.items()
        }
        now = {name: changes.get(name, usual) for name, usual in states.items()}
        self.info, self.now_s = replace(self.info, **counts, **now), self.now_s + 1.0
        sign: Sign | None = self.link.judge(self.info, self.now_s)
        return sign.rule if sign else ""

    def well(self, seconds: int = 5) -> None:
        assert {self.second() for _ in range(seconds)} == {""}


IDLE = {"acked_bytes": 0, "num_data_segments": 0, "num_received": 0, "busy_s": 0.0}
LATE = {"rtt_s": 0.2, "rtt_spread_s": 0.005, "acked_bytes": 1600, "busy_s": 1.0}
SLOW = {"rtt_s": 0.25, "rtt_spread_s": 0.2, "acked_bytes": 500_000, "busy_s": 0.9,
        "num_data_segments": 350}  # fmt: skip
DELAYED = {"rtt_s": 0.02, "rtt_spread_s": 0.0065, "acked_bytes": 2_000_000, "busy_s": 0.9,
           "num_data_segments": 1400}  # fmt: skip
SMALL = {"acked_bytes": 600_000, "num_data_segments": 6000, "busy_s": 0.6}
"""Messages of 100 bytes, each acknowledged before the next one is sent."""
MIXED = {"acked_bytes": STEP_BYTES + 600_000, "num_data_segments": 13_000, "busy_s": 0.9}
"""The same in the second of a step."""
LOSSY = {"num_resent": 300, "num_data_segments": 7000}
STOPPED = {**IDLE, "num_unacked": 3, "num_repeats": 2, "busy_s": 1.0}


@pytest.mark.parametrize(
    ("seconds", "rules"),
    [
        ([LATE, LATE], ["", "fabric_delay"]),
        ([LOSSY, LOSSY], ["", "fabric_loss"]),
        ([SLOW, SLOW, SLOW], ["", "", "fabric_slow"]),
        # at first, the mean of the round trips is still on its way
        ([SLOW, SLOW, LATE, LATE], ["", "", "", "fabric_delay"]),
        ([STOPPED], ["fabric_stop"]),
        ([{**LATE, **SLOW, "rtt_spread_s": 0.005}] * 2, ["", "fabric_delay"]),
        # the queue before a slow link is full, so round trips are long and steady
        ([*[SLOW] * 3, {**SLOW, "rtt_spread_s": 0.01}], ["", "", *["fabric_slow"] * 2]),
        # a delay of 20 ms, of which the round trips differ by a third
        ([DELAYED] * 3, ["", *["fabric_delay"] * 2]),
        # of what was sent in the first second, little has come through
        (
            [{**SLOW, "sent_bytes": 6_000_000, "num_data_segments": 4200}, SLOW, SLOW],
            ["", "", "fabric_slow"],
        ),
        # small messages teach nothing about the rate
        ([*[SMALL] * 40, SLOW, SLOW, SLOW], [*[""] * 42, "fabric_slow"]),
        ([SLOW, IDLE, SLOW, IDLE, SLOW], ["", "", "", "", "fabric_slow"]),
    ],
)
def test_what_the_network_does_has_a_name(
    seconds: list[dict[str, float]], rules: list[str]
) -> None:
    recorded = Recorded()
    recorded.well()
    assert [recorded.second(**one) for one in seconds] == rules


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([{"rtt_s": 0.006, "rtt_spread_s": 0.012}] * 9, id="busy cores"),
        pytest.param([{"num_resent": 300, "num_needless": 300}] * 9, id="needless repetitions"),
        pytest.param([{"num_resent": 60}, *[{}] * 9], id="one full queue"),
        pytest.param([IDLE] * 60, id="a long wait"),
        pytest.param([{"acked_bytes": 100_000, "busy_s": 0.1}] * 9, id="an evaluation"),
        pytest.param([SMALL] * 9, id="many small messages"),
        pytest.param([MIXED] * 9, id="many small messages and bulk"),
        pytest.param(
            [{**SMALL, "rtt_s": 0.006, "rtt_spread_s": 0.012}] * 9, id="the same on busy cores"
        ),
        pytest.param(
            [
                {
                    "acked_bytes": 65_536,
                    "num_data_segments": 46,
                    "busy_s": 0.9,
                    "rtt_s": 0.04,
                    "rtt_spread_s": 0.02,
                }
            ]
            * 9,
            id="messages of one segment, acknowledged late",
        ),
        pytest.param([{**SLOW, "rtt_s": 1e-4, "held_s": 0.85}] * 9, id="a peer that does not read"),
        pytest.param(
            [{**IDLE, "acked_bytes": 100, "rtt_s": 0.04, "rtt_spread_s": 0.001}] * 9,
            id="a peer that waits with its acknowledgement",
        ),
        pytest.param([{**SLOW}, {}] * 9, id="one slow second"),
        pytest.param([{**IDLE, "num_unacked": 3, "num_repeats": 1}] * 3, id="the last one lost"),
        pytest.param(
            [{**IDLE, "num_received": 1, "num_unacked": 1, "num_repeats": 3}] * 9, id="no room"
        ),
    ],
)
def test_what_only_looks_like_a_bad_network_has_none(seconds: list[dict[str, float]]) -> None:
    recorded = Recorded()
    recorded.well()
    assert {recorded.second(**one) for one in seconds} == {""}


def test_a_new_connection_is_compared_with_nothing() -> None:
    for seconds in (LATE, SLOW):
        recorded = Recorded()
        assert {recorded.second(**seconds) for _ in range(20)} == {""}


def test_a_sign_ends_with_its_cause() -> None:
    recorded = Recorded()
    recorded.well()
    for seconds in (LATE, SLOW, STOPPED):
        for _ in range(4):
            recorded.second(**seconds)
        recorded.well()


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Connections of this process from one address of the loopback to another one."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((PEER, 0)))
        made = []
        for _ in range(32):
            one = stack.enter_context(
                socket.create_connection(server.getsockname(), source_address=(OWN, 0))
            )
            made.append((one, stack.enter_context(server.accept()[0])))
        yield made


def test_the_kernel_says_what_a_connection_has_sent(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    ours, theirs = pairs[0]

    def told() -> TcpInfo:
        inode = os.fstat(ours.fileno()).st_ino
        return next(one for one in connections() if one.inode == inode)

    before = told()
    ours.sendall(bytes(50_000))
    assert len(theirs.recv(50_000, socket.MSG_WAITALL)) == 50_000
    wait_until(lambda: told().acked_bytes == before.acked_bytes + 50_000, what="all acknowledged")
    after = told()
    assert (str(after.own), str(after.peer)) == (OWN, PEER)
    assert after.num_unacked == after.num_repeats == 0
    assert 0 < after.rtt_s < 1
    assert after.sent_bytes - before.sent_bytes >= 50_000
    assert before.num_data_segments < after.num_data_segments <= 50_000
    assert before.busy_s <= after.busy_s < 60


def test_a_connection_that_vanishes_or_is_of_no_rank_is_forgotten(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    ranks = [os.getpid()]
    source = FabricLinks(OWN, lambda: ranks, HealthConfig())
    assert source.read() == []
    assert len(source._links) == len(pairs)
    for one in pairs[1:]:
        one[0].close()
    assert source.read() == []
    assert len(source._links) == 1
    ranks[:] = [1]  # its sockets cannot be seen, or are others
    assert source.read() == []
    assert not source._links
    ranks.clear()
    assert source.read() == []


def test_a_stop_is_one_finding_that_names_both_ends() -> None:
    now_s, stopped = [100.0], Recorded()
    rows = [replace(START, inode=0)]
    with socket.create_server((OWN, 0)) as held:
        inode = os.fstat(held.fileno()).st_ino
        source = FabricLinks(
            OWN, lambda: [os.getpid()], HealthConfig(), lambda: now_s[0], lambda: rows
        )
        found: list[Finding] = []
        for seconds in ({}, {}, STOPPED, STOPPED, STOPPED, {}, STOPPED):
            stopped.second(**seconds)
            rows[0], now_s[0] = replace(stopped.info, inode=inode), now_s[0] + 1.0
            found += source.read()
    assert [(one.rule, one.name, one.subject, one.detail) for one in found] == [
        ("fabric_stop", PEER, "peer", f"from {OWN}")
    ] * 2, "one per episode"
    assert found[0].line.startswith(f"{OWN} to {PEER}: sent again 2 times")


def test_a_kernel_that_refuses_yields_no_finding_and_is_asked_again() -> None:
    asked: list[int] = []

    def refuse() -> list[TcpInfo]:
        asked.append(1)
        raise OSError(errno.EPERM, "the kernel lists no TCP connections")

    def hung(busy_s: float) -> Finding:
        return changed("source_hung", "host", "node", f"{busy_s}")

    thread = SourceThread(
        "fabric",
        lambda: FabricLinks(OWN, lambda: [os.getpid()], HealthConfig(), ask=refuse),
        period_s=0.01,
        deadline_s=10.0,
        hung=hung,
    )
    wait_until(lambda: len(asked) >= 2, what="another question")
    assert thread.take(10) == []
    thread.close()


def test_an_answer_that_is_cut_off_or_lacks_something_is_no_connection() -> None:
    row = bytes(72)
    assert tcp_info.parse(memoryview(row[:20])) is None
    assert tcp_info.parse(memoryview(row)) is None
    short = row + struct.pack("=HH", 4 + 100, 2) + bytes(100)
    assert tcp_info.parse(memoryview(short)) is None, "as of a kernel before 4.19"
    assert tcp_info.parse(memoryview(row + struct.pack("=HH", 0, 2))) is None
    with pytest.raises(OSError, match="cut off at byte 0"):
        list(tcp_info._messages(memoryview(struct.pack("=IHHII", 400, 20, 0, 1, 0))))


def test_files_of_the_ranks_are_listed_for_new_connections_only(
    pairs: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks have hundreds of open files, and connections last as long as a generation."""
    listed: list[int] = []

    def count(pids: Collection[int]) -> frozenset[int]:
        listed.append(1)
        return sockets_of(pids)

    monkeypatch.setattr("headway.health.sources.fabric_links.sockets_of", count)
    source = FabricLinks(OWN, lambda: [os.getpid()], HealthConfig())
    for _ in range(5):
        source.read()
    assert (len(listed), len(source._links)) == (1, len(pairs))
