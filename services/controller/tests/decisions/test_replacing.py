"""When a node gives its ranks to a spare although it reports: it came back empty, or its ranks keep
dying."""

from __future__ import annotations

import pytest
from headway.common.decide import Action, Done, Log
from headway.common.wire.messages.executor import SaveSnapshots
from headway.controller.decisions import failures
from headway.controller.decisions.events import DurableFound, ExecutorEnded, RestartNode
from headway.controller.decisions.replacing import SAVE_S
from headway.testkit.simulation.by_hand import Hand, events, only, sent
from headway.testkit.simulation.driver import LIMITS, RANKS

ONE_EACH = {0: 0, 1: 1}


def _restart_empty(hand: Hand, node: int) -> list[Action]:
    """Its executor is started again and finds no worker: all processes had been frozen."""
    hand.silent.discard(node)
    hand.incarnation[node] += 1
    hand.versions[node] = 0
    hand.workers[node] = []
    return hand.beat(node)


def _freeze(hand: Hand, node: int) -> list[Action]:
    hand.silent.add(node)
    hand.send(Done(only(hand.send(ExecutorEnded(node)), RestartNode)))
    return _restart_empty(hand, node) + hand.leave()


def test_a_node_that_comes_back_without_a_worker_gives_its_ranks_to_the_warm_spare() -> None:
    hand = Hand().run()
    actions = _freeze(hand, 1)
    assert [e for e in events(actions) if e.startswith("node")] == ["node_lost", "node_replaced"]
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}
    assert hand.state.phase == "reading", "nothing is waited for"


def test_it_becomes_a_spare_once_it_has_an_idle_worker() -> None:
    hand = Hand().run()
    _freeze(hand, 1)
    assert "node_returned" not in events(hand.beat(1))
    hand.workers[1] = [hand.idle(1, 7)]
    assert "node_returned" in events(hand.beat(1))
    assert hand.state.status_of(1) == "spare"


def test_without_a_warm_spare_it_keeps_its_ranks() -> None:
    hand = Hand().run()
    hand.workers[2] = []
    hand.beat(2)
    assert "node_replaced" not in events(_freeze(hand, 1))
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 1}


def test_a_node_whose_standby_outlived_the_silence_keeps_its_ranks() -> None:
    hand = Hand().run()
    hand.silent.add(1)
    hand.send(Done(only(hand.send(ExecutorEnded(1)), RestartNode)))
    hand.silent.discard(1)
    hand.workers[1] = hand.workers[1][2:]  # the ranks fell, the standby did not
    assert "worker_lost" in events(hand.beat(1))
    hand.leave()
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 1}


def test_nodes_that_start_slowly_give_nothing_away() -> None:
    """A new run, and one that is resumed: nobody has a worker yet."""
    for generation in (-1, 6):
        hand = Hand(generation=generation)
        workers = hand.workers[1]
        hand.silent.add(1)
        hand.workers[1] = []
        hand.beat(0)
        hand.beat(2)
        hand.wait(LIMITS.node_silent_s + LIMITS.driver_silent_s + 0.5)
        assert "node_replaced" not in events(_restart_empty(hand, 1) + hand.wait(1.0))
        hand.workers[1] = workers
        hand.beat(1)
        assert set(hand.state.fleet.rank_nodes.values()) == {0, 1}


def test_a_new_driver_moves_the_ranks_of_the_frozen_node_that_it_took_over_from() -> None:
    hand = Hand(generation=3)
    for node in (0, 2):  # node 1 carried the former driver
        for index, rank in enumerate(rank for rank, home in RANKS.items() if home == node):
            hand.change(node, index, status="running", generation=3, rank=rank)
        hand.beat(node)
    hand.silent.add(1)
    hand.send(Done(only(hand.send(ExecutorEnded(1)), RestartNode)))
    actions = _restart_empty(hand, 1) + hand.leave()
    assert {"fence", "node_lost", "node_replaced"} <= set(events(actions))


# ---- ranks that keep dying ----------------------------------------------------------------------
def _recover(hand: Hand, step: int) -> list[Action]:
    actions = hand.leave()
    for node, views in hand.workers.items():  # each node forks another standby
        views.append(hand.idle(node, 10 + 3 * step + len(views)))
        actions += hand.beat(node)
    if hand.state.phase == "gathering":  # the stores write first
        actions += hand.wait(SAVE_S + 0.2)
    actions += hand.read(step)
    begun = hand.send(DurableFound(None))
    while hand.state.phase == "beginning" and "generation" not in events(begun):
        begun += hand.begin(begun) if _wants_to_begin(begun) else hand.wait(0.1)
    hand.join(step + 1)
    return actions


def _wants_to_begin(actions: list[Action]) -> bool:
    return any(type(action).__name__ == "BeginGeneration" for action in actions)


def _die(hand: Hand, rank: int, step: int) -> list[Action]:
    """The rank's process is killed, and the run recovers at ``step``."""
    name, node = hand.state.members.workers[rank], hand.state.fleet.rank_nodes[rank]
    pid = next(view.pid for view in hand.workers[node] if view.worker == name)
    hand.workers[node] = [view for view in hand.workers[node] if view.worker != name]
    return hand.send(hand.gone(node, name, pid)) + _recover(hand, step)


def _fail(hand: Hand, rank: int, step: int, detail: str) -> list[Action]:
    """The rank raises, and the run recovers at ``step``."""
    return hand.send(hand.left(rank, "error", detail=detail)) + _recover(hand, step)


def _hand() -> Hand:
    return Hand(rank_nodes=ONE_EACH, limits=LIMITS).run()


def test_a_node_whose_ranks_keep_dying_gives_them_to_the_idle_spare_and_is_named() -> None:
    hand = _hand()
    assert "node_flaky" not in events(_die(hand, 1, 10) + _die(hand, 1, 20))
    actions = _die(hand, 1, 30)
    assert "node_flaky" in events(actions)
    (flaky,) = [a for a in actions if isinstance(a, Log) and a.event == "node_flaky"]
    assert flaky.fields == {"node": 1, "failures": 3, "causes": ["killed"]}
    saves = [action.node for action in sent(actions, SaveSnapshots)]
    assert {0, 1} <= set(saves), "what it holds in memory is written first"
    assert hand.state.fleet.rank_nodes == {0: 0, 1: 2}
    assert hand.state.phase == "running"
    assert hand.state.spare_for(0) == 1, "it is the last choice, and still one"


def test_without_a_spare_it_keeps_its_ranks() -> None:
    hand = Hand(rank_nodes=ONE_EACH, nodes=2).run()
    actions = [action for step in (10, 20, 30, 40) for action in _die(hand, 1, step)]
    assert "node_lost" not in events(actions)
    assert hand.state.phase == "running"


def test_deaths_are_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "WINDOW_S", 30.0)  # an hour of ticks takes long
    hand = _hand()
    for step in (10, 20):
        _die(hand, 1, step)
    hand.wait(31.0)
    assert "node_flaky" not in events(_die(hand, 1, 30))


def test_what_happens_on_every_node_is_nobodys_fault() -> None:
    hand = _hand()
    actions = [a for step in (10, 20, 30, 40) for rank in (0, 1) for a in _die(hand, rank, step)]
    assert "node_flaky" not in events(actions)


@pytest.mark.parametrize("nodes", [(0, 1), (1,)], ids=["on all nodes", "at one step"])
def test_an_exception_of_the_code_is_for_the_brake(nodes: tuple[int, ...]) -> None:
    hand = _hand()
    actions = [
        action
        for number in range(4)
        for rank in nodes
        for action in _fail(hand, rank, 10 if len(nodes) == 1 else 10 + number, "ValueError: odd")
    ]
    assert "node_flaky" not in events(actions)


def test_different_exceptions_at_different_steps_on_one_node_are_the_nodes() -> None:
    hand = _hand()
    details = ("CUDA error: device lost", "CUDA error: ECC", "RuntimeError: wrong digest")
    steps = (10, 25, 37)
    actions = [a for d, step in zip(details, steps, strict=True) for a in _fail(hand, 1, step, d)]
    assert "node_flaky" in events(actions)


def test_a_successor_counts_on() -> None:
    hand = _hand()
    for step in (10, 20):
        _die(hand, 1, step)
    again = Hand(rank_nodes=ONE_EACH, generation=9, memory=hand.state.memory).run_again(30)
    assert "node_flaky" in events(_die(again, 1, 40))
