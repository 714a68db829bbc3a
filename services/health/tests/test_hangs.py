"""Who is named when a generation hangs, in models of beats: never a rank that waits for others."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.health.config import HealthConfig
from headway.health.responses import response
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, Timeline, beat_times, lockstep

CONFIG = HealthConfig()
HUNG_S = 20.0
NAMED = ("silence", "stopped", "crash")


def play(
    state: MonitorState,
    nodes: Iterable[SimulatedNode],
    until_s: float,
    start_s: float = 0.0,
) -> list[tuple[float, Verdict]]:
    """Each verdict with the time at which it came."""
    given: list[tuple[float, Verdict]] = []
    for now_s in beat_times(until_s, start_s=start_s):
        for node in nodes:
            given += [(now_s, verdict) for verdict in state.on_beat(node.beat(now_s), now_s)]
        given += [(now_s, verdict) for verdict in state.tick(now_s)]
    return given


def on_nodes(timelines: list[Timeline], ranks_per_node: int = 2) -> list[SimulatedNode]:
    return [
        SimulatedNode(index, timelines[first : first + ranks_per_node])
        for index, first in enumerate(range(0, len(timelines), ranks_per_node))
    ]


def held_in_forward(chance: random.Random, tp: int, pp: int) -> tuple[list[Timeline], int]:
    """A rank is held in a forward; its tp peers wait inside theirs, which each entered within a
    millisecond of the others, and the other stages in receives. Returns the rank, too."""
    timelines = lockstep(tp * pp, 60, lambda _: 0.4)
    culprit = chance.randrange(tp * pp)
    stage = culprit // tp
    for peer in timelines[stage * tp : (stage + 1) * tp]:
        if peer.rank == culprit:
            peer.hang(HUNG_S, "FORWARD")
        else:
            peer.wait_inside(HUNG_S, "FORWARD")
        begun_s, end_s, kind, step = peer.actions[-1]
        begun_s += chance.uniform(0.0, 0.001)
        peer.actions[-1] = (begun_s, end_s, kind, step)
        if peer.rank != culprit:
            peer.waits_at_s = begun_s
    for other in timelines:
        if other.rank // tp != stage:
            other.hang(timelines[culprit].actions[-1][0], "RECV_BACKWARD")
    return timelines, culprit


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (2, 2)])
def test_the_peers_of_a_held_rank_are_never_named(tp: int, pp: int) -> None:
    for seed in range(200):
        timelines, culprit = held_in_forward(random.Random(seed), tp, pp)
        nodes = on_nodes(timelines)
        state = MonitorState(CONFIG, RUN_ID)
        play(state, nodes, HUNG_S - 1.0, start_s=HUNG_S - 3.0)
        given = play(state, nodes, 30.0, start_s=HUNG_S - 1.0)
        assert [(one.kind, one.rank) for _, one in given] == [("silence", culprit)], seed
        [(at_s, verdict)] = given
        assert at_s <= HUNG_S + CONFIG.silence_floor_s + 4 * CONFIG.beat_interval_s
        assert verdict.silence_s > 0, "it may still pass"


def test_hosts_that_only_launch_work_prove_nothing() -> None:
    """On a device all hosts wait at the norm, but for one that cannot launch any more."""
    timelines = lockstep(4, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "FORWARD" if timeline.rank == 2 else "NORM")
    nodes = on_nodes(timelines)
    nodes[1].signals[2] = {"waits": "device"}
    given = [one for _, one in play(MonitorState(CONFIG, RUN_ID), nodes, 120.0)]
    assert [(one.kind, one.rank, response(one)) for one in given] == [
        ("unexplained_hang", -1, "restart_ranks")
    ]


@pytest.mark.parametrize("lived_s", [0.4, 1.0, 1.8])
def test_a_frozen_rank_that_waits_like_all_others_is_named_first(lived_s: float) -> None:
    """Its last sign of life came after its last move, so that the hang is seen before the frost."""
    timelines = lockstep(4, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "NORM")
    timelines[1].frozen_at_s = HUNG_S + lived_s
    given = [one for _, one in play(MonitorState(CONFIG, RUN_ID), on_nodes(timelines), 40.0)]
    assert [(one.kind, one.rank) for one in given] == [("silence", 1)]


def test_a_rank_without_life_whose_node_reports_it_no_more_does_not_hide_a_hang() -> None:
    """Its last beat showed no life for a second, and no other beat will tell."""
    timelines = lockstep(4, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "NORM")
    nodes, state = on_nodes(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, HUNG_S)
    nodes[0].signals[1] = {"alive_age_s": 0.9 * CONFIG.silence_floor_s}
    play(state, nodes, HUNG_S + 1.0, start_s=HUNG_S)
    nodes[0].timelines = timelines[:1]
    given = [one for _, one in play(state, nodes, 60.0, start_s=HUNG_S + 1.0)]
    assert [(one.kind, one.rank) for one in given] == [("unexplained_hang", -1)]


def test_an_unexplained_hang_ends_when_ranks_move_or_another_generation_begins() -> None:
    timelines = lockstep(2, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "NORM")
    nodes, state = on_nodes(timelines), MonitorState(CONFIG, RUN_ID)
    [(_, opened)] = play(state, nodes, 30.0)
    nodes[0].timelines = lockstep(2, 200, lambda _: 0.4)
    [(_, closed)] = play(state, nodes, 31.0, start_s=30.0)
    assert (opened.kind, closed.id, closed.is_open) == ("unexplained_hang", opened.id, False)
    nodes[0].timelines = timelines
    [(_, opened)] = play(state, nodes, 40.0, start_s=31.0)
    nodes[0].generation, nodes[0].timelines = 1, lockstep(2, 200, lambda _: 0.4)
    [(_, closed)] = play(state, nodes, 41.0, start_s=40.0)
    assert (opened.is_open, closed.id, closed.is_open) == (True, opened.id, False)


def test_a_hang_is_explained_once_one_rank_alone_waits_for_nobody() -> None:
    timelines = lockstep(2, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "NORM")
    nodes, state = on_nodes(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, 30.0)
    nodes[0].signals[1] = {"waits": ""}
    given = [one for _, one in play(state, nodes, 32.0, start_s=30.0)]
    assert [(one.kind, one.rank, one.is_open) for one in given] == [
        ("unexplained_hang", -1, False),
        ("silence", 1, True),
    ]


def test_whoever_waits_for_a_frozen_node_is_never_named() -> None:
    """Node 0 is frozen as a whole. The rank of node 1 waits for it in a collective, and then,
    outside of the generation, for the driver."""
    for kind, waits in (("RECV_FORWARD", "others"), ("FORWARD", "others"), ("", "others")):
        timelines = lockstep(4, 60, lambda _: 0.4)
        nodes, state = on_nodes(timelines, 1), MonitorState(CONFIG, RUN_ID)
        play(state, nodes, HUNG_S)
        for timeline in timelines:
            timeline.hang(HUNG_S)
        for node in nodes[1:]:
            node.signals[node.node] = {"open_kind": kind, "waits": waits}
        nodes[3].signals[3] = {"open_kind": "FORWARD", "waits": "others"}
        given = []
        for now_s in beat_times(300.0, start_s=HUNG_S):
            for node in nodes[1:]:
                given += state.on_beat(node.beat(now_s), now_s)
            given += state.tick(now_s)
            for one in state.open_verdicts():
                state.on_taken(_answer(one), now_s)
        assert {one.kind for one in given} == {"node_silent"}, (kind, waits)


def _answer(verdict: Verdict) -> VerdictTaken:
    return VerdictTaken(id=verdict.id, revision=verdict.revision, taken="observe: no spare")


def test_a_rank_that_moves_without_end_is_an_unexplained_hang_at_a_larger_limit() -> None:
    timelines = lockstep(2, 60, lambda _: 0.4)
    timelines[1].hang(HUNG_S, "NORM")
    nodes, state = on_nodes(timelines), MonitorState(CONFIG, RUN_ID)
    play(state, nodes, HUNG_S)
    given = []
    for now_s in beat_times(300.0, start_s=HUNG_S):
        again = {"age_s": 0.1, "open_kind": "FORWARD", "step_age_s": now_s - HUNG_S, "waits": ""}
        nodes[0].signals = {0: again, 1: {"step_age_s": now_s - HUNG_S}}
        given += [(now_s, one) for one in state.on_beat(nodes[0].beat(now_s), now_s)]
        given += [(now_s, one) for one in state.tick(now_s)]
    [(at_s, verdict)] = given
    assert (verdict.kind, verdict.rank) == ("unexplained_hang", -1)
    assert CONFIG.step_floor_s <= at_s - HUNG_S <= CONFIG.step_floor_s + 2.0


def test_a_long_step_that_its_median_explains_is_no_hang() -> None:
    timelines = lockstep(2, 30, lambda _: 100.0)
    nodes, state = on_nodes(timelines), MonitorState(CONFIG, RUN_ID)
    nodes[0].signals = {0: {"age_s": 0.1, "step_age_s": 1900.0}}
    assert play(state, nodes, 2540.0) == []
    nodes[0].signals = {0: {"age_s": 0.1, "step_age_s": 2100.0}}
    [(_, verdict)] = play(state, nodes, 2541.0, start_s=2540.0)
    assert verdict.kind == "unexplained_hang"


def recovered(first_s: float) -> tuple[MonitorState, list[SimulatedNode]]:
    """A run whose first generation took ``first_s`` for its first step, and that begins another."""
    state = MonitorState(CONFIG, RUN_ID)
    warm = lockstep(2, 40, lambda step: first_s if step == 0 else 0.4)
    nodes = on_nodes(warm)
    assert play(state, nodes, first_s + 10.0) == []
    fresh = lockstep(2, 60, lambda step: first_s if step == 0 else 0.4)
    for timeline in fresh:
        shift_s = first_s + 10.0
        timeline.actions = [(a + shift_s, b + shift_s, k, s) for a, b, k, s in timeline.actions]
        timeline.steps = [(a + shift_s, b + shift_s, s) for a, b, s in timeline.steps]
    nodes[0].timelines, nodes[0].generation = fresh, 1
    return state, nodes


def test_a_hang_in_the_first_step_after_a_recovery_is_found_soon() -> None:
    state, nodes = recovered(1.0)
    nodes[0].timelines[0].hang(11.0, "FORWARD")
    nodes[0].timelines[1].hang(11.0, "NORM")
    [(at_s, verdict)] = play(state, nodes, 60.0, start_s=11.0)
    assert (verdict.kind, verdict.rank) == ("silence", 0)
    assert at_s - 11.0 <= CONFIG.first_floor_s + 3 * CONFIG.beat_interval_s


@pytest.mark.parametrize("first_s", [1.0, 9.0, 30.0])
def test_first_steps_that_are_as_slow_as_those_before_are_no_hang(first_s: float) -> None:
    state, nodes = recovered(first_s)
    assert play(state, nodes, 2 * first_s + 20.0, start_s=first_s + 10.0) == []
