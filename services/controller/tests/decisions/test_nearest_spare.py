"""Which spare takes over from a lost node: one as trusted as any, and of those the nearest."""

from __future__ import annotations

import random

import pytest
from headway.common.plan.topology import Chain, Topology
from headway.common.wire.messages.driver import NodeBeat
from headway.controller.decisions.events import Start, topology_of
from headway.controller.decisions.fleet import Fleet
from headway.controller.decisions.replacing import replace_lost
from headway.controller.decisions.state import RunState
from headway.controller.driver.inputs import decode, encode
from headway.testkit.simulation.by_hand import Hand
from headway.testkit.simulation.driver import LIMITS

TWO_LEAVES: tuple[Chain, ...] = (*[("spine", "a")] * 3, *[("spine", "b")] * 3)
"""Two leaves of three machines."""
DRAWN = 300


def _beat(fleet: Fleet, node: int) -> None:
    beat = NodeBeat(node=node, pid=1, version=1, incarnation=1, workers=(), services={}, run_id="r")
    assert fleet.receive(beat, 1.0) is not None


def _fleet(switches: tuple[Chain, ...], carriers: list[int]) -> Fleet:
    """All nodes have reported."""
    fleet = Fleet(len(switches), dict(enumerate(carriers)), Topology(switches))
    for node in range(len(switches)):
        _beat(fleet, node)
    return fleet


def test_below_the_same_leaf_then_the_same_upper_switch_then_anywhere() -> None:
    switches = (("core", "pod0", "a"),) * 2 + (
        ("core", "pod1", "c"),
        ("core", "pod0", "b"),
        ("core", "pod0", "a"),
    )
    fleet = _fleet(switches, [0, 1])
    for expected in (4, 3, 2):
        assert fleet.spare_for(0) == expected
        fleet.lose(fleet.nodes[expected], "gone")
    assert fleet.spare_for(0) is None


def test_a_nearer_spare_that_is_less_trusted_comes_later() -> None:
    fleet = _fleet(TWO_LEAVES, [0, 1, 3, 4])
    assert (fleet.spare_for(0), fleet.spare_for(3)) == (2, 5)
    fleet.lose(fleet.nodes[2], "")
    _beat(fleet, 2)
    assert fleet.ready_spares() and fleet.spare_for(0) == 5, "node 2 was given up once"
    assert fleet.spare_for(3) == 5


def test_a_farther_spare_is_never_taken_where_a_nearer_healthy_one_exists() -> None:
    for seed in range(DRAWN):
        rng = random.Random(seed)
        leaves = [("core", f"pod{n // 2}", f"leaf{n}") for n in range(rng.randint(1, 6))]
        switches = tuple(rng.choice([*leaves, ()]) for _ in range(rng.randint(3, 24)))
        carriers = rng.sample(range(len(switches)), rng.randint(1, len(switches) - 1))
        fleet = _fleet(switches, carriers)
        for node in rng.sample(range(len(switches)), rng.randint(0, len(switches) // 2)):
            if node not in carriers:
                fleet.lose(fleet.nodes[node], "")
                if rng.random() < 0.5:
                    _beat(fleet, node)
        for lost in carriers:
            spare, topology = fleet.spare_for(lost), fleet.topology
            ready = [fleet.nodes[n] for n in fleet.ready_spares()]
            assert (spare is None) == (not ready), seed
            if spare is not None:
                least = min(node.losses for node in ready)
                healthy = [node.number for node in ready if node.losses == least]
                nearest = min(topology.levels(lost, n) for n in healthy)
                near = [n for n in healthy if topology.levels(lost, n) == nearest]
                assert spare == min(near), seed


@pytest.mark.parametrize("order", [(0, 3), (3, 0)])
def test_of_nodes_lost_together_each_gets_the_spare_of_its_leaf(order: tuple[int, int]) -> None:
    """Whichever is lost first. Of three, the one without a spare of its leaf comes last."""
    hand = Hand(rank_nodes={0: 0, 1: 1, 2: 3, 3: 4}, nodes=6, switches=TWO_LEAVES).run()
    for node in order:
        hand.state.fleet.lose(hand.state.fleet.nodes[node], "gone")
    replace_lost(hand.state)
    assert hand.state.fleet.rank_nodes == {0: 2, 1: 1, 2: 5, 3: 4}


def test_a_node_does_not_take_the_only_spare_of_another_lost_ones_leaf() -> None:
    switches = (("s", "a"), ("s", "b"), ("s", "b"), ("t", "c"))
    fleet = _fleet(switches, [0, 1])
    for node in (0, 1):
        fleet.lose(fleet.nodes[node], "gone")
    assert fleet.spare_for(0) == 2, "it is the nearest for both"
    assert fleet.nearest_first(fleet.lost_carriers) == [1, 0]


def test_the_next_driver_chooses_alike() -> None:
    """The start of each names the switches, which the journal keeps for a replay."""
    start = Start(
        run_id="r", steps=9, rank_nodes={0: 0, 1: 3}, nodes=6, generation=4, switches=TWO_LEAVES
    )
    again = decode(encode(start))
    assert again == start
    state = RunState(again, LIMITS, 1.0)
    assert state.fleet.topology == Topology(TWO_LEAVES)
    for node in range(6):
        _beat(state.fleet, node)
    assert (state.spare_for(0), state.spare_for(3)) == (1, 4)


def test_without_known_switches_the_first_spare_is_taken() -> None:
    start = Start(run_id="r", steps=9, rank_nodes={0: 0}, nodes=4)
    assert topology_of(start) == Topology.one_switch(4)
    some = Start(run_id="r", steps=9, rank_nodes={0: 0}, nodes=3, switches=(("a",),))
    assert topology_of(some).switches == (("a",), (), ())
