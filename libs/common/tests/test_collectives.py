from __future__ import annotations

import itertools

import pytest
from headway.common.plan.collectives import (
    NUM_LINES,
    GroupKind,
    members,
    memberships,
    parts_of,
)
from headway.common.plan.grid import Grid

GRIDS = [
    Grid(tp=tp, pp=pp, dp=dp, vp=vp)
    for tp, pp, dp, vp in itertools.product((1, 2, 4), (1, 2, 3), (1, 2, 3), (1, 2))
    if vp == 1 or pp > 1
] + [Grid(tp=tp, pp=pp, dp=2, vp=2, is_v=True) for tp in (1, 2) for pp in (2, 3, 4)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("joins_ends", [False, True])
def test_all_members_of_a_group_know_it_by_one_number(grid: Grid, joins_ends: bool) -> None:
    found: dict[int, set[int]] = {}
    for rank in range(grid.world_size):
        parts = memberships(grid, rank, joins_ends=joins_ends)
        lines = [one.line for one in parts]
        assert len(set(lines)) == len(lines), "one line each"
        assert all(0 < line < NUM_LINES for line in lines)
        for one in parts:
            found.setdefault(one.group, set()).add(rank)
            assert rank in members(grid, one.group)
            assert one.size == len(members(grid, one.group)) > 1
    for group, ranks in found.items():
        assert ranks == set(members(grid, group))


def test_messages_go_where_the_schedule_sends_them() -> None:
    grid = Grid(tp=2, pp=3, dp=2, vp=2)
    first, last = 1, 9  # of the pipeline 1, 5, 9
    ends = {
        (one.kind, members(grid, one.group))
        for rank in (first, last)
        for one in memberships(grid, rank, joins_ends=True)
        if one.kind >= GroupKind.FORWARD
    }
    assert ends == {
        (GroupKind.FORWARD, (1, 5)),
        (GroupKind.FORWARD, (5, 9)),
        (GroupKind.FORWARD_WRAP, (9, 1)),
        (GroupKind.BACKWARD, (9, 5)),
        (GroupKind.BACKWARD, (5, 1)),
        (GroupKind.BACKWARD_WRAP, (1, 9)),
        (GroupKind.TIED_TABLE, (1, 9)),
        (GroupKind.TIED_GRADIENT, (9, 1)),
    }


def test_in_a_v_neighbours_send_to_each_other_in_both_directions_and_ends_do_not() -> None:
    grid = Grid(pp=3, vp=2, is_v=True)
    found = {
        (one.kind, members(grid, one.group)) for rank in range(3) for one in memberships(grid, rank)
    }
    assert {one for one in found if one[0] >= GroupKind.FORWARD} == {
        (kind, ranks)
        for kinds, pairs in (
            ((GroupKind.FORWARD, GroupKind.BACKWARD_WRAP), ((0, 1), (1, 2))),
            ((GroupKind.BACKWARD, GroupKind.FORWARD_WRAP), ((1, 0), (2, 1))),
        )
        for kind in kinds
        for ranks in pairs
    }


def test_a_number_of_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match="200"):
        parts_of(200 << 24)
