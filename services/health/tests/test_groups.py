"""Verdicts on a hang say who has entered a collective and who has not."""

from __future__ import annotations

import msgspec
import pytest
from headway.common.plan.collectives import GroupKind, Op
from headway.common.wire.group_table import GroupRow, pack, unpack
from headway.common.wire.messages.health import WorkerSignals
from headway.health.detectors.groups import MAX_ROWS, evidence_of_groups, unfinished
from headway.health.detectors.rank_view import RankView

TP, DP, FORWARD = 2 * GroupKind.TP, 2 * GroupKind.DP, 2 * GroupKind.FORWARD


def view(rank: int, *rows: GroupRow) -> RankView:
    signals = WorkerSignals(
        rank=rank, pid=rank + 1, start_ticks=1, state="S", generation=0, head=9, step=3, step_s=0.1,
        num_steps=4, median_step_s=0.1, age_s=5.0, packed_groups=pack(rows),
    )  # fmt: skip
    return RankView(0, signals)


def row(
    line: int,
    number: int,
    entered: int,
    done: int,
    ago_ms: int = 3000,
    *,
    size: int = 2,
    **more: int,
) -> GroupRow:
    op, nbytes = more.get("op", Op.ALL_GATHER), more.get("nbytes", 64)
    return GroupRow(line, number, size, op, nbytes, entered, done, ago_ms, ago_ms)


def test_who_has_not_entered_is_named_with_the_collective() -> None:
    found = unfinished(
        [
            view(0, row(TP, 0, 41, 40), row(DP, 0, 7, 7)),
            view(1, row(TP, 0, 40, 40), row(DP, 1, 7, 7)),
            view(2, row(TP, 2, 44, 43, 2000), row(DP, 0, 7, 7)),
            view(3, row(TP, 2, 44, 43, 1000), row(DP, 1, 7, 7)),
        ]
    )
    assert [(one.number, one.entered, one.missing) for one in found] == [
        (0, (0,), (1,)),
        (2, (2, 3), ()),
    ]
    assert str(found[0]) == (
        "all_gather 41 of the tp group of rank 0: entered by rank 0 3.0 s ago, not by rank 1"
    )
    assert str(found[1]).endswith("entered by ranks 2, 3 2.0 s ago, by all")


def test_a_group_in_which_nobody_waits_and_messages_are_left_out() -> None:
    behind = [view(0, row(DP, 0, 7, 7)), view(1, row(DP, 0, 6, 6))]
    assert unfinished(behind) == []
    posted_ahead = [view(0, row(FORWARD, 0, 6, 5)), view(1, row(FORWARD + 1, 0, 8, 5))]
    assert unfinished(posted_ahead) == []


def test_a_message_that_was_not_sent_is_missing_at_its_sender() -> None:
    (found,) = unfinished([view(0, row(FORWARD, 0, 5, 5)), view(4, row(FORWARD + 1, 0, 8, 5))])
    assert (found.sequence, found.entered, found.missing) == (6, (4,), (0,))
    assert str(found).startswith("message 6 of the forward group of rank 0: entered by rank 4")


def test_the_slowest_member_is_missing_and_not_those_between() -> None:
    rows = [row(DP, 0, 8, 6, size=3), row(DP, 0, 7, 6, size=3), row(DP, 0, 6, 6, size=3)]
    (found,) = unfinished([view(rank, one) for rank, one in enumerate(rows)])
    assert (found.sequence, found.entered, found.missing) == (7, (0, 1), (2,))


def test_a_member_that_does_not_report_is_not_said_to_have_entered() -> None:
    (found,) = unfinished([view(0, row(DP, 0, 7, 6, size=4))])
    assert (found.missing, found.num_unknown) == ((), 3)
    assert str(found).endswith("unknown of 3 more")


def test_other_operations_and_sizes_at_one_number_are_shown() -> None:
    (other,) = unfinished(
        [view(0, row(DP, 0, 7, 6)), view(1, row(DP, 0, 7, 6, op=Op.REDUCE_SCATTER))]
    )
    assert other.ops == "all_gather or reduce_scatter"
    (size,) = unfinished([view(0, row(DP, 0, 7, 6)), view(1, row(DP, 0, 7, 6, nbytes=32))])
    assert size.ops == "all_gather of 32 bytes or all_gather of 64 bytes"


def test_a_verdict_shows_a_few_groups_of_many_and_a_few_ranks_of_each() -> None:
    late = [view(rank, row(DP, 0, 9 if rank else 8, 8, size=64)) for rank in range(64)]
    many = [view(100 + rank, row(TP, 100 + rank, 5, 4)) for rank in range(50)]
    rows = evidence_of_groups(late + many)
    assert len(rows) == MAX_ROWS
    assert "and 55 more 3.0 s ago, not by rank 0" in rows[0].value


def test_any_numbers_in_a_table_are_survived() -> None:
    odd = [GroupRow(line, 9, 2, 250, 0, 2**40, 0, -1, -1) for line in (0, 1, 3, 255)]
    for one in unfinished([view(0, *odd)]):
        assert str(one)


def test_seven_groups_of_a_rank_take_fewer_than_28_bytes_each() -> None:
    rows = tuple(
        GroupRow(line, 12_000, 8, 2, 1 << 20, 90_000, 89_999, 400, 410) for line in range(2, 16, 2)
    )
    with_groups, without = view(0, *rows).signals, view(0).signals
    nbytes = len(msgspec.msgpack.encode(with_groups)) - len(msgspec.msgpack.encode(without))
    assert nbytes <= 7 * 28, nbytes


@pytest.mark.parametrize("packed", [b"", b"\xff", b"\x91\x93\x01\x02\x03", pack([])[:0], b"\x81"])
def test_a_damaged_table_is_an_empty_one(packed: bytes) -> None:
    signals = msgspec.structs.replace(view(0).signals, packed_groups=packed)
    assert unpack(signals.packed_groups) == ()
