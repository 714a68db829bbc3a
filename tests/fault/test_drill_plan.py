"""Plans of faults: what they promise for every seed; and what a run is left with, judged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from headway.controller.faults.faults import FAULTS
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import aftermath
from benchmarks.faults import LOSSES, SIGNALS, WHOLE_WORLD, Fault, plan, witness

CONFIG = {"nodes": 2, "standbys": 1}
STRUCK = [Fault("kill", "worker", ranks=(1,)), Fault("freeze", "driver", seconds=9.0)]
GOOD: dict[str, Any] = {
    "nodes": {"0": "active", "1": "spare"},
    "ranks": {"0": 2, "1": 0},
    "places": {
        **{f"{name} {node}": 1 for node in (0, 1)
           for name in ("init", "executor", "dataloader", "ckpt_store", "agent")},
        "zygote 0": 4, "zygote 1": 2, "driver 0": 1, "monitor 0": 1,
    },
    "leaders": {"driver": 1, "monitor": 1},
    "stopped": [], "frozen": [], "journal": "", "missing_steps": [], "failures": [],
    "crashes": {"any cause at step 4": 2},
    "starts": {"zygote of node 0": 3, "workers of node 0": 9},
}  # fmt: skip


@given(seed=st.integers(0, 10_000), count=st.integers(3, 60), world=st.integers(3, 8))
def test_every_plan_has_many_faults_that_are_no_signals_and_the_loss_of_a_node(
    seed: int, count: int, world: int
) -> None:
    faults = plan(seed, count, world)
    assert len(faults) == count
    assert faults == plan(seed, count, world)
    alive = [fault for fault in faults if fault.kind not in SIGNALS]
    assert len(alive) >= 0.4 * count
    assert any(fault.kind in LOSSES for fault in faults)
    spared = witness(seed, world)
    assert all(spared not in fault.ranks for fault in faults)


def test_the_drill_of_sixty_faults_has_every_kind_that_inject_knows() -> None:
    kinds = {fault.kind for seed in range(3) for fault in plan(seed, 20, 4)}
    assert set(FAULTS) | LOSSES <= kinds


@pytest.mark.parametrize("kind", sorted({*WHOLE_WORLD, "freeze", "returning_node"}))
def test_a_kind_that_cannot_be_done_here_is_in_no_plan(kind: str) -> None:
    for seed in range(20):
        faults = plan(seed, 20, 4, without={kind})
        assert len(faults) == 20
        assert kind not in {fault.kind for fault in faults}


def test_faults_of_a_plan_are_struck_once_each() -> None:
    faults = plan(0, 60, 4)
    assert len({id(fault) for fault in faults}) == 60


def _judge(**change: Any) -> list[str]:
    return aftermath.judge({**copy.deepcopy(GOOD), **change}, CONFIG, STRUCK)


def test_a_run_that_has_all_it_should_have_is_not_degraded() -> None:
    assert _judge() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": {"0": "active", "1": "lost"}}, "'1': 'lost'"),
        ({"nodes": {"0": "active"}}, "1 of 2 nodes"),
        ({"places": {**GOOD["places"], "zygote 1": 1}}, "node 1 has 1 processes of zygote, not 2"),
        ({"places": {**GOOD["places"], "zygote 0": 5}}, "node 0 has 5 processes of zygote, not 4"),
        ({"places": {**GOOD["places"], "agent 0": 0}}, "node 0 has 0 processes of agent"),
        ({"leaders": {"driver": 1, "monitor": 2}}, "2 processes of monitor"),
        ({"leaders": {"driver": 0, "monitor": 1}}, "0 processes of driver"),
        ({"stopped": ["agent 0"]}, "stopped: ['agent 0']"),
        ({"frozen": ["headway-fault-7"]}, "frozen: ['headway-fault-7']"),
        ({"journal": "the journal cannot be written: locked"}, "cannot be written"),
        ({"missing_steps": [3, 4]}, "no metrics of 2 steps: [3, 4]"),
        ({"failures": ['{"rank": 1}']}, "taken for the code's"),
        ({"crashes": {"rank 1 at step 4": 3}}, "counts 3 crashes"),
        ({"starts": {"zygote of node 0": 40}}, "zygote of node 0 was started 40 times"),
        ({"starts": {"workers of node 0": 482}}, "workers of node 0 was started 482 times"),
    ],
)
def test_whatever_is_degraded_is_found(change: dict[str, Any], words: str) -> None:
    (line,) = _judge(**change)
    assert words in line
