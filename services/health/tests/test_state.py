"""The monitor's decisions on simulated beat streams: faults found in time, and no false
alarm on healthy ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from headway.common.wire.messages.health import AgentBeat, Verdict, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.state import MonitorState
from headway.testkit.beats import (
    RUN_ID,
    SimulatedNode,
    Timeline,
    beat_times,
    lockstep,
    stall_others,
)

CONFIG = HealthConfig()
T = TypeVar("T", bound=msgspec.Struct)


def nodes_of(timelines: list[Timeline], ranks_per_node: int = 2) -> list[SimulatedNode]:
    return [
        SimulatedNode(index, timelines[first : first + ranks_per_node])
        for index, first in enumerate(range(0, len(timelines), ranks_per_node))
    ]


def play(
    state: MonitorState,
    nodes: list[SimulatedNode],
    until_s: float,
    start_s: float = 0.0,
    at: Callable[[float], None] = lambda _: None,
) -> list[tuple[float, Verdict]]:
    """Plays beats and ticks; returns each verdict with the time at which it came."""
    told = []
    for now_s in beat_times(until_s, start_s=start_s):
        at(now_s)
        for node in nodes:
            told += [(now_s, verdict) for verdict in state.on_beat(node.beat(now_s), now_s)]
        told += [(now_s, verdict) for verdict in state.tick(now_s)]
    return told


def end_of(timelines: list[Timeline]) -> float:
    return min(timeline.now_s for timeline in timelines)


def jitter(seed: int, base_s: float, factor: float) -> Callable[[int], float]:
    chance = random.Random(seed)
    return lambda _: base_s * chance.uniform(1.0, factor)


HEALTHY: dict[str, Callable[[], list[Timeline]]] = {
    "steady": lambda: lockstep(4, 200, lambda _: 0.4),
    "long first step": lambda: lockstep(4, 60, lambda _: 0.4, first_s=100.0),
    "long second step": lambda: lockstep(4, 60, lambda step: 60.0 if step == 1 else 0.4),
    "evaluation pause": lambda: lockstep(4, 100, lambda _: 0.4, evaluations={30: 45.0, 60: 45.0}),
    "steering pause": lambda: lockstep(4, 60, lambda _: 0.4, pauses={20: 300.0, 40: 30.0}),
    "steering pause, one rank": lambda: lockstep(1, 60, lambda _: 0.4, pauses={20: 300.0}),
    "three times jitter": lambda: lockstep(4, 200, jitter(7, 0.5, 3.0)),
    "three times jitter, slow steps": lambda: lockstep(4, 60, jitter(8, 12.0, 3.0)),
    "steps become five times longer": lambda: lockstep(
        4, 80, lambda step: 1.0 if step < 40 else 5.0
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm_on_a_healthy_run(name: str) -> None:
    timelines = HEALTHY[name]()
    assert play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), end_of(timelines) - 1) == []


def test_a_hung_rank_is_named_within_its_limit_and_once() -> None:
    for culprit in range(4):
        timelines = lockstep(4, 100, lambda _: 0.4)
        stall_others(timelines, culprit, at_s=20.0)
        told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 60.0)
        assert [(one.kind, one.rank, one.node) for _, one in told] == [
            ("silence", culprit, culprit // 2)
        ]
        at_s, verdict = told[0]
        assert at_s <= 20.0 + CONFIG.silence_floor_s + 3 * CONFIG.beat_interval_s
        assert verdict.confidence > 0.5 and verdict.action == "kill_worker" and verdict.evidence


def test_victims_that_began_to_wait_first_are_not_blamed() -> None:
    timelines = lockstep(4, 100, lambda _: 0.7)
    for timeline in timelines:
        timeline.hang(19.7, "BACKWARD" if timeline.rank == 2 else "RECV_BACKWARD")
    told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 40.0)
    assert [(one.kind, one.rank) for _, one in told] == [("silence", 2)]


def test_a_frozen_rank_is_named_wherever_it_stands_and_not_who_has_waited_the_longest() -> None:
    timelines = lockstep(4, 100, lambda _: 0.7)
    for timeline in timelines[1:]:
        timeline.hang(19.7, "RECV_BACKWARD")
    timelines[0].freeze(19.8, "NORM")
    told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 40.0)
    assert [(one.kind, one.rank) for _, one in told] == [("silence", 0)]
    assert told[0][1].confidence >= 0.8
    assert told[0][1].silence_s == 0.0, "it cannot pass by itself"


def test_a_run_in_which_one_rank_still_moves_is_slow_and_not_hung() -> None:
    timelines = lockstep(4, 200, lambda _: 0.4)
    for timeline in timelines[:3]:
        timeline.hang(20.0, "NORM")
    assert play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 60.0) == []


def test_slow_steps_raise_the_limit_of_silence() -> None:
    timelines = lockstep(4, 20, lambda _: 10.0)
    stall_others(timelines, 2, at_s=100.0)
    told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 200.0)
    assert [one.rank for _, one in told] == [2]
    assert 100.0 + 3 * 10.0 - 10.0 <= told[0][0] <= 100.0 + 3 * 10.0 + 10.0


def test_when_all_ranks_wait_the_hang_is_reported_once_and_nobody_is_named() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(20.0, "NORM")
    told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 60.0)
    [(at_s, verdict)] = told
    assert (verdict.kind, verdict.rank, verdict.node) == ("unexplained_hang", -1, -1)
    assert verdict.action == "restart_ranks" and verdict.silence_s >= CONFIG.silence_floor_s
    assert at_s <= 20.0 + CONFIG.silence_floor_s + 3 * CONFIG.beat_interval_s
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["ranks_by_action"] == "4 in NORM"


def test_a_hang_in_the_first_step_is_found_too() -> None:
    timelines = lockstep(4, 5, lambda _: 0.4)
    stall_others(timelines, 1, at_s=0.2)
    told = play(MonitorState(CONFIG, RUN_ID), nodes_of(timelines), 300.0)
    assert [one.rank for _, one in told] == [1]
    assert told[0][0] >= CONFIG.suspended_limit_s


@pytest.mark.parametrize(("letter", "kind"), [("gone", "crash"), ("Z", "crash"), ("T", "stopped")])
def test_a_dead_or_stopped_process_is_told_at_the_next_beat_and_alone(
    letter: str, kind: str
) -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    stall_others(timelines, 3, at_s=20.0)
    nodes = nodes_of(timelines)

    def strike(now_s: float) -> None:
        if now_s >= 20.0:
            nodes[1].states[3] = letter

    told = play(MonitorState(CONFIG, RUN_ID), nodes, 60.0, at=strike)
    assert [(now_s, one.kind, one.rank, one.pid) for now_s, one in told] == [(20.0, kind, 3, 1003)]


def test_a_rank_that_ended_by_itself_is_no_crash() -> None:
    timelines = lockstep(2, 10, lambda _: 0.4)
    nodes = nodes_of(timelines)
    nodes[0].states.update({0: "done", 1: "done"})
    assert play(MonitorState(CONFIG, RUN_ID), nodes, 60.0) == []


def test_a_stopped_process_that_goes_on_closes_its_episode_and_may_open_another() -> None:
    nodes = nodes_of(lockstep(2, 200, lambda _: 0.4))

    def strike(now_s: float) -> None:
        nodes[0].states[0] = "T" if int(now_s) // 5 % 2 else "R"

    told = play(MonitorState(CONFIG, RUN_ID), nodes, 20.0, at=strike)
    assert [(one.kind, one.is_open, one.revision) for _, one in told] == [
        ("stopped", True, 0), ("stopped", False, 1), ("stopped", True, 0), ("stopped", False, 1),
    ]  # fmt: skip
    assert told[0][1].id == told[1][1].id != told[2][1].id


def test_a_hung_rank_that_is_killed_is_the_same_episode_revised() -> None:
    timelines = lockstep(2, 100, lambda _: 0.4)
    stall_others(timelines, 1, at_s=10.0)
    nodes = nodes_of(timelines)

    def strike(now_s: float) -> None:
        if now_s >= 30.0:
            nodes[0].states[1] = "gone"

    told = [one for _, one in play(MonitorState(CONFIG, RUN_ID), nodes, 40.0, at=strike)]
    assert [(one.kind, one.revision) for one in told] == [("silence", 0), ("crash", 1)]
    assert told[0].id == told[1].id
    assert {row.name for row in told[1].evidence} > {row.name for row in told[0].evidence}


def test_a_replaced_rank_closes_its_crash_and_survivors_are_not_blamed() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    stall_others(timelines, 3, at_s=10.0)
    nodes, state = nodes_of(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 9.5)
    nodes[1].states[3] = "gone"
    assert [one.kind for _, one in play(state, nodes, 19.5, start_s=9.5)] == ["crash"]
    again = lockstep(4, 100, lambda _: 0.4)
    for timeline in again:
        timeline.actions = [
            (a + 19.5, b + 19.5, kind, step) for a, b, kind, step in timeline.actions
        ]
        timeline.steps = [(a + 19.5, b + 19.5, step) for a, b, step in timeline.steps]
    again_nodes = nodes_of(again)
    for node, old in zip(again_nodes, nodes, strict=True):
        node.generation, node.sequence = 1, old.sequence + 1
    beats = [node.beat(20.0) for node in again_nodes]
    newcomer = _replace(beats[1].workers[1], pid=7777)
    waiting = _replace(
        beats[1], workers=(_replace(newcomer, generation=0),), sequence=beats[1].sequence - 1
    )
    assert state.on_beat(waiting, 19.9) == [], (
        "not replaced before it has joined the next generation"
    )
    beats[1] = _replace(beats[1], workers=(beats[1].workers[0], newcomer))
    told = [one for beat in beats for one in state.on_beat(beat, 20.0)]
    assert [(one.kind, one.is_open) for one in told] == [("crash", False)]


def test_what_a_moved_rank_left_behind_is_no_crash() -> None:
    """Node 0 keeps the segment of a rank that now runs on node 1; a restarted
    monitor must not mourn it."""
    timelines = lockstep(2, 100, lambda _: 0.4)
    new = SimulatedNode(1, timelines, generation=3)
    old = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4), generation=1, states={0: "gone"})
    assert play(MonitorState(CONFIG, RUN_ID), [old, new], 20.0) == []


def test_a_death_before_joining_the_new_generation_counts() -> None:
    state = MonitorState(CONFIG, RUN_ID)
    joined = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4), generation=2)
    late = SimulatedNode(1, [Timeline(1, [(0.0, 1.0, "FORWARD", 0)])], generation=1)
    play(state, [joined, late], 5.0)
    late.states[1] = "gone"
    assert [(one.kind, one.rank) for _, one in play(state, [joined, late], 7.0, start_s=5.0)] == [
        ("crash", 1)
    ]


def test_a_silent_agent_makes_its_node_silent_once_and_a_beat_ends_it() -> None:
    timelines = lockstep(4, 200, lambda _: 0.4)
    nodes, state = nodes_of(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 10.0)
    told = play(state, nodes[:1], 30.0, start_s=10.0)
    assert [(one.kind, one.node, one.is_open) for _, one in told] == [("node_silent", 1, True)]
    assert CONFIG.node_silence_s <= told[0][0] - 10.0 <= CONFIG.node_silence_s + 1.0
    back = play(state, nodes, 32.0, start_s=30.0)
    assert [(one.kind, one.is_open) for _, one in back] == [("node_silent", False)]


def test_a_lost_node_is_blamed_and_not_the_ranks_that_wait_for_it() -> None:
    timelines = lockstep(4, 200, lambda _: 0.4)
    stall_others(timelines, 3, at_s=20.0)
    nodes, state = nodes_of(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 20.0)
    told = play(state, nodes[:1], 60.0, start_s=20.0)
    assert [(one.kind, one.node) for _, one in told] == [("node_silent", 1)]


def test_while_a_node_is_late_nobody_else_is_blamed() -> None:
    timelines = lockstep(4, 200, lambda _: 2.0)
    stall_others(timelines, 3, at_s=20.1)
    nodes, state = nodes_of(timelines), MonitorState(CONFIG, RUN_ID)
    # its last beat shows its ranks quiet for more than half their limit of 6 s already
    play(state, nodes, 25.0)
    told = play(state, nodes[:1], 40.0, start_s=25.0)
    assert [(one.kind, one.node) for _, one in told] == [("node_silent", 1)]


def test_a_restarted_agent_within_the_limit_is_no_trouble() -> None:
    nodes, state = nodes_of(lockstep(4, 200, lambda _: 0.4)), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 10.0)
    assert play(state, nodes[:1], 13.0, start_s=10.0) == []
    nodes[1].sequence = 0
    told = [state.on_beat(_replace(nodes[1].beat(13.5), pid=999), 13.5)]
    assert told == [[]] and state.nodes[1].beat.pid == 999


def test_the_monitors_own_stop_is_not_held_against_the_nodes() -> None:
    nodes, state = nodes_of(lockstep(4, 400, lambda _: 0.4)), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 10.0)
    assert state.tick(100.0) == []
    assert play(state, nodes, 110.0, start_s=100.0) == []


def test_a_machine_that_was_paused_as_a_whole_is_given_a_second_beat() -> None:
    nodes, state = nodes_of(lockstep(4, 400, lambda _: 0.4)), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 10.0)
    for node in nodes:
        beat = node.beat(10.5)
        old = tuple(_replace(worker, age_s=30.0, open_kind="FORWARD") for worker in beat.workers)
        assert state.on_beat(_replace(beat, workers=old), 40.5) == []
    assert state.tick(40.6) == []
    assert play(state, nodes, 15.0, start_s=10.5) == []


def test_beats_of_other_runs_and_overtaken_beats_are_dropped() -> None:
    node, state = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4)), MonitorState(CONFIG, RUN_ID)
    first, second = node.beat(0.5), node.beat(1.0)
    state.on_beat(second, 1.0)
    dead = _replace(
        first, workers=tuple(_replace(worker, state="gone") for worker in first.workers)
    )
    assert state.on_beat(dead, 1.1) == []
    assert state.on_beat(_replace(dead, run_id="ffffffff", sequence=99), 1.2) == []
    assert state.nodes[0].beat == second


def test_a_restarted_monitor_does_not_repeat_what_stands() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    stall_others(timelines, 3, at_s=20.0)
    nodes, state = nodes_of(timelines), MonitorState(CONFIG, RUN_ID)
    told = [one for _, one in play(state, nodes, 30.0)]
    successor = MonitorState(CONFIG, RUN_ID)
    successor.restore(told)
    assert play(successor, nodes, 60.0, start_s=30.0) == []
    assert successor.open_verdicts() == told
    nodes[1].states[3] = "gone"
    revised = [one for _, one in play(successor, nodes, 61.0, start_s=60.0)]
    assert [(one.kind, one.id, one.revision) for one in revised] == [("crash", told[0].id, 1)]


def test_one_state_holds_12288_nodes_and_names_the_one_hung_rank() -> None:
    """Eight ranks a node, 98,304 in all; beats are reused, since what is tested is the state."""
    num_nodes, state = 12_288, MonitorState(CONFIG, RUN_ID)
    timelines = lockstep(8, 100, lambda _: 0.4)
    hung = lockstep(8, 100, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(5.0, "NORM")
    stall_others(hung, 5, at_s=4.6)
    told: list[Verdict] = []
    for now_s in beat_times(9.5):
        samples = [timeline.sample(now_s) for timeline in timelines]
        for node in range(num_nodes):
            if node == 4711:
                samples_here = [timeline.sample(now_s) for timeline in hung]
            else:
                samples_here = samples
            workers = tuple(_renumber(one, node * 8 + one.rank) for one in samples_here)
            told += state.on_beat(_beat(node, int(now_s * 2), workers), now_s)
        told += state.tick(now_s)
    assert len(state.nodes) == num_nodes and len(state.ranks) == 8 * num_nodes
    assert [(one.kind, one.rank, one.node) for one in told] == [("silence", 4711 * 8 + 5, 4711)]


def _beat(node: int, sequence: int, workers: tuple[WorkerSignals, ...]) -> AgentBeat:
    return AgentBeat(
        run_id=RUN_ID,
        node=node,
        pid=1,
        start_ticks=1,
        sequence=sequence,
        workers=workers,
    )


def _renumber(signals: WorkerSignals, rank: int) -> WorkerSignals:
    return msgspec.structs.replace(signals, rank=rank, pid=10_000 + rank)


def _replace(struct: T, **changes: object) -> T:
    return msgspec.structs.replace(struct, **changes)
