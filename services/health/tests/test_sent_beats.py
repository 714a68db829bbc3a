"""Group tables are sent of ranks that may hang, and of no others."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.plan.collectives import Op
from headway.common.wire import codec
from headway.common.wire.messages.health import AgentBeat, GroupRow
from headway.health.config import HealthConfig
from headway.health.sent_beats import as_sent
from headway.testkit.beats import SimulatedNode, lockstep

CONFIG = HealthConfig()
ROW = GroupRow(4, 0, 2, Op.ALL_GATHER, 1 << 20, 7, 6, 120, 130)
AT_S = 20.1


def beat(**signals: Any) -> AgentBeat:
    """Of two ranks in the middle of steps of 1 s, the first one with other signals."""
    both: dict[str, Any] = {"groups": (ROW,), "step_age_s": 0.1}
    node = SimulatedNode(0, lockstep(2, 100, lambda _: 1.0))
    node.signals = {0: both | signals, 1: both}
    return node.beat(AT_S)


def test_ranks_that_step_as_usual_send_none_and_the_rest_of_the_beat_is_the_same() -> None:
    made = beat()
    sent = as_sent(made, CONFIG)
    assert [worker.groups for worker in made.workers] == [(ROW,), (ROW,)], "the agent needs them"
    assert [worker.groups for worker in sent.workers] == [(), ()]
    without = beat(groups=())
    assert len(codec.encode(sent)) < len(codec.encode(made))
    assert sent.workers[0] == without.workers[0]
    assert (sent.sequence, sent.findings, sent.host) == (made.sequence, made.findings, made.host)


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param({"age_s": CONFIG.beat_interval_s + 0.1}, id="has not moved since a beat"),
        pytest.param({"step_age_s": 2.1}, id="moves, but its step does not end"),
        pytest.param({"phase": "join"}, id="joins"),
        pytest.param({"num_steps": CONFIG.first_steps - 1}, id="is in its first steps"),
        pytest.param({"median_step_s": 0.0}, id="has no usual step"),
    ],
)
def test_a_rank_that_may_hang_sends_its_table(signals: dict[str, Any]) -> None:
    sent = as_sent(beat(**signals), CONFIG)
    assert [worker.groups for worker in sent.workers] == [(ROW,), ()]
