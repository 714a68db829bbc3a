"""The pure decisions about attempts that are never completed, and about a folder
that cannot be listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.ckpt_store.attempts import Attempt
from headway.ckpt_store.events import (
    ArenasSeen,
    DropParts,
    FlushSlot,
    FolderSeen,
    FolderUnseen,
    JobDone,
    JobFailed,
    ReleaseSlot,
    Remove,
    Report,
    Slot,
)
from headway.ckpt_store.folder import FolderView
from headway.ckpt_store.retention import dead_attempts
from headway.ckpt_store.state import State, decide

SLOT = Slot(step=10, generation=0, rank=0, seal=1)


def complete(step: int) -> Attempt:
    return Attempt(step, 0, frozenset({0}), None, True)


def cut_short(step: int, *ranks: int, gave_up: bool = False) -> Attempt:
    return Attempt(step, 0, frozenset(ranks), 4, False, has_given_up=gave_up)


def view(*attempts: Attempt, marks: dict[int, int] | None = None) -> FolderView:
    return FolderView(tuple(sorted(attempts, key=lambda a: a.key)), marks or {})


def run(state: State, *events: Any) -> tuple[State, list[Any]]:
    actions: list[Any] = []
    for event in events:
        state, more = decide(state, event, 0.0)
        actions += more
    return state, actions


def test_attempts_that_one_node_never_completes_do_not_pile_up() -> None:
    folder = view(complete(0), *(cut_short(50 * k, 0, 1, 2) for k in range(1, 9)))
    assert dead_attempts(folder) == [(50 * k, 0) for k in range(1, 7)]
    wanted = [(450, 0), (500, 0)]  # on a full disk later ones may leave no trace
    assert dead_attempts(folder, wanted) == [(50 * k, 0) for k in range(1, 9)]


def test_a_note_that_a_rank_gave_up_kills_the_attempt_at_once() -> None:
    assert dead_attempts(view(cut_short(50, 0, 1, gave_up=True))) == [(50, 0)]
    assert dead_attempts(view(cut_short(50, 0, 1))) == []
    assert dead_attempts(view(cut_short(50, 0, 1, 2, 3, gave_up=True))) == []


def test_what_others_left_unfinished_keeps_no_rank_from_its_checkpoint() -> None:
    slot = replace(SLOT, step=20, rank=1)
    for left in (
        (cut_short(20, 0, gave_up=True),),
        (cut_short(20, 0), cut_short(30, 0), cut_short(40, 0)),
    ):
        state, actions = run(State(keep=3), FolderSeen(view(*left)))
        _, actions = run(state, ArenasSeen(frozenset({1}), (slot,)))
        assert actions == [FlushSlot(slot)]


def test_later_attempts_of_another_start_of_the_job_do_not_count() -> None:
    ours = replace(cut_short(20, 0), incarnation="b")
    others = [replace(cut_short(step, 0), incarnation="a") for step in (30, 40, 50)]
    assert dead_attempts(view(ours, *others)) == [(30, 0)]


def test_a_step_that_is_saved_again_after_it_was_given_up_is_flushed() -> None:
    state, _ = run(State(keep=3), FolderSeen(view()), ArenasSeen(frozenset({0}), (SLOT,)))
    state, actions = run(state, JobFailed(FlushSlot(SLOT), "disk full", is_no_space=True))
    assert [type(action) for action in actions] == [Report, ReleaseSlot, DropParts]
    state, actions = run(state, JobDone(actions[-1]), FolderSeen(view()))
    other = replace(SLOT, rank=1)  # of the same attempt: it is given up as a whole
    state, actions = run(state, ArenasSeen(frozenset({0, 1}), (other,)))
    assert actions == [ReleaseSlot(other)]
    again = replace(SLOT, seal=SLOT.seal + 1)
    _, actions = run(state, ArenasSeen(frozenset({0, 1}), (again,)))
    assert actions == [FlushSlot(again)]


def test_a_node_without_rank_0_drops_its_own_parts_once_and_says_who_was_missing() -> None:
    folder = view(*(cut_short(50 * k, 0, 1) for k in range(1, 4)))
    state, actions = run(State(keep=3), ArenasSeen(frozenset({1}), ()), FolderSeen(folder))
    report, job = actions
    assert isinstance(report, Report)
    assert (report.code, report.key) == ("incomplete", (50, 0))
    assert "ranks [2, 3]" in report.message
    assert job == DropParts((50, 0), (1,))
    _, actions = run(state, JobDone(job), FolderSeen(folder))  # it could not be removed either
    assert actions == []


def test_the_node_of_rank_0_removes_the_folder_of_a_dead_attempt_and_names_the_missing() -> None:
    folder = view(*(cut_short(50 * k, 0, 1) for k in range(1, 4)))
    _, actions = run(State(keep=3), ArenasSeen(frozenset({0}), ()), FolderSeen(folder))
    assert [type(action) for action in actions] == [Report, Remove]


def test_a_folder_that_cannot_be_listed_is_reported_once_and_snapshots_are_flushed() -> None:
    unseen = FolderUnseen("cannot be listed", "look")
    state, actions = run(State(keep=3), ArenasSeen(frozenset({0}), (SLOT,)), unseen)
    assert actions == [Report("folder_unseen", "cannot be listed", "look"), FlushSlot(SLOT)]
    state, actions = run(state, JobDone(FlushSlot(SLOT)), unseen, unseen)
    assert actions == [ReleaseSlot(SLOT)]
    state, _ = run(state, FolderSeen(view()))
    _, actions = run(state, unseen)
    assert actions == [Report("folder_unseen", "cannot be listed", "look")]


def test_a_checkpoint_that_no_longer_counts_is_no_longer_announced() -> None:
    state, _ = run(State(keep=3), FolderSeen(view(complete(10))))
    assert state.announced == (10, 0)
    state, _ = run(state, FolderSeen(view(complete(10), marks={1: 5})))
    assert state.announced is None
