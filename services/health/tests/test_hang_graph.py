"""Who is named in a hang, from the group tables and device positions that beats carry."""

from __future__ import annotations

import msgspec
from headway.common.plan.collectives import GroupKind, Op
from headway.common.wire.messages.health import DevicePlace, GroupRow, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView
from headway.health.detectors.silence import Hang, find_hang

TP, DP = 2 * GroupKind.TP, 2 * GroupKind.DP
FORWARD, BACKWARD = 2 * GroupKind.FORWARD, 2 * GroupKind.BACKWARD
CONFIG = HealthConfig()


def row(line: int, number: int, entered: int, done: int) -> GroupRow:
    return GroupRow(line, number, 2, Op.ALL_REDUCE, 64, entered, done, 5000, 5000)


def view(rank: int, waits: str, *rows: GroupRow, **more: object) -> RankView:
    signals = WorkerSignals(
        rank=rank, pid=rank + 1, start_ticks=1, state="S", generation=0, head=9, step=8, step_s=0.1,
        num_steps=9, median_step_s=0.1, age_s=5.0, open_kind="FORWARD", groups=rows,
    )  # fmt: skip
    signals = msgspec.structs.replace(signals, waits=waits, **more)
    return RankView(0, signals, beats_over=CONFIG.confirm_beats)


def named(hang: Hang | None) -> tuple[int, ...]:
    assert hang is not None
    return tuple(one.signals.rank for one in hang.culprits)


def test_a_rank_that_never_entered_is_named_with_the_collective() -> None:
    views = [
        view(0, "", row(TP, 0, 40, 40), row(DP, 0, 7, 7)),
        view(1, "others", row(TP, 0, 41, 40), row(DP, 1, 7, 7)),
        view(2, "others", row(TP, 2, 44, 44), row(DP, 0, 8, 7)),
        view(3, "others", row(TP, 2, 44, 44), row(DP, 1, 8, 7)),
    ]
    hang = find_hang(views, CONFIG)
    assert named(hang) == (0,)
    assert hang is not None and hang.what.startswith("it never began operation ")


def test_two_ranks_that_hang_at_once_are_both_named() -> None:
    views = [
        view(0, "", row(TP, 0, 40, 40)),
        view(1, "others", row(TP, 0, 41, 40)),
        view(2, "others", row(TP, 2, 41, 40)),
        view(3, "", row(TP, 2, 40, 40)),
    ]
    assert named(find_hang(views, CONFIG)) == (0, 3)


def test_nobody_is_named_when_all_are_in_the_same_collective() -> None:
    views = [view(rank, "others", row(DP, 0, 8, 7)) for rank in (0, 1)]
    assert named(find_hang(views, CONFIG)) == ()


def test_nobody_is_named_when_one_group_hangs_by_itself_and_another_by_a_rank() -> None:
    views = [
        view(0, "", row(DP, 0, 7, 7)),
        view(1, "others", row(DP, 0, 8, 7)),
        view(2, "others", row(DP, 2, 8, 7)),
        view(3, "others", row(DP, 2, 8, 7)),
    ]
    assert named(find_hang(views, CONFIG)) == ()


def test_several_that_work_cannot_be_told_apart_without_a_collective() -> None:
    views = [view(0, ""), view(1, ""), view(2, "others")]
    assert named(find_hang(views, CONFIG)) == ()


def test_a_receive_that_is_posted_ahead_blames_nobody() -> None:
    """Stage 0 is held in a forward; stage 1 waits for it, and both have posted ahead."""
    views = [
        view(0, "", row(FORWARD, 0, 5, 5), row(BACKWARD + 1, 1, 4, 3)),
        view(1, "others", row(FORWARD + 1, 0, 7, 5), row(BACKWARD, 1, 3, 3)),
    ]
    assert named(find_hang(views, CONFIG)) == (0,)


def test_the_rank_whose_device_computes_is_named_and_those_whose_devices_wait_are_not() -> None:
    """All hosts have launched everything and wait for their devices."""

    def device(rank: int, action: str, *rows: GroupRow) -> RankView:
        place = DevicePlace(action, 9, 0, is_end=False, age_s=5.0, asked_ago_s=0.1)
        return view(rank, "device", *rows, device=place, open_kind="NORM")

    views = [
        device(0, "BACKWARD", row(DP, 0, 8, 7), row(FORWARD, 0, 4, 4)),
        device(1, "REDUCE_SCATTER", row(DP, 0, 8, 7), row(FORWARD, 1, 4, 4)),
    ]
    assert named(find_hang(views, CONFIG)) == (0,)
    in_tp = [device(rank, "BACKWARD", row(TP, 0, 8, 7)) for rank in (0, 1)]
    assert named(find_hang(in_tp, CONFIG)) == (), "either may be the one that computes"


def test_a_device_of_which_nothing_is_known_blames_nobody() -> None:
    views = [
        view(0, "device", row(DP, 0, 8, 7)),
        view(1, "device", row(DP, 0, 8, 7)),
    ]
    assert named(find_hang(views, CONFIG)) == ()


def test_frozen_ranks_are_named_whatever_they_wait_for() -> None:
    frozen = {"alive_age_s": 60.0}
    views = [
        view(0, "others", row(DP, 0, 8, 7), **frozen),
        view(1, "others", row(DP, 0, 8, 7)),
        view(2, "others", row(DP, 0, 8, 7), **frozen),
    ]
    assert named(find_hang(views, CONFIG)) == (0, 2)
