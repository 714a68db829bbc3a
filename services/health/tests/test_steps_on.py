"""Beats of ranks that only move are taken in without being judged: the verdicts are the same."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

from headway.common.wire.messages.health import Verdict
from headway.health import state as state_module
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView, steps_on
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, beat_times, lockstep
from hypothesis import given, settings
from hypothesis import strategies as st

RANKS, UNTIL_S = 2, 30.0
TIMES = st.floats(1.0, 25.0)
STATES = st.sampled_from(["S", "R", "T", "t", "Z", "gone", "done"])
CHANGES = st.lists(
    st.tuples(
        TIMES,
        st.integers(0, RANKS - 1),
        st.one_of(
            STATES.map(lambda state: {"state": state}),
            st.sampled_from([{"pid": 7}, {"step_age_s": 1e4}, {"phase": "eval"}, {"age_s": 99.0}]),
        ),
    ),
    max_size=4,
)


def verdicts(
    changes: list[tuple[float, int, dict[str, Any]]],
    hangs: list[tuple[float, int]],
    restart_s: float | None,
) -> list[Verdict]:
    """Of two nodes of two ranks each, whose second node takes the changes."""
    timelines = lockstep(2 * RANKS, 100, lambda _: 0.4)
    for at_s, rank in hangs:
        timelines[rank].hang(at_s)
    nodes = [SimulatedNode(0, timelines[:RANKS]), SimulatedNode(1, timelines[RANKS:])]
    clock = itertools.count()
    monitor = MonitorState(HealthConfig(), RUN_ID, clock_s=lambda: float(next(clock)))
    found: list[Verdict] = []
    for now_s in beat_times(UNTIL_S):
        for at_s, rank, change in changes:
            if at_s <= now_s:
                nodes[1].signals.setdefault(RANKS + rank, {}).update(change)
        if restart_s is not None and now_s >= restart_s:
            nodes[0].generation = nodes[1].generation = 1
        for node in nodes:
            found += monitor.on_beat(node.beat(now_s), now_s)
        found += monitor.tick(now_s)
    return [undated(one) for one in found]


def undated(verdict: Verdict) -> Verdict:
    """The wall clock is read as often as facts are made, which differs."""
    rows = tuple(type(row)(source=row.source, name=row.name, value=row.value)
                 for row in verdict.evidence)  # fmt: skip
    fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
    return Verdict(**{**fields, "evidence": rows, "unix_s": 0.0, "since_unix_s": 0.0})


@settings(deadline=None, max_examples=60)
@given(
    changes=CHANGES,
    hangs=st.lists(st.tuples(TIMES, st.integers(0, 2 * RANKS - 1)), max_size=2),
    restart_s=st.one_of(st.none(), TIMES),
)
def test_verdicts_are_those_of_a_monitor_that_judges_each_beat(
    changes: list[tuple[float, int, dict[str, Any]]],
    hangs: list[tuple[float, int]],
    restart_s: float | None,
) -> None:
    with patch.object(state_module, "steps_on", lambda *_: False):
        expected = verdicts(changes, hangs, restart_s)
    assert verdicts(changes, hangs, restart_s) == expected


def test_most_beats_of_a_healthy_run_show_nothing_else() -> None:
    config = HealthConfig()
    node = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4))
    before = node.beat(10.0).workers[0]
    view = RankView(0, before)
    assert steps_on(view, 0, node.beat(10.5).workers[0], config)
    assert not steps_on(view, 0, before, config), "it has not moved"
    assert not steps_on(view, 1, node.beat(10.5).workers[0], config), "it is elsewhere now"
