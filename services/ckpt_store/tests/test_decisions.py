"""The pure decisions: any order of events, with a model of disk and arenas beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headway.ckpt_store.attempts import Attempt
from headway.ckpt_store.events import (
    Announce,
    ArenasSeen,
    Check,
    DropParts,
    EmptyTrash,
    FlushSlot,
    FolderSeen,
    Job,
    JobDone,
    JobFailed,
    ReleaseSlot,
    Remove,
    Report,
    Slot,
    WriteManifest,
)
from headway.ckpt_store.folder import FolderView
from headway.ckpt_store.retention import LATER_ATTEMPTS, dead_attempts, newest_complete, removable
from headway.ckpt_store.state import RETRY_S, State, decide
from hypothesis import given, settings
from hypothesis import strategies as st

JOBS = (FlushSlot, WriteManifest, DropParts, Check, Remove, EmptyTrash)
SLOT = Slot(step=10, generation=0, rank=0, seal=1)


def attempt(
    step: int, generation: int = 0, *, complete: bool = True, ranks: int = 1, marked: bool = False
) -> Attempt:
    return Attempt(
        step, generation, frozenset(range(ranks)), 2 if not complete else None, complete, marked
    )


def view(
    *attempts: Attempt, marks: dict[int, int] | None = None, trash: tuple[str, ...] = ()
) -> FolderView:
    return FolderView(tuple(sorted(attempts, key=lambda a: a.key)), marks or {}, trash)


def run(state: State, *events: Any, now_s: float = 0.0) -> tuple[State, list[Any]]:
    actions: list[Any] = []
    for event in events:
        state, more = decide(state, event, now_s)
        actions += more
    return state, actions


def test_nothing_is_flushed_before_the_folder_is_known() -> None:
    state, actions = run(State(keep=3), ArenasSeen(frozenset({0}), (SLOT,)))
    assert actions == []
    _, actions = run(state, FolderSeen(view()))
    assert actions == [FlushSlot(SLOT)]


def test_a_flushed_slot_is_released_once_and_then_the_step_is_committed() -> None:
    state, actions = run(
        State(keep=3),
        ArenasSeen(frozenset({0}), (SLOT,)),
        FolderSeen(view()),
        JobDone(FlushSlot(SLOT)),
    )
    assert actions == [FlushSlot(SLOT), ReleaseSlot(SLOT)]
    state, actions = run(state, FolderSeen(view(attempt(10, complete=False, ranks=2))))
    assert actions == [WriteManifest((10, 0))]
    _, actions = run(state, JobDone(WriteManifest((10, 0))), FolderSeen(view(attempt(10))))
    assert actions == [Announce((10, 0))]


def test_the_oldest_wanted_snapshot_goes_first_and_one_at_a_time() -> None:
    slots = (replace(SLOT, step=20), replace(SLOT, rank=1), SLOT)
    state, actions = run(State(keep=3), ArenasSeen(frozenset({0, 1}), slots), FolderSeen(view()))
    assert actions == [FlushSlot(SLOT)]
    _, actions = run(state, ArenasSeen(frozenset({0, 1}), slots))
    assert actions == []


def test_on_a_full_disk_the_attempt_is_given_up_and_reported_and_its_slots_are_released() -> None:
    other = replace(SLOT, rank=1)
    state, _ = run(State(keep=3), ArenasSeen(frozenset({0, 1}), (SLOT, other)), FolderSeen(view()))
    state, actions = run(
        state, JobFailed(FlushSlot(SLOT), "disk full", "free space", is_no_space=True)
    )
    assert actions == [
        Report("no_space", "disk full", "free space", (10, 0)),
        ReleaseSlot(SLOT),
        ReleaseSlot(other),
        DropParts((10, 0), (0, 1), gave_up=True),
    ]
    later = replace(SLOT, step=20)
    _, actions = run(
        state,
        JobDone(DropParts((10, 0), (0, 1))),
        ArenasSeen(frozenset({0, 1}), (later,)),
        FolderSeen(view()),
    )
    assert actions == [FlushSlot(later)]


def test_a_withdrawn_snapshot_is_no_trouble() -> None:
    state, _ = run(State(keep=3), ArenasSeen(frozenset({0}), (SLOT,)), FolderSeen(view()))
    _, actions = run(state, JobFailed(FlushSlot(SLOT), "overwritten", is_stale=True))
    assert actions == [ReleaseSlot(SLOT)]


@pytest.mark.parametrize(
    "folder",
    [
        view(attempt(10)),  # complete already: the daemon died between manifest and release
        view(attempt(20)),  # a later step is complete
        view(attempt(10, 1)),  # done again by a newer generation
        view(marks={1: 5}),  # a newer generation went on from before it
    ],
)
def test_a_snapshot_that_leads_nowhere_is_released_without_a_flush(folder: FolderView) -> None:
    _, actions = run(State(keep=3), ArenasSeen(frozenset({1}), (SLOT,)), FolderSeen(folder))
    assert ReleaseSlot(SLOT) in actions
    assert not any(isinstance(action, FlushSlot) for action in actions)


def test_a_snapshot_of_an_older_generation_is_flushed_if_the_newer_one_went_on_from_it() -> None:
    _, actions = run(
        State(keep=3), ArenasSeen(frozenset({0}), (SLOT,)), FolderSeen(view(marks={1: 10}))
    )
    assert actions == [FlushSlot(SLOT)]


def test_a_superseded_step_is_not_committed_even_with_all_its_parts() -> None:
    folder = view(attempt(10, complete=False, ranks=2), marks={1: 5})
    _, actions = run(State(keep=3), ArenasSeen(frozenset({1}), ()), FolderSeen(folder))
    assert actions == []


def test_old_checkpoints_go_only_after_the_newest_was_read_back() -> None:
    folder = FolderSeen(view(*(attempt(step) for step in (1, 2, 3, 4))))
    state, actions = run(State(keep=3), ArenasSeen(frozenset({0}), ()), folder)
    assert actions == [Announce((4, 0)), Check((4, 0))]
    state, actions = run(state, JobDone(Check((4, 0))))
    assert actions == [Remove((1, 0))]
    _, actions = run(
        state, JobDone(Remove((1, 0))), FolderSeen(view(*(attempt(step) for step in (2, 3, 4))))
    )
    assert actions == []


def test_a_corrupt_newest_checkpoint_stops_removals_until_there_is_a_sound_one() -> None:
    folder = view(*(attempt(step) for step in (1, 2, 3, 4)))
    state, _ = run(State(keep=2), ArenasSeen(frozenset({0}), ()), FolderSeen(folder))
    state, actions = run(state, JobFailed(Check((4, 0)), "chunk 0 wrong"), FolderSeen(folder))
    assert [action.code for action in actions if isinstance(action, Report)] == ["corrupt"]
    assert not any(isinstance(action, Remove | Check) for action in actions)
    newer = view(*folder.attempts, attempt(5))
    state, actions = run(state, FolderSeen(newer))
    assert actions == [Announce((5, 0)), Check((5, 0))]
    _, actions = run(state, JobDone(Check((5, 0))))
    assert actions == [Remove((1, 0))]  # the corrupt one does not count as kept: 3 and 5 stay


def test_a_failed_commit_is_tried_again_after_a_pause() -> None:
    ready = FolderSeen(view(attempt(10, complete=False, ranks=2)))
    state, _ = run(State(keep=3), ArenasSeen(frozenset({0}), ()), ready)
    state, actions = run(state, JobFailed(WriteManifest((10, 0)), "read-only"), ready, now_s=100.0)
    assert [type(action) for action in actions] == [Report]
    state, actions = run(state, ready, now_s=100.0 + RETRY_S / 2)
    assert actions == []
    _, actions = run(state, ready, now_s=100.0 + RETRY_S)
    assert actions == [WriteManifest((10, 0))]


def test_only_the_node_of_rank_0_removes() -> None:
    folder = FolderSeen(view(*(attempt(step) for step in range(9)), trash=("x",)))
    _, actions = run(State(keep=3), ArenasSeen(frozenset({1, 2}), ()), folder)
    assert actions == [Announce((8, 0))]


def test_a_node_without_part_in_the_newest_generation_leaves_the_folder_alone() -> None:
    """As on a machine that is cut off: the run continues on others, and both see the folder."""
    older = [attempt(step) for step in range(9)]
    folder = view(*older, attempt(12, 1, complete=False, ranks=2), marks={1: 8}, trash=("x",))
    cut_off = ArenasSeen(frozenset({0}), (), generation=0)
    state, actions = run(State(keep=3), cut_off, FolderSeen(folder))
    assert actions == [Announce((8, 0))]
    takes_part = ArenasSeen(frozenset({0}), (), generation=1)
    state, actions = run(state, takes_part)
    assert actions == [WriteManifest((12, 1))]
    _, actions = run(state, JobDone(WriteManifest((12, 1))), FolderSeen(view(*older, marks={1: 8})))
    assert actions == [Check((8, 0))]


attempts = st.lists(
    st.builds(
        lambda step, generation, is_complete, marked: attempt(
            step, generation, complete=is_complete, marked=marked
        ),
        st.integers(0, 8),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda a: a.key,
)
marks = st.dictionaries(st.integers(1, 3), st.integers(-1, 8), max_size=3)
keys = st.frozensets(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=3)


@given(attempts=attempts, marks=marks, keep=st.integers(1, 4), corrupt=keys)
def test_retention_never_removes_the_newest_complete_one_nor_a_marked_one(
    attempts: list[Attempt], marks: dict[int, int], keep: int, corrupt: frozenset[tuple[int, int]]
) -> None:
    folder = view(*attempts, marks=marks)
    gone = removable(folder, keep, corrupt)
    newest = newest_complete(folder, corrupt)
    assert newest not in gone
    assert newest_complete(folder) not in gone or newest_complete(folder) in corrupt
    assert not any(a.is_marked for a in attempts if a.key in gone)
    left = [a for a in attempts if a.is_complete and a.key not in gone]
    good = {a.step for a in left if a.key not in corrupt}
    was_good = {a.step for a in attempts if a.is_complete and a.key not in corrupt}
    assert len(good) >= min(keep, len(was_good)) or marks


@given(attempts=attempts, marks=marks)
def test_an_attempt_that_may_still_be_the_newest_is_never_dead(
    attempts: list[Attempt], marks: dict[int, int]
) -> None:
    folder = view(*attempts, marks=marks)
    newest_generation = max([*(a.generation for a in attempts), *marks, 0])
    for step, generation in dead_attempts(folder):
        later = [a for a in attempts if a.generation >= generation and a.step > step]
        overtaken = any(a.is_complete for a in later)
        left_behind = len({a.step for a in later}) >= LATER_ATTEMPTS
        assert generation < newest_generation or overtaken or left_behind


class World:
    """One node that carries every rank, its disk, and a trainer that goes on."""

    def __init__(self, num_ranks: int, keep: int) -> None:
        self.num_ranks = num_ranks
        self.state = State(keep=keep)
        self.parts: dict[tuple[int, int], set[int]] = {}
        self.complete: set[tuple[int, int]] = set()
        self.wanted: dict[int, Slot] = {}
        self.job: Job | None = None
        self.best = -1
        self.seal = 0

    def want(self, step: int) -> None:
        for rank in range(self.num_ranks):
            if rank not in self.wanted:
                self.seal += 1
                self.wanted[rank] = Slot(step, 0, rank, self.seal)

    def feed(self, event: Any) -> None:
        self.state, actions = decide(self.state, event, 1e9)
        assert sum(isinstance(action, JOBS) for action in actions) <= 1
        for action in actions:
            if isinstance(action, ReleaseSlot):
                assert self.wanted.pop(action.slot.rank) == action.slot, (
                    "released twice, or another one's"
                )
            elif isinstance(action, JOBS):
                assert self.job is None, "two jobs at a time"
                self.job = action

    def scan(self) -> None:
        self.feed(ArenasSeen(frozenset(range(self.num_ranks)), tuple(self.wanted.values())))

    def look(self) -> None:
        found = [
            Attempt(*key, frozenset(ranks), self.num_ranks, key in self.complete)
            for key, ranks in self.parts.items()
        ]
        self.feed(FolderSeen(view(*found)))

    def finish(self, outcome: str) -> None:
        job, self.job = self.job, None
        if job is None:
            return
        if outcome != "done":
            self.feed(
                JobFailed(job, "no", is_no_space=outcome == "full", is_stale=outcome == "stale")
            )
        else:
            self.carry_out(job)
            self.feed(JobDone(job))
        self.look()

    def carry_out(self, job: Job) -> None:
        match job:
            case FlushSlot(slot):
                self.parts.setdefault(slot.key, set()).add(slot.rank)
            case WriteManifest(key):
                assert self.parts[key] == set(range(self.num_ranks))
                self.complete.add(key)
                self.best = max(self.best, key[0])
            case Remove(key):
                assert key != max(self.complete, default=None), "removed the newest"
                self.parts.pop(key)
                self.complete.discard(key)
            case DropParts(key, _) if key not in self.complete:
                self.parts.pop(key, None)


@settings(max_examples=150)
@given(
    num_ranks=st.integers(1, 3),
    keep=st.integers(1, 3),
    script=st.lists(
        st.sampled_from(
            ["want", "scan", "look", "done", "done", "done", "full", "stale", "restart"]
        ),
        max_size=60,
    ),
)
def test_whatever_happens_and_in_whatever_order_the_newest_stays_and_every_rank_gets_its_slot_back(
    num_ranks: int, keep: int, script: list[str]
) -> None:
    world = World(num_ranks, keep)
    for number, event in enumerate(script):
        if event == "want":
            world.want(number)
        elif event == "scan":
            world.scan()
        elif event == "look":
            world.look()
        elif event == "restart":
            world.state, world.job = State(keep=keep), None
        else:
            world.finish(event)
        assert world.best == max((step for step, _ in world.complete), default=-1)
    for _ in range(40 * num_ranks):  # left alone it comes to rest
        world.scan()
        world.look()
        world.finish("done")
    assert world.wanted == {}
    assert world.job is None
    assert len(world.complete) <= keep
