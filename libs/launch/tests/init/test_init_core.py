"""What an init decides, event by event, on a clock of the test."""

from __future__ import annotations

import signal

import pytest
from headway.common.decide import Action, Event, Log
from headway.common.node.process import ProcessId
from headway.launch.init.core import (
    FROZEN,
    BeatReceived,
    Core,
    Ended,
    Exit,
    ForwardSigterm,
    Kill,
    Limits,
    Looked,
    NotStarted,
    Start,
    Started,
    StopRequested,
)

LIMITS = Limits()
LOOK_S = 0.25


class Hand:
    """A core, a clock, and the pids that executors get."""

    def __init__(self) -> None:
        self.core, self.now, self.pid = Core(), 1000.0, 100
        self.logs: list[Log] = []

    def send(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.logs += [action for action in actions if isinstance(action, Log)]
        return [action for action in actions if not isinstance(action, Log)]

    def start(self, **facts: bool | float) -> None:
        """Answer a ``Start``."""
        self.pid += 1
        assert self.send(Started(ProcessId(self.pid, 1), **facts)) == []  # type: ignore[arg-type]

    def up(self) -> Hand:
        """With an executor that beats."""
        assert self.send(Looked()) == [Start()]
        self.start()
        assert self.send(BeatReceived()) == []
        return self

    def wait(self, seconds: float, state: str = "S", *, beats: bool = True) -> list[Action]:
        """Let time pass with a look four times a second; the actions that followed."""
        found: list[Action] = []
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            found += self.send(BeatReceived()) if beats else []
            found += self.send(Looked(state))
        return found

    def wait_for_start(self, limit_s: float = 60.0) -> float:
        """Seconds until a start is due."""
        begin = self.now
        while self.now - begin < limit_s:
            if Start() in self.wait(LOOK_S, "", beats=False):
                return self.now - begin
        raise AssertionError("no start is due")


def test_a_healthy_executor_is_left_alone() -> None:
    assert Hand().up().wait(300.0) == []


def test_the_first_end_is_followed_by_a_start_at_once() -> None:
    hand = Hand().up()
    hand.wait(3.0)
    assert hand.send(Ended(-9, "no memory left")) == [Start()]
    fields = hand.logs[-1].fields
    assert fields["reason"] == "it was killed by SIGKILL"
    assert fields["last_line"] == "no memory left"


def test_one_that_dies_early_again_and_again_is_started_with_growing_pauses() -> None:
    hand = Hand().up()
    assert hand.send(Ended(1)) == [Start()]
    pauses = []
    for _ in range(7):
        hand.start()
        assert hand.send(Ended(1)) == []
        pauses.append(hand.wait_for_start())
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_after_a_healthy_while_the_next_end_is_a_first_one_again() -> None:
    hand = Hand().up()
    for _ in range(4):
        if Start() not in hand.send(Ended(1)):
            hand.wait_for_start()
        hand.start()
    hand.wait(LIMITS.healthy_s)
    assert hand.send(Ended(1)) == [Start()]
    hand.start()
    assert hand.send(Ended(1)) == []
    assert hand.wait_for_start() == LIMITS.first_pause_s


def test_exit_code_0_is_the_end_of_the_init_too_and_nothing_follows() -> None:
    hand = Hand().up()
    assert hand.send(Ended(0)) == [Exit(0)]
    assert hand.wait(60.0, "") == []


@pytest.mark.parametrize("code", [1, 2, 137, -6, -15, None])
def test_every_other_end_is_unexpected(code: int | None) -> None:
    assert Hand().up().send(Ended(code)) == [Start()]


@pytest.mark.parametrize("state", ["T", FROZEN])
def test_one_that_is_stopped_or_frozen_is_killed_once_and_replaced(state: str) -> None:
    hand = Hand().up()
    assert hand.wait(LIMITS.stuck_s, state, beats=False) == []
    assert hand.wait(LOOK_S, state, beats=False) == [Kill()]
    assert hand.wait(5.0, state, beats=False) == []
    assert hand.send(Ended(-9)) == [Start()]
    assert hand.logs[-1].fields["reason"] in ("it is stopped", "its control group is frozen")


@pytest.mark.parametrize("state", ["T", FROZEN])
def test_one_that_beats_between_its_stops_lives(state: str) -> None:
    hand = Hand().up()
    for _ in range(30):
        assert hand.wait(1.0, state, beats=False) == []
        assert hand.send(BeatReceived()) == []


@pytest.mark.parametrize("state", ["S", "R", "D"])
def test_one_whose_loop_is_silent_is_killed(state: str) -> None:
    hand = Hand().up()
    assert hand.wait(LIMITS.silent_s - LOOK_S, state, beats=False) == []
    assert hand.wait(LOOK_S, state, beats=False) == [Kill()]
    assert hand.send(Ended(None)) == [Start()]


def test_exit_code_0_of_one_that_was_killed_for_hanging_is_not_what_was_asked() -> None:
    hand = Hand().up()
    assert hand.wait(LIMITS.silent_s, beats=False) == [Kill()]
    assert hand.send(Ended(0)) == [Start()]


def test_one_that_a_debugger_holds_lives() -> None:
    hand = Hand().up()
    assert hand.wait(600.0, "t", beats=False) == []
    assert hand.wait(LIMITS.silent_s - LOOK_S, beats=False) == []


def test_a_start_may_take_longer_than_a_pause_between_beats() -> None:
    hand = Hand()
    hand.send(Looked())
    hand.start()
    assert hand.wait(LIMITS.start_s - LOOK_S, beats=False) == []
    assert hand.wait(LOOK_S, beats=False) == [Kill()]


def test_an_adopted_one_that_is_old_has_no_time_to_start() -> None:
    hand = Hand()
    hand.send(Looked())
    hand.start(is_adopted=True, age_s=500.0)
    assert hand.wait(LIMITS.silent_s - LOOK_S, beats=False) == []
    assert hand.wait(LOOK_S, beats=False) == [Kill()]


def test_an_adopted_one_that_has_no_pipe_is_judged_by_its_state_alone() -> None:
    hand = Hand()
    hand.send(Looked())
    hand.start(is_adopted=True, age_s=5.0, sends_beats=False)
    assert hand.wait(600.0, beats=False) == []
    assert hand.wait(LIMITS.stuck_s + LOOK_S, "T", beats=False) == [Kill()]


@pytest.mark.parametrize("state", ["S", "T", FROZEN])
@pytest.mark.parametrize("stall_s", [1.5, 30.0, 86400.0])
def test_after_a_stall_of_its_own_every_limit_starts_anew(state: str, stall_s: float) -> None:
    hand = Hand().up()
    silent_s = LIMITS.silent_s if state == "S" else LIMITS.stuck_s
    assert hand.wait(silent_s - LOOK_S, state, beats=False) == []
    hand.now += stall_s
    assert hand.send(Looked(state)) == []
    assert hand.wait(silent_s - LOOK_S, state, beats=False) == []
    assert hand.wait(3 * LOOK_S, state, beats=False) == [Kill()]


def test_stalls_again_and_again_do_not_lengthen_a_pause_for_ever() -> None:
    hand = Hand().up()
    hand.send(Ended(1))
    hand.start()
    assert hand.send(Ended(1)) == []
    hand.now += 100.0
    assert hand.send(Looked()) == []
    assert hand.wait_for_start() <= LIMITS.first_pause_s


def test_a_planned_end_is_passed_on_and_nothing_starts_again() -> None:
    hand = Hand().up()
    assert hand.send(StopRequested("SIGTERM")) == [ForwardSigterm()]
    assert hand.wait(5.0) == []
    assert hand.send(StopRequested("SIGINT")) == [ForwardSigterm()], (
        "a second one cuts open work short"
    )
    assert hand.send(Ended(0)) == [Exit(0)]


@pytest.mark.parametrize(("code", "own"), [(0, 0), (-signal.SIGTERM, 0), (1, 1), (-9, 1)])
def test_the_exit_code_of_a_planned_end_says_whether_the_executor_ended_well(
    code: int, own: int
) -> None:
    hand = Hand().up()
    hand.send(StopRequested("SIGTERM"))
    assert hand.send(Ended(code)) == [Exit(own)]


def test_one_that_does_not_end_when_asked_is_killed() -> None:
    hand = Hand().up()
    hand.send(StopRequested("SIGTERM"))
    assert hand.wait(LIMITS.end_s - LOOK_S) == []
    assert hand.wait(LOOK_S) == [Kill()]
    assert hand.send(Ended(-9)) == [Exit(1)]


def test_asked_to_end_while_there_is_no_executor_it_ends_at_once() -> None:
    hand = Hand().up()
    hand.send(Ended(1))
    hand.send(NotStarted("no program"))
    assert hand.send(StopRequested("SIGTERM")) == [Exit(0)]


def test_a_start_that_fails_is_tried_again_with_pauses_and_logged_once() -> None:
    hand = Hand()
    assert hand.send(Looked()) == [Start()]
    pauses = []
    for _ in range(3):
        assert hand.send(NotStarted("no program")) == []
        pauses.append(hand.wait_for_start())
    assert pauses == [0.25, 0.5, 1.0]
    assert [log.event for log in hand.logs] == ["no executor can be started"]


def test_it_ends_when_the_clusters_folder_is_gone_for_long_and_not_before() -> None:
    hand, begin = Hand(), 1000.0
    hand.send(Looked())
    actions: list[Action] = []
    while not actions:
        actions = hand.send(NotStarted("no folder", is_gone=True))
        if not actions:
            hand.wait_for_start()
    assert actions == [Exit(1)]
    assert hand.now - begin >= LIMITS.gone_s
