"""Late data are the data daemon's fault: it is named, and no rank is blamed for waiting."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.ring import RingReader, RingWriter
from headway.common.node.testing import identity, read_line, send_line
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.health.config import HealthConfig
from headway.health.responses import response
from headway.health.sources.feeds import FeedSource
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, beat_times, lockstep
from headway.testkit.played.health_bench import Bench, health_bench

CONFIG = HealthConfig()
STALL_S = 20.0


def stalled_nodes(waiting: set[int], **signals: object) -> list[SimulatedNode]:
    """Two nodes of two ranks; from 20 s on some wait for data, the others in
    the next collective."""
    timelines = lockstep(4, 100, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(STALL_S, "DATA" if timeline.rank in waiting else "NORM")
    nodes = [SimulatedNode(index, timelines[2 * index : 2 * index + 2]) for index in range(2)]
    for node in nodes:
        node.signals = dict.fromkeys(waiting, signals)
    return nodes


def play(
    state: MonitorState, nodes: list[SimulatedNode], until_s: float, start_s: float = 0.0
) -> list[Verdict]:
    given = []
    for now_s in beat_times(until_s, start_s=start_s):
        for node in nodes:
            given += state.on_beat(node.beat(now_s), now_s)
        given += state.tick(now_s)
    return given


@pytest.mark.parametrize("waiting", [{0}, {3}, {0, 1, 2, 3}])
def test_a_stalled_data_daemon_is_named_and_no_rank_is(waiting: set[int]) -> None:
    nodes = stalled_nodes(waiting, data_wait="daemon", data_age_s=100.0, data_pid=77)
    given = play(MonitorState(CONFIG, RUN_ID), nodes, 60.0)
    assert {(one.kind, one.rank, one.service, one.action, one.pid) for one in given} == {
        ("data_stall", -1, "dataloader", "restart_service", 77)
    }
    assert [one.node for one in given] == sorted({rank // 2 for rank in waiting})
    for one in given:
        name = f"dataloader of node {one.node}"
        assert name in one.remedy and name in [row.value for row in one.evidence]
        assert response(one) == "restart_service"


def test_without_a_known_ring_the_wait_counts_just_the_same() -> None:
    given = play(MonitorState(CONFIG, RUN_ID), stalled_nodes({1}), 60.0)
    assert [(one.kind, one.node, one.rank) for one in given] == [("data_stall", 0, -1)]


def test_data_that_trickle_in_are_waited_for() -> None:
    nodes = stalled_nodes({0}, data_wait="daemon", data_age_s=CONFIG.data_floor_s - 0.1)
    assert play(MonitorState(CONFIG, RUN_ID), nodes, 60.0) == []


def test_a_rank_that_leaves_its_data_where_they_are_is_the_culprit_itself() -> None:
    nodes = stalled_nodes({2}, data_wait="ready", data_age_s=100.0)
    given = play(MonitorState(CONFIG, RUN_ID), nodes, 60.0)
    assert [(one.kind, one.rank) for one in given] == [("silence", 2)]


def test_a_ring_that_another_reader_holds_full_is_that_readers_fault() -> None:
    """Rank 0 has read all; rank 1 of the same node hangs before it reads, so
    nothing can be written."""
    nodes = stalled_nodes({0}, data_wait="readers", data_age_s=100.0)
    nodes[0].timelines[1].hang(STALL_S - 0.2, "OPTIMIZER")
    given = play(MonitorState(CONFIG, RUN_ID), nodes, 60.0)
    assert [(one.kind, one.rank) for one in given] == [("silence", 1)]


def test_a_hung_rank_is_not_blamed_while_another_waits_for_data() -> None:
    nodes = stalled_nodes({0}, data_wait="daemon", data_age_s=100.0)
    nodes[1].timelines[0].hang(STALL_S - 0.2, "BACKWARD")
    given = play(MonitorState(CONFIG, RUN_ID), nodes, 60.0)
    assert [(one.kind, one.node) for one in given] == [("data_stall", 0)]


def test_the_stall_ends_with_the_first_data_and_may_come_again() -> None:
    nodes, state = (
        stalled_nodes({0}, data_wait="daemon", data_age_s=100.0),
        MonitorState(CONFIG, RUN_ID),
    )
    [opened] = play(state, nodes, 30.0)
    nodes[0].signals[0] = {"data_wait": "ready", "data_age_s": 0.1, "age_s": 0.1}
    [closed] = play(state, nodes, 31.0, start_s=30.0)
    assert (closed.id, closed.is_open) == (opened.id, False)
    nodes[0].signals[0] = {"data_wait": "daemon", "data_age_s": 100.0}
    [again] = play(state, nodes, 40.0, start_s=31.0)
    assert again.is_open and again.id != opened.id


def test_a_restart_that_does_not_help_is_asked_for_again_at_growing_distances() -> None:
    nodes, state = (
        stalled_nodes({0}, data_wait="daemon", data_age_s=100.0),
        MonitorState(CONFIG, RUN_ID),
    )
    given: list[tuple[float, Verdict]] = []
    for now_s in beat_times(120.0):
        new = [one for node in nodes for one in state.on_beat(node.beat(now_s), now_s)]
        new += state.tick(now_s)
        for one in new:
            answer = VerdictTaken(id=one.id, revision=one.revision, taken="restarted the service")
            state.on_taken(answer, now_s)
        given += [(now_s, one) for one in new]
    distances = [second[0] - first[0] for first, second in itertools.pairwise(given)]
    assert {one.id for _, one in given} == {given[0][1].id}
    assert distances[:3] == [CONFIG.again_s, 2 * CONFIG.again_s, 4 * CONFIG.again_s]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingWriter]:
    made = RingWriter.create(
        tmp_path / "ring-a.bin", spec=b"{}", slot_bytes=8, num_slots=2, num_readers=2
    )
    yield made
    made.unlink()
    made.close()


def publish(ring: RingWriter) -> None:
    assert ring.reserve() is not None
    ring.publish()


def test_a_ring_shows_who_keeps_its_reader_waiting(ring: RingWriter, tmp_path: Path) -> None:
    now_s = [100.0]
    source = FeedSource(tmp_path, lambda: now_s[0])
    assert source.read() == {}
    reader = RingReader(ring.path, 0)
    [feed] = source.read().values()
    assert (feed.wait, feed.age_s, feed.writer_pid) == ("daemon", 0.0, os.getpid())
    now_s[0] = 107.0
    [feed] = source.read().values()
    assert (feed.wait, feed.age_s) == ("daemon", 7.0)
    publish(ring), publish(ring)
    [feed] = source.read().values()
    assert (feed.wait, feed.age_s) == ("ready", 0.0)
    for _ in range(2):
        reader.release(reader.get(5.0)[0])
    [feed] = source.read().values()
    assert feed.wait == "readers", "the second reader has released nothing, so the ring is full"
    reader.close()
    assert source.read() == {}
    source.close()


def test_a_damaged_or_removed_ring_is_passed_over(ring: RingWriter, tmp_path: Path) -> None:
    (tmp_path / "ring-b.bin").write_bytes(b"\xff" * 5000)
    source, reader = FeedSource(tmp_path), RingReader(ring.path, 0)
    assert [feed.wait for feed in source.read().values()] == ["daemon"]
    ring.path.unlink()
    assert source.read() == {}
    reader.close(), source.close()


def test_a_daemon_that_delivers_slowly_is_left_alone_and_one_that_stops_is_named() -> None:
    """Real agent, monitor and worker; this process fills the ring as the data daemon would.

    One step takes six batches inside a single DATA record, so the flight ring stands still for
    several limits of 1 s while data arrive.
    """
    with health_bench() as bench:
        bench.driver(), bench.monitor(), bench.agent()
        ring = bench.ring()
        with bench.worker(0, batches_a_step=6) as child:
            assert read_line(child) == "up"
            bench.wait_for_ranks(1)
            feed_steps(bench, ring, num_batches=4 * 6)
            for _ in range(6):
                publish(ring)
                bench.wait_for_beats(5)
            assert bench.verdicts == []
            bench.wait(lambda: bool(bench.verdicts), "a verdict")
            [verdict] = bench.news()
            assert (verdict.kind, verdict.rank, verdict.service) == ("data_stall", -1, "dataloader")
            assert (verdict.node, verdict.pid) == (4, os.getpid())
            feed_steps(bench, ring, num_batches=6)
            bench.wait(lambda: len(bench.news()) == 2, "its end")
            assert bench.kinds()[1] == ("data_stall", -1, False)
            assert identity(child).alive()
            send_line(child, "end")
            bench.wait(lambda: fed_to_its_end(child, ring), "the worker's end")
        ring.close()


def fed_to_its_end(child: subprocess.Popen[str], ring: RingWriter) -> bool:
    """Whether ``child`` has ended; it may do so at once or take another step's batches first."""
    if ring.reserve() is not None:
        ring.publish()
    return child.poll() is not None


def feed_steps(bench: Bench, ring: RingWriter, num_batches: int) -> None:
    for _ in range(num_batches):
        bench.wait(lambda: ring.reserve() is not None, "room in the ring")
        ring.publish()
