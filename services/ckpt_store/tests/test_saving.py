"""Which snapshot is made durable at an announced end, by stores that see only their own node."""

from __future__ import annotations

from headway.ckpt_store.events import Slot
from headway.ckpt_store.folder import Attempt, FolderView
from headway.ckpt_store.in_memory import Holding, candidates
from headway.ckpt_store.saving import LINGER_S, OTHERS_S, Saving


def holding(committed: int, *steps: int, generation: int = 0) -> Holding:
    return Holding(committed, frozenset((step, generation) for step in steps))


def attempt(step: int, *ranks: int, complete: bool = False, gave_up: bool = False) -> Attempt:
    return Attempt(step, 0, frozenset(ranks), 2, complete, has_given_up=gave_up)


EMPTY = FolderView()


def test_a_commit_of_one_rank_vouches_for_all() -> None:
    held = {0: holding(6, 6, 7), 1: holding(7, 6, 7)}
    assert candidates(held, 4, EMPTY) == [(7, 0), (6, 0)]


def test_a_seal_without_a_commit_counts_where_all_ranks_are_seen() -> None:
    held = {0: holding(6, 6, 7), 1: holding(6, 6, 7)}
    assert candidates(held, 2, EMPTY)[0] == (7, 0)
    assert candidates(held, 4, EMPTY)[0] == (6, 0)


def test_another_node_that_writes_a_later_step_shows_that_it_was_committed() -> None:
    held = {0: holding(6, 6, 7)}
    assert candidates(held, 2, FolderView((attempt(7),)))[0] == (7, 0)


def test_a_rank_without_the_newest_step_makes_all_take_the_one_before() -> None:
    assert candidates({0: holding(7, 6, 7), 1: holding(6, 6)}, 2, EMPTY) == [(6, 0)]
    assert candidates({0: holding(7, 7), 1: holding(6, 6)}, 2, EMPTY) == []
    assert candidates({}, 2, EMPTY) == []


def test_what_is_durable_superseded_or_given_up_is_no_candidate() -> None:
    held = {0: holding(7, 6, 7)}
    assert candidates(held, 1, FolderView((attempt(7, 0, 1, complete=True),))) == []
    assert candidates(held, 1, FolderView(marks={1: 6})) == [(6, 0)]
    assert candidates(held, 1, FolderView((attempt(7, gave_up=True),))) == [(6, 0)]
    assert candidates(held, 1, EMPTY, given_up={(7, 0)}) == [(6, 0)]


def test_snapshots_of_different_generations_are_not_combined() -> None:
    held = {0: holding(7, 7), 1: holding(7, 7, generation=1)}
    assert candidates(held, 2, EMPTY) == []


def test_a_step_is_finished_before_a_newer_one_is_begun() -> None:
    saving = Saving(1)
    saving.end(0.0)
    saving.look({0: holding(6, 6)}, EMPTY, (), 0.0)
    saving.look({0: holding(7, 6, 7)}, EMPTY, (), 0.1)
    assert saving.target == (6, 0)
    assert saving.completed((6, 0))
    saving.look({0: holding(7, 6, 7)}, FolderView((attempt(6, 0, 1, complete=True),)), (), 0.2)
    assert saving.target == (7, 0)


def test_a_later_step_that_another_node_writes_is_followed_at_once() -> None:
    saving = Saving(2)
    saving.end(0.0)
    saving.look({0: holding(6, 6, 7)}, EMPTY, (), 0.0)
    assert saving.target == (6, 0)
    saving.look({0: holding(6, 6, 7)}, FolderView((attempt(6, 0), attempt(7, 1))), (), 0.1)
    assert saving.target == (7, 0)


def test_an_order_ends_when_ranks_step_on_but_a_daemon_that_ends_takes_the_next() -> None:
    for is_ending, expected in ((False, None), (True, (8, 0))):
        saving = Saving(1)
        saving.ask()
        if is_ending:
            saving.end(0.0)
        saving.look({0: holding(6, 5, 6)}, EMPTY, (), 0.0)
        saving.look({0: holding(8, 7, 8)}, EMPTY, (), 0.1)
        assert saving.target == expected
        assert saving.is_open is is_ending


def test_at_the_end_the_newest_step_comes_before_older_ones_that_ranks_want() -> None:
    wanted, newest = Slot(4, 0, 0, seal=5), Slot(6, 0, 0, seal=7)
    saving = Saving(1)
    assert saving.pick([wanted]) == (wanted,)
    saving.end(0.0)
    saving.look({0: holding(6, 4, 6)}, EMPTY, (), 0.0)
    assert saving.pick([wanted, newest]) == (newest,)
    saving.flushed(newest)
    assert saving.pick([wanted, newest]) == ()


def test_a_daemon_waits_for_parts_of_other_nodes_only_while_some_come() -> None:
    saving, held, slot = Saving(2), {0: holding(6, 6)}, Slot(6, 0, 0, seal=7)
    saving.end(0.0)
    saving.look(held, EMPTY, (), 0.0)
    saving.pick([slot])
    saving.look(held, EMPTY, (), 9.0)
    assert not saving.is_over(9.0, is_written=False)  # its own part is being written
    saving.flushed(slot)
    saving.pick([slot])
    saving.look(held, FolderView((attempt(6, 0),)), (), 10.0)
    assert not saving.is_over(10.0 + OTHERS_S / 2, is_written=False)
    saving.look(held, FolderView((attempt(6, 0),)), (), 10.0 + OTHERS_S)
    assert saving.is_over(10.0 + OTHERS_S, is_written=False)


def test_a_step_that_another_node_does_not_write_gives_way_to_the_one_before() -> None:
    """Such as one whose slot there has a damaged header."""
    saving, held = Saving(2), {0: holding(6, 5, 6)}
    saving.end(0.0)
    saving.look(held, EMPTY, (), 0.0)
    saving.flushed(Slot(6, 0, 0, seal=7))
    saving.pick([])
    folder = FolderView((attempt(5, 1), attempt(6, 0)))
    saving.look(held, folder, (), 1.0)
    assert saving.target == (6, 0)
    saving.look(held, folder, (), 1.0 + OTHERS_S)
    assert saving.target == (5, 0)


def test_a_daemon_lingers_while_ranks_may_complete_a_step() -> None:
    saving = Saving(1)
    saving.end(0.0)
    saving.look({}, EMPTY, (), 0.0)
    assert saving.is_over(0.0, is_written=False)
    assert not saving.is_over(LINGER_S / 2, is_written=True)
    assert saving.is_over(LINGER_S, is_written=True)
