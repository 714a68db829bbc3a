"""A hang is noticed although nothing is known any more of the rank that the others wait for."""

from __future__ import annotations

import msgspec
import pytest
from headway.common.plan.collectives import GroupKind, Op
from headway.common.wire.group_table import GroupRow, pack
from headway.common.wire.messages.health import AgentBeat, Verdict
from headway.health.config import HealthConfig
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.responses import response
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, Timeline, beat_times, lockstep

HUNG_S = 20.0
ENTERED, LACKS = (8, 7), (7, 7)


def two_ranks() -> tuple[SimulatedNode, list[Timeline]]:
    """Rank 0 waits in a collective that rank 1 does not enter."""
    timelines = lockstep(2, 60, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(HUNG_S, "NORM")
    node = SimulatedNode(0, timelines)
    for rank, counts in ((0, ENTERED), (1, LACKS)):
        line = 2 * GroupKind.DP
        node.signals[rank] = {
            "packed_groups": pack([GroupRow(line, 0, 2, Op.ALL_REDUCE, 64, *counts, 100, 100)])
        }
    return node, timelines


def play(node: SimulatedNode, *, ends: bool) -> list[Verdict]:
    """Rank 1 ends well, or is left out of beats, from the time of the hang on."""
    state, given = MonitorState(HealthConfig(), RUN_ID), []
    for now_s in beat_times(40.0):
        beat = node.beat(now_s)
        if now_s > HUNG_S + 1.0 and not ends:
            beat = without_rank_1(beat)
        elif now_s > HUNG_S + 1.0:
            node.states[1] = "done"
        given += [*state.on_beat(beat, now_s), *state.tick(now_s)]
    return given


def without_rank_1(beat: AgentBeat) -> AgentBeat:
    workers = tuple(worker for worker in beat.workers if worker.rank != 1)
    return msgspec.structs.replace(beat, workers=workers)


@pytest.mark.parametrize(("ends", "cause"), [(False, "unreported"), (True, "ended_early")])
def test_the_hang_is_explained_by_the_rank_that_is_absent(ends: bool, cause: str) -> None:
    node, _ = two_ranks()
    [verdict] = play(node, ends=ends)
    assert (verdict.kind, verdict.rank) == ("unexplained_hang", -1)
    assert response(verdict) == "restart_ranks"
    found = diagnosis_of(verdict)
    assert (found.cause, found.culprits) == (cause, ())
    assert any("rank 1" in reason for reason in found.why)
