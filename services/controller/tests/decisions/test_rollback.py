"""Roll back: the next generation begins at the checkpoint that the user chose, or the run says why
it does not."""

from __future__ import annotations

import pytest
from headway.common.decide import Action, Done, Failed, Log
from headway.common.wire.messages.worker import Restore, Steer
from headway.controller.decisions.events import (
    BeginGeneration,
    CheckCheckpoint,
    CommandQueued,
    DurableFound,
    FindDurable,
    Finish,
    Send,
)
from headway.testkit.simulation.by_hand import Hand, events, only
from headway.testkit.simulation.driver import LIMITS

FOUND = DurableFound((10, "step-10"), only=10)


def _roll_back(hand: Hand, step: int = 10) -> list[Action]:
    """The user's command, and the checkpoint that was read is sound."""
    sequence = len(hand.state.commands) + 1
    actions = hand.send(CommandQueued(Steer(sequence=sequence, operation="rollback", count=step)))
    check = only(actions, CheckCheckpoint)
    assert check.step == step and hand.state.phase == "running", "it trains on meanwhile"
    return hand.send(Done(check))


def _asked(hand: Hand) -> FindDurable:
    """Every rank leaves and holds snapshots of steps 29 and 30; then the folder is asked."""
    hand.leave()
    hand.gather()
    return only(hand.read(29, 30), FindDurable)


def test_the_next_generation_restores_the_chosen_checkpoint_although_newer_snapshots_exist() -> (
    None
):
    hand = Hand().run(step=30)
    actions = _roll_back(hand)
    assert events(actions) == ["rollback", "fence"]
    assert _asked(hand).only == 10
    begin = only(hand.send(FOUND), BeginGeneration)
    assert begin.restored_step == 10
    hand.begin([begin])
    assert hand.state.restore == Restore(source="durable", step=10, folder="step-10")
    hand.join(11)
    assert hand.state.phase == "running"
    assert hand.state.memory.rollback is None


def test_it_costs_no_crash() -> None:
    hand = Hand().run(step=30)
    for _ in range(LIMITS.max_crashes + 2):
        _roll_back(hand)
        _asked(hand)
        hand.begin(hand.send(FOUND))
        hand.join(30)
    assert hand.state.phase == "running"


@pytest.mark.parametrize("phase", ["joining", "choosing", "leaving"])
def test_a_failure_in_between_does_not_lose_it(phase: str) -> None:
    hand = Hand().run(step=30)
    _roll_back(hand)
    if phase != "leaving":
        _asked(hand)
    if phase == "joining":
        hand.begin(hand.send(FOUND))
        hand.join(10, status="joining")
    if phase != "leaving":
        assert hand.state.phase == phase
    node = hand.state.fleet.rank_nodes[0]
    index = [view.worker for view in hand.workers[node]].index(hand.state.members.workers[0])
    gone = hand.workers[node].pop(index)
    hand.send(hand.gone(node, gone.worker, gone.pid))
    hand.workers[node].append(hand.idle(node, 7))
    assert _asked(hand).only == 10
    hand.begin(hand.send(FOUND))
    assert hand.state.restore.step == 10


def test_an_answer_to_an_earlier_question_is_ignored() -> None:
    hand = Hand().run(step=30)
    _roll_back(hand)
    _asked(hand)
    assert hand.send(DurableFound((20, "step-20"))) == []
    assert hand.state.phase == "choosing"
    assert only(hand.send(FOUND), BeginGeneration).restored_step == 10


def test_a_checkpoint_that_is_gone_leaves_the_run_where_it_was() -> None:
    hand = Hand().run(step=30)
    _roll_back(hand)
    _asked(hand)
    actions = hand.send(DurableFound(None, only=10))
    (log,) = [a for a in actions if isinstance(a, Log) and a.event == "rollback_failed"]
    assert log.fields == {"step": 10, "reason": "there is no checkpoint of step 10"}
    assert only(actions, FindDurable).only == -1
    begin = only(hand.send(DurableFound((20, "step-20"))), BeginGeneration)
    assert begin.restored_step == 30
    assert hand.state.memory.rollback is None


@pytest.mark.parametrize("is_final", [True, False])
def test_a_damaged_checkpoint_costs_the_run_nothing(is_final: bool) -> None:
    hand = Hand().run(step=30)
    hand.send(CommandQueued(Steer(sequence=1, operation="rollback", count=10)))
    actions = hand.send(Failed(CheckCheckpoint(10), "rank 1 is damaged", is_final=is_final))
    assert hand.state.phase == "running" and "fence" not in events(actions)
    if is_final:
        (log,) = [a for a in actions if isinstance(a, Log) and a.event == "rollback_failed"]
        assert log.fields == {"step": 10, "reason": "rank 1 is damaged"}
        assert hand.state.memory.rollbacks == 1, "a successor does not try it again"
        assert hand.wait(5.0) == [] or hand.state.phase == "running"
    else:  # such as a folder that hangs: it is read again
        assert only(hand.wait(1.0), CheckCheckpoint).step == 10


def test_a_step_that_the_run_has_not_passed_is_no_way_back() -> None:
    hand = Hand().run(step=30)
    actions = _roll_back(hand, 30)
    assert events(actions) == ["rollback_failed"] and hand.state.phase == "running"


def test_a_new_driver_reads_the_checkpoint_of_a_rollback_that_was_only_recorded() -> None:
    command = Steer(sequence=1, operation="rollback", count=10)
    hand = Hand(commands=(command,), generation=0, epoch=2)
    assert only(hand.wait(0.2), CheckCheckpoint).step == 10


def test_what_every_rank_has_answered_is_not_made_again() -> None:
    hand = Hand().run(step=30)
    sample = Steer(sequence=1, operation="sample", count=4, tokens=(1, 2, 3))
    hand.send(CommandQueued(sample))
    for node, views in hand.workers.items():
        for index, view in enumerate(views):
            if view.status == "running":
                hand.change(node, index, command=1, applied=1)
        hand.beat(node)
    _roll_back(hand)
    _asked(hand)
    hand.begin(hand.send(FOUND))
    assert hand.state.memory.answered == 1
    orders = [a.message.assign for a in hand.wait(1.0) if isinstance(a, Send)]
    assigned = [one for one in orders if one is not None]
    assert {one.answered for one in assigned} == {1}
    assert {c.tokens for one in assigned for c in one.commands} <= {()}


def test_a_folder_that_does_not_answer_ends_it_after_the_limit() -> None:
    hand = Hand().run(step=30)
    _roll_back(hand)
    _asked(hand)
    assert hand.send(DurableFound(None, trouble="it hangs", only=10)) == []
    actions = hand.wait(LIMITS.read_timeout_s + LIMITS.choose_timeout_s + 1.0)
    (log,) = [a for a in actions if isinstance(a, Log) and a.event == "rollback_failed"]
    assert "it hangs" in log.fields["reason"]
    begin = next(a for a in actions if isinstance(a, BeginGeneration))
    assert begin.restored_step == 30, "its snapshots"


@pytest.mark.parametrize("is_done", [False, True])
def test_a_new_driver_knows_whether_it_was_carried_out(is_done: bool) -> None:
    before = Hand().run(step=30)
    _roll_back(before)
    memory = before.state.memory
    generation = before.state.generation + is_done
    hand = Hand(memory=memory, generation=before.state.generation, epoch=2)
    for rank, node in hand.state.fleet.rank_nodes.items():
        hand.change(node, rank % 2, status="running", generation=generation, rank=rank, step=30)
    actions = hand.gather()
    assert ("adopted" in events(actions)) == is_done
    if is_done:
        assert (hand.state.phase, hand.state.memory.rollback) == ("running", None)
    else:
        assert _asked(hand).only == 10


def test_an_extension_counts_at_once_and_for_the_next_driver() -> None:
    hand = Hand().run(step=30)
    extend = Steer(sequence=1, operation="extend", count=150)
    hand.send(CommandQueued(extend))
    assert hand.state.steps == 150
    finish = only(hand.join(100, status="finished"), Finish)
    assert finish.outcome == "stopped"
    assert "extension arrived after the last step" in finish.detail
    assert Hand(commands=(extend,)).state.steps == 150


def test_a_result_that_a_dead_rank_may_not_have_reported_is_made_again() -> None:
    hand = Hand().run(step=30)
    hand.send(CommandQueued(Steer(sequence=1, operation="evaluate")))
    for node, views in hand.workers.items():
        for index, view in enumerate(views):
            if view.status == "running":
                hand.change(node, index, command=1, applied=1)
        hand.beat(node)
    node = hand.state.fleet.rank_nodes[0]
    index = [view.worker for view in hand.workers[node]].index(hand.state.members.workers[0])
    gone = hand.workers[node].pop(index)
    hand.send(hand.gone(node, gone.worker, gone.pid))
    assert hand.state.memory.answered == 0
