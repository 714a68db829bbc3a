"""How many executors are started again at a time when many fall silent at once."""

from __future__ import annotations

from headway.common.decide import Action, Done, Failed
from headway.controller.decisions.events import ExecutorEnded, RestartNode
from headway.controller.decisions.silence import MAX_RESTARTS
from headway.testkit.simulation.by_hand import Hand
from headway.testkit.simulation.driver import LIMITS


def _open(asked: set[int], actions: list[Action]) -> set[int]:
    """The restarts under way, each asked for once."""
    new = [action.node for action in actions if isinstance(action, RestartNode)]
    assert len(new) == len(set(new)) and not asked & set(new)
    return asked | set(new)


def test_after_a_silence_of_all_nodes_few_are_restarted_at_a_time() -> None:
    """Each restart is an ssh: the driver's own network may have been away for a moment."""
    hand = Hand(nodes=200).run()
    everybody = set(range(1, 200))
    hand.silent = set(everybody)
    asked = _open(set(), hand.wait(LIMITS.node_silent_s + 0.2))
    assert len(asked) == MAX_RESTARTS and 1 in asked, "a node with ranks is among the first"
    tried: set[int] = set()
    for _ in range(2):
        for node in asked:
            hand.send(Failed(RestartNode(node), "it cannot be reached"))
        tried |= asked
        asked = _open(set(), hand.wait(0.1))
        assert len(asked) == MAX_RESTARTS and not asked & tried, "those that were never asked for"
    hand.silent = set()
    assert not _open(asked, hand.wait(1.0)) - asked, "the others report again, and are left alone"
    assert {hand.state.status_of(node) for node in everybody} == {"active", "spare"}


def test_restarts_that_have_not_ended_count_although_their_nodes_report_again() -> None:
    hand = Hand(nodes=100).run()
    hand.silent = set(range(1, 100))
    asked = _open(set(), hand.wait(LIMITS.node_silent_s + 0.2))
    hand.silent = set()
    hand.wait(1.0)
    hand.silent = set(range(1, 100))
    assert not _open(asked, hand.wait(LIMITS.node_silent_s + 0.2)) - asked
    for node in asked:
        hand.send(Done(RestartNode(node)))
    assert len(_open(set(), hand.wait(0.1))) == MAX_RESTARTS


def test_nodes_that_the_engine_knows_to_have_ended_wait_for_their_turn_too() -> None:
    hand = Hand(nodes=100).run()
    actions = [action for node in range(1, 100) for action in hand.send(ExecutorEnded(node))]
    assert len(_open(set(), actions)) == MAX_RESTARTS
