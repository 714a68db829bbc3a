"""What ``headway status`` shows as the reason of a wait;
and that the invariants see what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest
from headway.common.decide import Failed
from headway.controller.decisions.core import Core
from headway.controller.decisions.effects import RETRY_S, Effects
from headway.controller.decisions.events import (
    BeginGeneration,
    DurableFound,
    EvictNode,
    FindDurable,
    Finish,
    ReleaseNode,
    RestartNode,
    Tick,
)
from headway.controller.decisions.invariants import check
from headway.testkit.simulation.by_hand import Hand, events, only
from headway.testkit.simulation.driver import LIMITS


def test_one_silent_node_has_not_reported_and_two_have_not() -> None:
    hand = Hand().run()
    hand.silent = {0}
    hand.wait(2.0)
    while hand.state.status_of(0) != "silent":
        hand.wait(0.5)
    view = hand.workers[1][0]
    hand.send(hand.gone(1, view.worker, view.pid))
    hand.leave()
    assert hand.state.phase == "gathering"
    assert hand.state.why().startswith("node 0 has not reported for ")
    hand.silent = {0, 1}
    while hand.state.status_of(1) != "silent":
        hand.wait(0.5)
    assert hand.state.why().startswith("nodes 0, 1 have not reported for ")


def test_loading_torch_is_said_with_its_time_before_the_first_worker() -> None:
    hand = Hand()
    loading = {"workers": (), "trouble": "no worker can be forked yet"}
    hand.beat(0, loading_s=20.0, **loading)
    hand.beat(1, loading_s=21.0, **loading)
    hand.beat(2)
    assert hand.state.why() == "loading torch on nodes 0, 1 (21 s)" and hand.state.is_loading
    hand.send(Tick(), after_s=1.0)
    assert hand.state.why() == "loading torch on nodes 0, 1 (22 s)"
    hand.beat(0, workers=(), trouble="forks fail")
    assert hand.state.why() == "node 0 has no worker for ranks 0, 1: forks fail"
    assert not hand.state.is_loading
    hand.beat(0)
    assert hand.state.why() == "loading torch on node 1 (22 s)"


@pytest.mark.parametrize(
    ("stops", "sentence"), [(True, "the run was stopped"), (False, "the run has failed")]
)
def test_how_a_run_ended_is_said_with_what_keeps_it_from_being_recorded(
    stops: bool, sentence: str
) -> None:
    hand = Hand().run()
    core: Core = hand.state
    (finish,) = core.finish("stopped" if stops else "failed")
    assert hand.state.why() == sentence
    assert isinstance(finish, Finish)
    hand.send(Failed(finish, "disk is full"))
    assert hand.state.why() == f"{sentence}; that cannot be recorded yet: disk is full"


def test_only_a_node_of_the_run_can_be_evicted() -> None:
    hand = Hand().run()
    assert hand.state.eviction_refusal(0) == ""
    assert hand.state.eviction_refusal(2) == ""
    assert hand.state.eviction_refusal(7) == "node 7 is not in the run"
    hand.send(EvictNode(2))
    assert hand.state.eviction_refusal(2) == "node 2 is not in the run"
    assert hand.state.eviction_refusal(0) == "no spare is ready for node 0"


def test_a_spare_that_was_given_up_can_be_evicted_and_not_drained() -> None:
    hand = Hand().run()
    hand.silent = {2}
    for _ in range(round(LIMITS.node_lost_s) + 1):
        for action in hand.wait(1.0):
            if isinstance(action, RestartNode):
                hand.send(Failed(action, "it cannot be reached"))
    assert hand.state.status_of(2) == "lost"
    assert hand.state.drain_refusal(2) == "node 2 is lost already"
    assert hand.state.eviction_refusal(2) == ""
    assert only(hand.send(EvictNode(2)), ReleaseNode) == ReleaseNode(2)


def test_an_answer_counts_once_and_only_for_the_newest_question() -> None:
    hand = Hand()
    effects = Effects(hand.state.clock)
    first, second = BeginGeneration(0, {}, 0), BeginGeneration(1, {}, 0)
    assert not effects.settle(first), "never asked"
    effects.ask(first)
    effects.ask(second)
    assert not effects.settle(first), "asked before the newest"
    assert effects.settle(second, "disk is full")
    assert not effects.settle(second), "answered already"
    assert effects.error(BeginGeneration) == "disk is full"


def test_a_failed_action_is_due_again_after_a_pause_that_doubles() -> None:
    hand = Hand()
    clock = hand.state.clock
    effects = Effects(clock)
    pauses = []
    for _ in range(8):
        effects.ask(FindDurable())
        effects.settle(FindDurable(), "unreachable")
        began = clock.now
        while not effects.due(FindDurable):
            clock.now += RETRY_S / 4
        pauses.append(clock.now - began)
    assert pauses == [RETRY_S * 2**number for number in range(4)] + [5.0] * 4
    effects.ask(FindDurable())
    effects.settle(FindDurable())
    clock.now += 1000.0
    assert not effects.due(FindDurable), "it was done"
    assert effects.due(FindDurable, again_s=5.0)
    assert effects.due(RestartNode, 1), "never asked"


def test_the_same_failure_at_the_same_step_waits_longer_each_time_and_a_first_one_not_at_all() -> (
    None
):
    hand = Hand(limits=dataclasses.replace(LIMITS, max_crashes=5)).run()
    pauses, logged = [], list[str]()
    for _ in range(4):
        hand.send(hand.left(1, detail="ValueError: labels"))
        hand.leave()
        hand.read(5)
        began, actions = hand.now, hand.send(DurableFound(None))
        first = actions
        while not any(isinstance(action, BeginGeneration) for action in actions):
            why = hand.state.why()
            assert "before the next attempt: rank 1 failed: ValueError: labels (" in why
            actions = hand.wait(0.1)
        pauses.append(hand.now - began)
        logged += events(first)
        hand.begin(actions)
        hand.join(6)
    assert pauses == pytest.approx([0.0, 0.5, 2.0, 8.0], abs=0.2)
    assert logged.count("pause_before_retry") == 3


def _vacant(core: Core) -> None:
    core.members.vacant[0] = None


def _over(core: Core) -> None:
    core.outcome = "failed"


def _numbered(core: Core) -> None:
    core.numbered = core.generation - 1


def _another_generation(core: Core) -> None:
    core.members.generation -= 1


def _spare(core: Core) -> None:
    core.fleet.spares.clear()


def _home(core: Core) -> None:
    core.fleet.home["n9w9"] = 0


def _inside(core: Core) -> None:
    core.fleet.inside.popitem()


def _doomed(core: Core) -> None:
    core.fleet.marked_for_kill["n0w0"] = 0


def _unreachable(core: Core) -> None:
    core.fleet.unreachable[0] = None


def _lost_carriers(core: Core) -> None:
    core.fleet.lost_carriers[0] = None


def _barred(core: Core) -> None:
    core.fleet.excluded[2] = None


def _counted(core: Core) -> None:
    core.members.statuses["running"] -= 1


def _paused(core: Core) -> None:
    core.members.num_paused += 1


def _twice(core: Core) -> None:
    core.members.workers[1] = core.members.workers[0]


def _ranks(core: Core) -> None:
    core.fleet.nodes[0].ranks = (0,)


@pytest.mark.parametrize(
    "damage",
    [
        _vacant,
        _over,
        _numbered,
        _another_generation,
        _spare,
        _home,
        _inside,
        _doomed,
        _unreachable,
        _lost_carriers,
        _barred,
        _counted,
        _paused,
        _twice,
        _ranks,
    ],
)
def test_the_invariants_see(damage: Callable[[Core], None]) -> None:
    core = Hand().run().state
    check(core)
    damage(core)
    with pytest.raises(AssertionError):
        check(core)


def test_the_invariants_see_a_run_that_runs_without_all_its_ranks() -> None:
    hand = Hand().run()
    core = hand.state
    view = hand.workers[0][0]
    core.fleet.nodes[0].workers[view.worker] = msgspec.structs.replace(view, status="idle")
    core.fleet.inside.pop(view.worker)
    core.members.update(0, core.fleet.worker(view.worker))
    with pytest.raises(AssertionError, match="running with"):
        check(core)
