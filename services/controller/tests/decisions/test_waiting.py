"""A run without a ready spare waits for a missing node, says so, and ends by name at the limit."""

from __future__ import annotations

import dataclasses

import pytest
from headway.common.decide import Action, Done, Failed
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import DurableFound, Finish, RestartNode
from headway.testkit.simulation.by_hand import Hand, asked_for, events, only
from headway.testkit.simulation.driver import LIMITS
from headway.trainer.config import RecoveryConfig

WAIT_S = 20.0
SOON = dataclasses.replace(LIMITS, wait_for_node_s=WAIT_S)
HARDLY = dataclasses.replace(LIMITS, wait_for_node_s=0.05)
GONE = "the machine was taken away"


def _hand(limits: RecoveryConfig = SOON) -> Hand:
    return Hand(nodes=2, limits=limits).run()


def _go_silent(hand: Hand, error: str = "", *, is_final: bool = False) -> list[Action]:
    """Node 1 falls silent in the middle of a step; each attempt to start it fails with ``error``,
    or changes nothing."""
    hand.silent.add(1)
    actions = hand.wait(LIMITS.node_silent_s + 0.2)
    actions += _answer(hand, only(actions, RestartNode), error, is_final=is_final)
    return actions + hand.send(hand.left(0, "peer")) + hand.leave()


def _answer(hand: Hand, restart: RestartNode, error: str, **how: bool) -> list[Action]:
    return hand.send(Failed(restart, error, **how) if error else Done(restart))


def _wait(hand: Hand, seconds: float, error: str = "", **how: bool) -> list[Action]:
    actions: list[Action] = []
    for _ in range(round(2 * seconds)):
        new = hand.wait(0.5)
        for restart in [action for action in new if isinstance(action, RestartNode)]:
            new += _answer(hand, restart, error, **how)
        actions += new
    return actions


def _end(hand: Hand, actions: list[Action], checkpoint: tuple[int, str] | None) -> str:
    """The end of the run, once the folder has answered."""
    assert asked_for(actions), "the newest checkpoint is looked for"
    actions = hand.send(DurableFound(checkpoint)) + hand.wait(0.2)
    finish = only(actions, Finish)
    assert finish.outcome == "failed"
    return finish.detail


def test_a_node_that_nobody_can_start_ends_the_run_after_the_limit_with_a_checkpoint() -> None:
    hand = _hand()
    error = "the machine did not respond within 90 s"
    _go_silent(hand, error)
    _wait(hand, LIMITS.node_lost_s + WAIT_S - 5.0, error)
    assert hand.state.phase == "gathering", "not before"
    detail = _end(hand, _wait(hand, 5.0, error), (40, "/c/40"))
    assert "node 1 has not reported for" in detail
    assert "the newest checkpoint is of step 40" in detail
    assert "repair the machine, then `headway run` again" in detail


def test_a_machine_that_is_gone_is_waited_for_too() -> None:
    hand = _hand()
    actions = _go_silent(hand, GONE, is_final=True)
    assert "node_lost" in events(actions)
    _wait(hand, WAIT_S - 3.0)
    assert hand.state.phase == "gathering"
    detail = _end(hand, _wait(hand, 5.0), None)
    assert detail.startswith("node 1 is lost and no spare is ready; there is no checkpoint yet")


def test_the_advice_keeps_the_number_of_ranks() -> None:
    hand = Hand(nodes=4, rank_nodes=dict(enumerate([0, 1, 2, 3])), limits=HARDLY).run()
    hand.silent.add(3)
    restart = only(hand.wait(LIMITS.node_silent_s + 0.2), RestartNode)
    hand.send(Failed(restart, GONE, is_final=True))
    actions = hand.leave() + hand.wait(0.5)
    words = "--set launch.nodes=2 --set launch.ranks_per_node=2 --set launch.spares=1"
    assert words in _end(hand, actions, None), "3 nodes cannot share 4 ranks evenly"


def test_with_a_limit_of_0_a_run_waits_and_says_so() -> None:
    hand = _hand(dataclasses.replace(LIMITS, wait_for_node_s=0.0))
    _go_silent(hand, GONE, is_final=True)
    hand.wait(5000.0)
    assert hand.state.phase == "gathering"
    assert "waited for 5" in hand.state.why() and "without a limit" in hand.state.why()


def test_a_node_that_cannot_start_a_worker_is_waited_for_as_a_lost_one() -> None:
    hand = _hand()
    hand.send(hand.left(2, "peer"))
    for view in list(hand.workers[1]):
        hand.send(hand.gone(1, view.worker, view.pid))
    hand.workers[1] = []
    hand.beat(1)
    hand.leave()
    actions = hand.wait(LIMITS.gather_timeout_s + WAIT_S + 1.0)
    assert "node 1 has no worker for ranks" in _end(hand, actions, None)


def test_a_machine_that_was_delivered_is_on_order_no_longer() -> None:
    hand = _hand()
    _go_silent(hand, "node 1 is waiting for a machine: job 8, Priority")
    hand.send(Failed(RestartNode(1), "job 8, Priority", is_on_order=True))
    hand.send(Done(RestartNode(1)))
    assert asked_for(hand.wait(WAIT_S + LIMITS.node_lost_s)), "it never beats, and its time counts"


def test_with_a_short_limit_the_run_ends_once_the_node_is_given_up() -> None:
    hand = _hand(HARDLY)
    _go_silent(hand, GONE, is_final=True)
    _end(hand, hand.wait(0.3), None)


def test_a_short_silence_is_not_the_end_with_a_short_limit() -> None:
    hand = _hand(HARDLY)
    _go_silent(hand)
    assert not asked_for(_wait(hand, LIMITS.node_lost_s - LIMITS.node_silent_s - 1.0))


def test_a_node_that_returns_within_the_limit_is_used_and_the_next_wait_is_a_whole_one() -> None:
    hand = _hand()
    _go_silent(hand, GONE, is_final=True)
    _wait(hand, WAIT_S - 3.0)
    hand.silent.clear()
    hand.incarnation[1] += 1
    hand.versions[1] = 0
    hand.workers[1] = [hand.idle(1, index) for index in (7, 8, 9)]
    hand.beat(1)
    hand.run_again(5)
    assert hand.state.phase == "running"
    _go_silent(hand, GONE, is_final=True)
    _wait(hand, WAIT_S - 3.0)
    assert hand.state.phase == "gathering"


def test_an_unreadable_folder_does_not_hold_up_the_end() -> None:
    hand = _hand(HARDLY)
    _go_silent(hand, GONE, is_final=True)
    hand.wait(LIMITS.choose_timeout_s + 1.0)
    assert "the checkpoints cannot be read now" in hand.state.detail


def test_time_in_which_a_machine_is_on_order_does_not_count_and_the_status_says_so() -> None:
    hand = _hand()
    queued = "node 1 is waiting for a machine: job 8, Priority"
    _go_silent(hand, queued)
    _wait(hand, 5 * WAIT_S, queued, is_on_order=True)
    assert hand.state.phase == "gathering"
    assert f"the engine has a machine on order, which is waited for: {queued}" in hand.state.why()
    error = "no such partition"
    assert asked_for(_wait(hand, 2 * WAIT_S + LIMITS.node_lost_s, error)), "now it counts"


def test_the_status_says_what_is_awaited_for_how_long_and_what_happens_then() -> None:
    hand = _hand()
    _go_silent(hand, GONE, is_final=True)
    _wait(hand, 10.0)
    assert hand.state.why() == (
        "node 1 is lost and no spare is ready; waited for 10 s, the run ends after 20 s"
    )


def test_a_successor_counts_on_from_the_last_whole_minute() -> None:
    hand = _hand(dataclasses.replace(LIMITS, wait_for_node_s=100.0))
    _go_silent(hand, GONE, is_final=True)
    _wait(hand, 70.0)
    assert hand.state.memory.waited_s == 60.0
    again = Hand(nodes=2, limits=SOON, generation=3, memory=hand.state.memory)
    again.silent.add(1)
    again.beat(0)
    assert asked_for(_wait(again, LIMITS.node_lost_s + 2.0)), "the limit has passed"


@pytest.mark.parametrize("spares", [0, 1])
def test_a_ready_spare_is_never_waited_for(spares: int) -> None:
    hand = Hand(nodes=2 + spares, limits=HARDLY).run()
    _go_silent(hand, GONE, is_final=True)
    assert (hand.state.phase == "reading") == bool(spares)


def test_two_limits_that_pass_at_one_tick_end_the_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(core: Core, _why: object) -> list[Action]:
        return core.finish("stopped") if core.phase == "over" else []

    hand = _hand()
    monkeypatch.setattr(hand.state._stop, "look", look)
    _go_silent(hand, GONE, is_final=True)
    _end(hand, _wait(hand, LIMITS.node_lost_s + WAIT_S + 1.0, GONE, is_final=True), None)
    assert hand.state.outcome == "failed"
