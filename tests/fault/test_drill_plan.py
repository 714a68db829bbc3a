"""Plans of faults: what they promise for every seed; and what a run is left with, judged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from headway.controller.faults.evidence import EVIDENCE
from headway.controller.faults.faults import FAULTS
from headway.controller.faults.inside import INSIDE
from headway.controller.faults.network import NETWORK
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.drill import aftermath
from benchmarks.drill.catalogue import (
    ALIVE,
    LOSSES,
    NEEDS,
    Cost,
    Place,
    faults_at,
    named,
)
from benchmarks.drill.catalogue import (
    FAULTS as ALL,
)
from benchmarks.drill.plan import plan, witness

CONFIG = {"nodes": 2, "standbys": 1}
NUM_STRUCK = 2
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
    strikes = plan("local", seed, count, world=world)
    assert len(strikes) == count
    assert strikes == plan("local", seed, count, world=world)
    assert sum(strike.fault in ALIVE for strike in strikes) >= 0.4 * count
    assert any(strike.fault in LOSSES for strike in strikes)
    spared = witness(seed, world)
    assert all(spared not in strike.ranks for strike in strikes)


def test_the_drill_of_sixty_faults_has_every_kind_that_inject_knows() -> None:
    kinds = {strike.fault.kind for seed in range(3) for strike in plan("local", seed, 20)}
    # wrong numbers change the digest, signs of a machine need stand-ins, and nodes on one machine
    # have no network between them: tests of their own
    struck = set(FAULTS) - INSIDE.keys() - EVIDENCE.keys() - {"oom", *NETWORK}
    assert struck | {fault.kind for fault in LOSSES} <= kinds


@pytest.mark.parametrize("kind", sorted(NEEDS))
def test_a_kind_that_cannot_be_done_here_is_in_no_plan(kind: str) -> None:
    for seed in range(20):
        strikes = plan("local", seed, 20, without={kind})
        assert len(strikes) == 20
        assert kind not in {strike.fault.kind for strike in strikes}


def test_faults_of_a_plan_are_struck_once_each() -> None:
    assert len({id(strike) for strike in plan("local", 0, 60)}) == 60


@given(seed=st.integers(0, 10_000), count=st.integers(2, 60))
def test_a_plan_for_machines_has_each_fault_as_often_as_any_other(seed: int, count: int) -> None:
    strikes = plan("machines", seed, count)
    times = [[strike.fault for strike in strikes].count(one) for one in faults_at("machines")]
    assert len(strikes) == sum(times) == count
    assert max(times) - min(times) <= 1


@pytest.mark.parametrize(("place", "number"), [("local", 45), ("machines", 24), ("slurm", 4)])
def test_no_place_has_lost_a_fault(place: Place, number: int) -> None:
    assert len(faults_at(place)) == number


def test_only_the_named_fault_is_struck_and_on_any_rank() -> None:
    strikes = plan("local", 0, 40, only="hold worker at worker.in_layer")
    assert {strike.fault.kind for strike in strikes} == {"hold"}
    assert {rank for strike in strikes for rank in strike.ranks} == {0, 1, 2, 3}
    assert len({fault.name for fault in ALL}) == len(ALL)
    with pytest.raises(ValueError, match="use one of: kill worker"):
        named("kill nobody")


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("kill driver", "nothing"),
        ("debugger worker", "nothing"),
        ("silent_node node", "nothing"),
        ("kill worker", "step"),
        ("freeze leader", "step"),
        ("freeze executor", "checkpoint"),
        ("flipped_snapshot_bit worker", "checkpoint"),
        ("lose node", "checkpoint"),
    ],
)
def test_the_catalogue_says_what_a_fault_may_cost(name: str, cost: Cost) -> None:
    assert named(name).cost == cost


def _judge(**change: Any) -> list[str]:
    return aftermath.judge({**copy.deepcopy(GOOD), **change}, CONFIG, NUM_STRUCK)


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
