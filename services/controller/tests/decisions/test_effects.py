"""Actions that fail, come back late or not at all; the brake; and what a successor knows."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from headway.common.decide import Action, Done, Failed
from headway.common.wire.messages.executor import ToWorker
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.crash_loop import MAX_COUNTS, CrashLoopBreaker
from headway.controller.decisions.events import (
    BeginGeneration,
    CommandQueued,
    DurableFound,
    Finish,
    Memory,
    Remember,
    RestartNode,
)
from headway.testkit.simulation.by_hand import Hand, events, only, sent
from headway.testkit.simulation.driver import LIMITS


def _to_beginning() -> tuple[Hand, BeginGeneration]:
    hand = Hand()
    hand.gather()
    hand.read()
    return hand, only(hand.send(DurableFound(None)), BeginGeneration)


def test_no_worker_hears_of_a_generation_before_its_number_is_on_the_disk() -> None:
    hand, begin = _to_beginning()
    actions = hand.wait(5.0)
    assert not sent(actions, ToWorker)
    assert (hand.state.phase, hand.state.generation) == ("beginning", -1)
    actions = hand.send(Done(begin))
    assert len(sent(actions, ToWorker)) == 4
    assert (hand.state.phase, hand.state.generation) == ("joining", 0)


def test_a_generation_that_the_journal_cannot_take_is_begun_again_under_another_number() -> None:
    hand, begin = _to_beginning()
    for expected in range(1, 5):
        actions = hand.send(Failed(begin, "database or disk is full")) + hand.wait(8.0)
        begin = only(actions, BeginGeneration)
        assert begin.generation == expected, "a number that may be on the disk was used again"
    hand.send(Done(begin))
    assert hand.state.generation == 4


def test_a_journal_that_does_not_answer_is_asked_again_and_the_wait_is_said_aloud() -> None:
    hand, begin = _to_beginning()
    actions = hand.wait(30.0)
    assert "waiting" in events(actions)
    assert hand.state.why().startswith("the journal has not recorded generation")
    newest = [a for a in actions if isinstance(a, BeginGeneration)][-1]
    assert newest.generation > begin.generation
    assert not sent(hand.send(Done(begin)), ToWorker), "an older number was given out"
    assert sent(hand.send(Done(newest)), ToWorker)


def test_a_worker_that_dies_before_the_number_is_known_burns_it() -> None:
    hand, begin = _to_beginning()
    view = hand.workers[0][0]
    hand.send(hand.gone(0, view.worker, view.pid))
    hand.workers[0] = hand.workers[0][1:]
    assert hand.state.phase in ("gathering", "reading")
    assert not sent(hand.send(Done(begin)), ToWorker)
    hand.beat(0)
    hand.read()
    assert only(hand.send(DurableFound(None)), BeginGeneration).generation == 1


def test_the_end_of_the_run_is_repeated_until_it_is_recorded() -> None:
    hand = Hand().run()
    hand.send(Done(Remember(hand.state.memory)))
    for views in hand.workers.values():
        for index, view in enumerate(views):
            if view.rank >= 0:
                hand.change(view.pid // 100 - 1, index, status="finished", step=100)
    hand.step = 100
    actions = hand.beat(0) + hand.beat(1)
    end = only(actions, Finish)
    assert end == Finish("finished", "")
    actions = hand.send(Failed(end, "disk is full")) + hand.wait(1.0)
    assert only(actions, Finish) == end
    assert "cannot be recorded yet: disk is full" in hand.state.why()
    hand.send(Done(end))
    assert hand.wait(120.0) == []


def test_memory_is_kept_before_what_follows_from_it_and_again_until_it_is() -> None:
    hand = Hand().run()
    actions = hand.send(hand.left(1, detail="ValueError: labels"))
    assert isinstance(actions[0], Remember)
    assert actions[0].memory.causes == (
        ("ValueError: labels", "rank 1 failed: ValueError: labels"),
    )
    hand.send(Failed(actions[0], "disk is full"))
    repeated = [a for a in hand.wait(1.0) if isinstance(a, Remember)]
    assert repeated == [actions[0]]
    hand.send(Done(actions[0]))
    assert actions[0] not in hand.wait(15.0)


def test_a_failure_that_also_takes_the_driver_ends_the_run_after_max_crashes() -> None:
    limits = dataclasses.replace(LIMITS, max_crashes=3)
    memory, generation, actions = Memory(), -1, list[Action]()
    for _ in range(3):
        hand = Hand(limits=limits, memory=memory, generation=generation).run_again()
        actions = hand.send(hand.left(1, detail="ValueError: labels"))
        memory, generation = only(actions, Remember).memory, hand.state.generation
    hand = Hand(limits=limits, memory=memory, generation=generation)
    hand.gather()
    hand.read(5)
    finish = only(hand.send(DurableFound(None)), Finish)
    assert finish.detail == "rank 1 failed: ValueError: labels (3 times at step 5)"


def test_endless_recoveries_at_one_step_end_the_run_with_the_last_reason() -> None:
    crash_loop = CrashLoopBreaker(max_crashes=5)
    ends = []
    for number in range(20):
        crash_loop.fenced(f"a peer's socket broke at port {number}", is_counted=True)
        ends.append(crash_loop.count(7))
    assert ends[:-1] == [""] * 19
    assert ends[-1] == "20 recoveries at step 7, the last: a peer's socket broke at port 19"


def test_a_drivers_death_and_a_bad_copy_are_no_crashes_of_the_code() -> None:
    crash_loop = CrashLoopBreaker(max_crashes=2)
    for _ in range(5):
        crash_loop.fenced("the driver was restarted in the middle of a recovery", is_counted=False)
        assert crash_loop.count(7) == ""
    for _ in range(5):
        crash_loop.fenced("rank 0 lost a peer", is_counted=True)
        crash_loop.bad_copy()
        assert crash_loop.count(7) == ""
    assert [signature for signature, _, _ in crash_loop.crashes] == [""]


def test_the_counts_of_a_long_run_stay_few() -> None:
    crash_loop = CrashLoopBreaker(max_crashes=5)
    for step in range(10 * MAX_COUNTS):
        crash_loop.blame(f"ValueError {step}", "x" * 10_000)
        crash_loop.count(step)
    assert len(crash_loop.crashes) == MAX_COUNTS
    assert CrashLoopBreaker(5, crash_loop.crashes).crashes == crash_loop.crashes


@pytest.mark.parametrize("error", ["", "no more processes"])
def test_restarts_of_a_silent_node_are_repeated_with_growing_pauses(error: str) -> None:
    hand = Hand(nodes=2).run()
    hand.silent.add(1)
    asked_at: list[float] = []
    for _ in range(3000):
        actions = hand.wait(0.1)
        if RestartNode(1) in actions:
            asked_at.append(hand.now)
            hand.send(Failed(RestartNode(1), error) if error else Done(RestartNode(1)))
    pauses = [round(b - a) for a, b in itertools.pairwise(asked_at)]
    assert len(pauses) >= 4
    assert pauses == sorted(pauses)
    assert not error or pauses[0] <= 1, "a start that failed left nothing that needs time"


def test_a_stop_that_makes_no_progress_ends_the_run_by_force() -> None:
    hand = Hand().run()
    hand.send(CommandQueued(Steer(sequence=1, operation="stop")))
    for _ in range(20):  # it still steps: patience
        hand.step += 1
        assert not [a for a in hand.wait(1.0) if isinstance(a, Finish)]
    actions = hand.wait(LIMITS.stop_timeout_s + 1.0)
    finish = only(actions, Finish)
    assert finish.outcome == "stopped"
    assert re.fullmatch(r"ended by force after \d\d s: its ranks step no more", finish.detail)


def test_a_stop_ends_a_run_that_waits_for_a_node() -> None:
    hand = Hand(nodes=2)
    hand.workers[0] = []
    hand.gather()
    hand.send(CommandQueued(Steer(sequence=1, operation="stop")))
    finish = only(hand.wait(LIMITS.stop_timeout_s + 1.0), Finish)
    why = "node 0 has no worker for ranks 0, 1; waited for 4 s, the run ends after 100 s"
    assert finish.detail == f"ended by force after 10 s: {why}"
