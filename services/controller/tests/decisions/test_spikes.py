"""A spike leads the run back to its newest checkpoint; from there its samples are passed over."""

from __future__ import annotations

import dataclasses

import pytest
from headway.common.decide import Action, Done
from headway.common.wire.messages.worker import Restore, Steer
from headway.controller.decisions.events import (
    BeginGeneration,
    CheckCheckpoint,
    CommandQueued,
    DurableFound,
    FindDurable,
    Finish,
    Memory,
)
from headway.testkit.simulation.by_hand import Hand, events, only
from headway.testkit.simulation.driver import LIMITS

FOUND = DurableFound((20, "step-20"))
BACK = Restore(source="durable", step=20, folder="step-20", skip_to=310)


def _spike(hand: Hand, end: int = 310, *, looked_for: int = -1) -> list[Action]:
    """Every rank meets it and leaves; the arenas hold newer snapshots."""
    actions = [
        action
        for rank in list(hand.state.members.workers)
        for action in hand.send(
            hand.left(rank, "spike", detail="step 30 is a spike: ...", spike_end=end)
        )
    ]
    hand.leave()
    hand.gather()
    assert only(hand.read(29, 30), FindDurable).only == looked_for
    return actions


def test_the_newest_checkpoint_is_restored_although_the_arenas_hold_newer_snapshots() -> None:
    hand = Hand().run(step=30)
    assert events(_spike(hand)) == ["spike", "fence"], "four ranks report one spike"
    actions = hand.send(FOUND)
    assert events(actions) == ["spike_rollback"]
    assert only(actions, BeginGeneration).restored_step == 20
    assert hand.state.restore == BACK
    hand.begin(actions)
    assert hand.state.memory.spike == 310, "until it steps, a failure must lead back here"
    hand.join(21)
    assert hand.state.memory.spike == 0


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_failure_before_its_first_step_leads_to_the_checkpoint_too(is_begun: bool) -> None:
    hand = Hand().run(step=30)
    _spike(hand)
    actions = hand.send(FOUND)
    if is_begun:
        hand.begin(actions)
        hand.send(hand.left(0, detail="broken"))
        hand.leave()
    else:
        hand.send(hand.gone(1, "n1w0", 200))
    hand.workers[1].pop(0)
    hand.gather()
    hand.read(29, 30)  # no rank has restored, so the arenas still hold what led to the spike
    assert events(hand.send(FOUND)) == [], "it is the same spike"
    assert hand.state.restore == BACK
    assert hand.state.memory.passes == ((20, 310, 1),)


def test_it_costs_no_crash_and_ends_by_name_when_it_repeats() -> None:
    hand = Hand().run(step=30)
    for count in range(LIMITS.max_spike_rollbacks):
        _spike(hand, end=310 + count)
        hand.begin(hand.send(FOUND))
        hand.join(30)
    assert hand.state.memory.crashes == ()
    _spike(hand, end=400)
    finish = only(hand.send(FOUND), Finish)
    assert finish.outcome == "failed"
    assert f"recovery.max_spike_rollbacks={LIMITS.max_spike_rollbacks}" in finish.detail


def test_a_run_that_failed_for_its_spikes_can_be_resumed() -> None:
    memory = Memory(spike=310, passes=((20, 310, 0),))  # as ``Journal.reopen`` leaves it
    hand = Hand(memory=memory, generation=4, epoch=1)
    hand.gather()
    hand.read()
    hand.begin(hand.send(FOUND))
    assert hand.state.restore == BACK


def test_a_newer_checkpoint_begins_a_new_count() -> None:
    hand = Hand().run(step=30)
    for count in range(LIMITS.max_spike_rollbacks + 2):
        _spike(hand, end=310 + count)
        hand.begin(hand.send(DurableFound((20 + count, f"step-{20 + count}"))))
        hand.join(30 + count)
    assert hand.state.phase == "running"


def test_without_a_checkpoint_the_run_begins_again_behind_the_spike() -> None:
    hand = Hand().run(step=30)
    _spike(hand)
    hand.begin(hand.send(DurableFound(None)))
    assert hand.state.restore == Restore(source="init", step=0, skip_to=310)


def _lose_node(hand: Hand) -> None:
    hand.silent.add(1)
    while hand.state.status_of(1) != "lost":
        hand.wait(1.0)
    hand.workers.pop(1)
    hand.leave()
    hand.gather()


def test_the_checkpoint_passes_over_the_same_samples_when_a_node_is_lost_later() -> None:
    hand = Hand().run(step=30)
    _spike(hand)
    hand.begin(hand.send(FOUND))
    hand.join(25)
    _lose_node(hand)
    hand.read()  # the lost node's snapshots are gone
    hand.begin(hand.send(FOUND))
    assert hand.state.restore == BACK


def test_a_snapshot_knows_its_own_position() -> None:
    hand = Hand().run(step=30)
    _spike(hand)
    hand.begin(hand.send(FOUND))
    hand.join(20)
    hand.send(hand.left(0, detail="broken"))
    hand.leave()
    hand.gather()
    hand.read(20)
    hand.begin(hand.send(FOUND))
    assert hand.state.restore == Restore(source="arena", step=20)


def test_a_successor_goes_back_too() -> None:
    hand = Hand().run(step=30)
    hand.send(hand.left(0, "spike", detail="step 30 is a spike", spike_end=310))
    successor = Hand(memory=hand.state.memory, generation=hand.state.generation, epoch=1)
    successor.gather()
    successor.read(29, 30)
    successor.begin(successor.send(FOUND))
    assert successor.state.restore == BACK


def test_while_the_folder_cannot_be_read_the_run_waits_and_then_meets_the_spike_again() -> None:
    hand = Hand().run(step=30)
    _spike(hand)
    assert hand.send(DurableFound(None, trouble="it hangs")) == []
    assert hand.state.phase == "choosing", "the snapshots would lead to the spike"
    actions = hand.wait(LIMITS.choose_timeout_s + 1)
    assert "spike_rollback_failed" in events(actions)
    assert hand.state.restore == Restore(source="arena", step=30)


def test_while_it_can_never_be_read_the_run_ends_and_says_why() -> None:
    hand = Hand(limits=dataclasses.replace(LIMITS, max_crashes=3)).run(step=30)
    for _ in range(2):
        _spike(hand)
        hand.send(DurableFound(None, trouble="it hangs"))
        hand.begin(hand.wait(LIMITS.choose_timeout_s + 1))
        hand.join(30)
    _spike(hand)
    hand.send(DurableFound(None, trouble="it hangs"))
    hand.wait(LIMITS.choose_timeout_s + 1)
    assert hand.state.outcome == "failed"
    assert "it hangs" in hand.state.detail


def test_a_users_rollback_wins_over_a_spike_that_is_met_at_the_same_time() -> None:
    hand = Hand().run(step=30)
    steer = Steer(sequence=1, operation="rollback", count=10)
    hand.send(Done(only(hand.send(CommandQueued(steer)), CheckCheckpoint)))
    _spike(hand, looked_for=10)
    hand.begin(hand.send(DurableFound((10, "there"), only=10)))
    hand.join(15)
    hand.send(hand.left(0, detail="broken"))
    hand.leave()
    hand.gather()
    hand.read(14, 15)
    hand.send(DurableFound((10, "there")))
    assert hand.state.restore == Restore(source="arena", step=15)


@pytest.mark.parametrize(("step", "passed"), [(10, 0), (20, 310)])
def test_a_users_rollback_forgets_what_was_met_after_its_step(step: int, passed: int) -> None:

    hand = Hand().run(step=30)
    _spike(hand)
    hand.begin(hand.send(FOUND))
    hand.join(30)
    steer = Steer(sequence=1, operation="rollback", count=step)
    hand.send(Done(only(hand.send(CommandQueued(steer)), CheckCheckpoint)))
    hand.leave()
    hand.gather()
    hand.read(29, 30)
    hand.begin(hand.send(DurableFound((step, "there"), only=step)))
    assert hand.state.restore == Restore(
        source="durable", step=step, folder="there", skip_to=passed
    )
