"""Why a generation that joins does not step yet, as a sentence."""

from __future__ import annotations

from headway.controller.decisions.events import DurableFound
from headway.testkit.simulation.by_hand import Hand


def test_a_wait_for_the_first_step_names_what_is_wrong_on_the_node_of_the_rank() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="restored")
    hand.trouble[0] = "dataloader is restarted repeatedly: it sent no beat for 5 s"
    hand.beat(0)
    assert hand.state.why().endswith(f"; node 0: {hand.trouble[0]}")
    hand.trouble[0] = ""
    hand.beat(0)
    assert "node 0" not in hand.state.why()


def test_a_wait_for_a_rank_that_restores_names_it_too() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="joining")
    hand.trouble[1] = "dataloader is starting again: died"
    hand.beat(1)
    why = "waiting for ranks 0, 1, 2, 3 to restore step 0 for 0 s; node 1: "
    assert hand.state.why() == why + hand.trouble[1]


def test_a_rank_that_evaluates_before_the_first_step_is_named() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="restored")
    hand.change(0, 0, evaluating=True)
    hand.beat(0)
    assert hand.state.why() == "rank 0 evaluates before the first step, for 0 s"
    hand.change(1, 0, evaluating=True)
    hand.beat(1)
    assert hand.state.why() == "ranks 0, 2 evaluate before the first step, for 0 s"
    hand.change(0, 0, evaluating=False)
    hand.change(1, 0, evaluating=False)
    hand.beat(0), hand.beat(1)
    assert hand.state.why().startswith("waiting for the first step of ranks 0, 1, 2, 3")
