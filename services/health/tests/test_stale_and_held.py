"""Returning nodes, duplicate agents, clock steps and debuggers cause no
verdict on a healthy rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from headway.common.node.flight import FlightWriter
from headway.common.node.testing import python_child, read_line, send_line, wait_until
from headway.common.wire.messages.health import AgentBeat, Verdict
from headway.health.config import HealthConfig
from headway.health.sources.flight import FlightSource
from headway.health.sources.proc import read_process
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, beat_times, lockstep, stall_others
from headway.testkit.played.health_bench import health_bench

CONFIG = HealthConfig()


def two_nodes(generation: int = 0) -> list[SimulatedNode]:
    timelines = lockstep(4, 400, lambda _: 0.4)
    return [
        SimulatedNode(index, timelines[2 * index : 2 * index + 2], generation) for index in range(2)
    ]


def play(
    state: MonitorState,
    nodes: list[SimulatedNode],
    until_s: float,
    start_s: float = 0.0,
    clock: Callable[[float], float] = lambda now_s: now_s,
) -> list[Verdict]:
    given: list[Verdict] = []
    for now_s in beat_times(until_s, start_s=start_s):
        for node in nodes:
            given += state.on_beat(node.beat(now_s), clock(now_s))
        given += state.tick(clock(now_s))
    return given


def sent_by(beat: AgentBeat, pid: int, start_ticks: int, **changes: object) -> AgentBeat:
    return msgspec.structs.replace(beat, pid=pid, start_ticks=start_ticks, **changes)


def test_of_two_agents_of_a_node_the_one_that_started_later_counts() -> None:
    state, (node, _) = MonitorState(CONFIG, RUN_ID), two_nodes()
    node.states[0] = "gone"
    mourning = [sent_by(node.beat(now_s), 7, 100) for now_s in (10.0, 11.0, 12.0)]
    node.states.clear()
    for turn, wrong in enumerate(mourning):
        now_s = 10.0 + turn
        assert state.on_beat(sent_by(node.beat(now_s), 8, 200), now_s) == []
        assert state.on_beat(wrong, now_s + 0.1) == [], "the older agent's word"
        assert state.tick(now_s + 0.2) == []
        assert state.nodes[0].beat.pid == 8


def test_after_a_reboot_starts_are_counted_from_0_again() -> None:
    state, (node, other) = MonitorState(CONFIG, RUN_ID), two_nodes()
    for now_s in beat_times(5.0):
        state.on_beat(sent_by(node.beat(now_s), 700, 9_000_000), now_s)
    given = play(state, [other], 15.0, start_s=5.0)
    assert [(one.kind, one.node, one.is_open) for one in given] == [("node_silent", 0, True)]
    back = state.on_beat(sent_by(node.beat(15.0), 90, 4000), 15.0)
    assert [(one.kind, one.is_open) for one in back] == [("node_silent", False)]
    assert state.nodes[0].beat.pid == 90


def test_a_node_that_comes_back_is_not_mourned_for_ranks_that_have_moved_on() -> None:
    """Its workers of the old generation are ended by its executor: rightly,
    and seen by its agent."""
    state, (staying, lost) = MonitorState(CONFIG, RUN_ID), two_nodes()
    play(state, [staying, lost], 10.0)
    spare = SimulatedNode(2, lost.timelines, generation=1)
    staying.generation = 1
    given = play(state, [staying, spare], 30.0, start_s=10.0)
    assert {one.kind for one in given} == {"node_silent"}
    given = play(state, [staying, spare, lost], 32.0, start_s=30.0)
    assert [(one.kind, one.is_open) for one in given] == [("node_silent", False)]
    lost.states = {2: "gone", 3: "gone"}
    assert play(state, [staying, spare, lost], 40.0, start_s=32.0) == []
    spare.states = {3: "gone"}
    given = play(state, [staying, spare, lost], 41.0, start_s=40.0)
    assert [(one.kind, one.node, one.rank) for one in given] == [("crash", 2, 3)]


def test_a_death_on_a_node_that_does_not_hold_the_rank_is_not_believed() -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), two_nodes()
    play(state, nodes, 10.0)
    strange = SimulatedNode(5, nodes[0].timelines, states={0: "gone", 1: "gone"})
    assert play(state, [strange], 14.0, start_s=10.0) == []


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_no_silence(step_s: float) -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), two_nodes()
    stepped = lambda now_s: 10_000.0 + now_s + (step_s if now_s > 10.0 else 0.0)  # noqa: E731
    assert play(state, nodes, 30.0, clock=stepped) == []


def test_a_rank_that_a_debugger_holds_is_neither_stopped_nor_silent() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    stall_others(timelines, 3, at_s=20.0)
    nodes = [SimulatedNode(index, timelines[2 * index : 2 * index + 2]) for index in range(2)]
    state = MonitorState(CONFIG, RUN_ID)
    assert play(state, nodes, 20.0) == []
    nodes[1].states[3] = "t"
    assert play(state, nodes, 600.0, start_s=20.0) == []
    nodes[1].states.clear()
    assert state.on_beat(nodes[1].beat(600.5), 600.5) == [] == state.tick(600.5)
    given = play(state, nodes, 610.0, start_s=600.5)
    assert [(one.kind, one.rank) for one in given] == [("silence", 3)], "it is really hung"


def test_while_a_debugger_holds_a_rank_nobody_that_waits_for_it_is_guessed_at() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(20.0, "NORM")
    nodes = [SimulatedNode(index, timelines[2 * index : 2 * index + 2]) for index in range(2)]
    nodes[1].states[3] = "t"
    assert play(MonitorState(CONFIG, RUN_ID), nodes, 600.0) == []


TRACER = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
if libc.ptrace(PTRACE_ATTACH, pid, None, None) != 0:
    print("refused:", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
os.waitpid(pid, 0x40000000)  # __WALL
print("attached", flush=True)
sys.stdin.readline()
libc.ptrace(PTRACE_DETACH, pid, None, None)
"""


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Another process holds ``pid`` as gdb and py-spy do."""
    with python_child(TRACER, pid) as tracer:
        said = read_line(tracer)
        if said != "attached":
            pytest.skip(f"this machine permits no ptrace ({said})")
        yield
        send_line(tracer, "detach")
        tracer.wait()


def test_a_debugger_at_a_real_worker_causes_no_verdict_and_a_stop_does() -> None:
    with health_bench() as bench:
        bench.driver(), bench.monitor(), bench.agent()
        with bench.worker(0) as child:
            assert read_line(child) == "up"
            bench.wait_for_ranks(1)
            bench.wait(lambda: int((read_line(child) or "0").split()[-1]) > 3, "the first steps")
            with traced(child.pid):
                wait_until(lambda: read_process(child.pid).state == "t", what="the trace stop")
                bench.wait_for_beats(25)  # two and a half times the limit of silence
                assert bench.verdicts == []
            wait_until(lambda: read_process(child.pid).state != "t", what="its release")
            bench.wait_for_beats(5)
            assert bench.verdicts == []
            os.kill(child.pid, signal.SIGSTOP)
            bench.wait(lambda: bool(bench.verdicts), "a verdict")
            assert bench.kinds() == [("stopped", 0, True)]


def test_the_ring_shows_whether_its_process_runs_at_all(tmp_path: Path) -> None:
    now_ns = [0]
    source = FlightSource(tmp_path, clock_ns=lambda: now_ns[0])
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0)
    ages = []
    for does_live in (False, True, True, False, False, True):
        now_ns[0] += 10**9
        if does_live:
            writer.count_life()
        ages.append(source.read()[0].alive_age_s)
    writer.close()
    writer.count_life()  # a beat in the moment in which the rank is given up
    source.close()
    assert ages == [-1.0, 0.0, 0.0, 1.0, 2.0, 0.0]
