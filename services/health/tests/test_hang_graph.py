"""Who is named in a hang, from the group tables and device positions that beats carry."""

from __future__ import annotations

import msgspec
from headway.common.plan.collectives import GroupKind, Op
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.group_table import GroupRow, pack
from headway.common.wire.messages.health import DevicePlace, WorkerSignals
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
        num_steps=9, median_step_s=0.1, age_s=5.0, open_kind="FORWARD", packed_groups=pack(rows),
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


def test_the_only_rank_of_a_run_is_named() -> None:
    assert named(find_hang([view(0, "")], CONFIG)) == (0,)
    assert named(find_hang([view(0, "device")], CONFIG)) == ()


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


def on_gpu(rank: int, action: str, *rows: GroupRow, waits: str = "others") -> RankView:
    """A rank whose host polls for what its device computes."""
    place = DevicePlace(action, 9, 0, is_end=False, age_s=5.0, asked_ago_s=0.1)
    return view(rank, waits, *rows, device=place, open_kind="SUMS")


SUM = 2 * GroupKind.EVERY_RANK


def test_a_hung_device_is_named_although_every_host_polls_for_the_sums() -> None:
    views = [
        on_gpu(0, "OPTIMIZER", row(DP, 0, 8, 7), row(SUM, 0, 5, 4)),
        on_gpu(1, "ALL_GATHER", row(DP, 0, 8, 7), row(SUM, 0, 5, 4)),
    ]
    assert named(find_hang(views, CONFIG)) == (0,)


def test_a_device_that_was_not_asked_of_late_is_not_named() -> None:
    stale = DevicePlace("OPTIMIZER", 9, 0, is_end=False, age_s=60.0, asked_ago_s=60.0)
    views = [
        view(0, "others", row(DP, 0, 8, 7), device=stale),
        on_gpu(1, "ALL_GATHER", row(DP, 0, 8, 7)),
    ]
    assert named(find_hang(views, CONFIG)) == ()


def test_devices_that_wait_in_a_sum_are_not_named_when_others_have_left_it() -> None:
    """Rank 1 has left the sum, and rank 0 waits in the last gather of it, for a third rank."""
    views = [
        on_gpu(0, "AGREEMENT", row(SUM, 0, 4, 3), row(DP, 0, 8, 6)),
        on_gpu(1, "ALL_GATHER", row(SUM, 0, 5, 4), row(DP, 0, 11, 6)),
    ]
    assert named(find_hang(views, CONFIG)) == ()


def test_a_device_that_waits_in_the_backward_of_a_split_pass_is_not_named() -> None:
    for action in ("BACKWARD_INPUT", "BACKWARD_WEIGHT", "TENSOR_PARALLEL"):
        views = [
            on_gpu(0, action, row(TP, 0, 8, 7), row(DP, 0, 4, 3)),
            on_gpu(1, action, row(TP, 0, 8, 7)),
            on_gpu(2, "REDUCE_SCATTER", row(DP, 0, 4, 3)),
        ]
        assert named(find_hang(views, CONFIG)) == (), action


def test_unrecorded_waits_of_a_pass_do_not_hide_the_host_that_is_held() -> None:
    """Only waits that are recorded show as done, so both seem to be in operation 11."""
    views = [
        view(0, "", row(TP, 0, 12, 10)),
        on_gpu(1, "FORWARD", row(TP, 0, 19, 10)),
    ]
    assert named(find_hang(views, CONFIG)) == (0,)


def test_a_device_that_receives_has_not_begun_what_it_will_send() -> None:
    """Rank 0 hangs in a backward; rank 1 waits for it, and rank 2 for rank 1."""
    views = [
        on_gpu(0, "BACKWARD", row(BACKWARD, 0, 9, 5)),
        on_gpu(1, "RECV_BACKWARD", row(BACKWARD + 1, 0, 9, 5), row(BACKWARD, 1, 9, 5)),
        on_gpu(2, "RECV_BACKWARD", row(BACKWARD + 1, 1, 9, 5)),
    ]
    assert named(find_hang(views, CONFIG)) == (0,)


def test_a_message_that_has_arrived_is_done_at_its_sender() -> None:
    """Rank 0 has not looked at what it sent; what it is in is the next message."""
    views = [
        on_gpu(0, "SEND_FORWARD", row(FORWARD, 0, 9, 3)),
        view(1, "", row(FORWARD + 1, 0, 8, 8)),
    ]
    assert named(find_hang(views, CONFIG)) == (1,)


def test_ranks_that_meet_in_different_collectives_are_said_to_run_different_programs() -> None:
    gather = GroupRow(DP, 0, 2, Op.ALL_GATHER, 64, 8, 7, 5000, 5000)
    views = [view(0, "others", row(DP, 0, 8, 7)), view(1, "others", gather), view(2, "")]
    hang = find_hang(views, CONFIG)
    assert named(hang) == (), "what a rank does after that may follow from it"
    assert hang is not None and hang.cause == "collective_mismatch"
    assert "rank 0 all_reduce" in hang.what and "rank 1 all_gather" in hang.what


def test_a_circle_inside_a_sum_over_all_ranks_is_a_deadlock() -> None:
    """Two of four ranks gather along the axes in the other order."""
    views = [
        view(rank, "others", row(SUM, 0, 5, 4), row(TP, tp, *tp_row), row(DP, dp, *dp_row))
        for rank, tp, tp_row, dp, dp_row in (
            (0, 0, (9, 8), 0, (6, 6)),
            (1, 0, (8, 8), 1, (7, 6)),
            (2, 2, (8, 8), 0, (7, 6)),
            (3, 2, (9, 8), 1, (6, 6)),
        )
    ]
    hang = find_hang(views, CONFIG)
    assert named(hang) == ()
    assert hang is not None and hang.cause == "deadlock", hang.what


def test_a_rank_that_is_held_is_named_beside_one_of_which_nothing_is_known() -> None:
    views = [
        view(0, "", row(TP, 0, 40, 40), row(DP, 0, 7, 7)),
        view(1, "others", row(TP, 0, 41, 40), row(DP, 1, 7, 7)),
        view(2, "others", row(DP, 0, 8, 7), row(TP, 2, 41, 40)),  # rank 3 has not reported
    ]
    assert named(find_hang(views, CONFIG)) == (0,)
    hang = find_hang(views[2:], CONFIG)
    assert named(hang) == () and hang is not None and hang.cause == "unreported"


def test_a_run_whose_devices_move_does_not_hang_although_its_hosts_poll() -> None:
    views = [
        on_gpu(0, "FORWARD", row(DP, 0, 8, 7)),
        on_gpu(1, "ALL_GATHER", row(DP, 0, 8, 7)),
    ]
    assert find_hang(views, CONFIG) is not None
    moving = DevicePlace("FORWARD", 9, 0, is_end=False, age_s=0.5, asked_ago_s=0.1)
    views[0].signals = msgspec.structs.replace(views[0].signals, device=moving)
    assert find_hang(views, CONFIG) is None


def test_a_rank_that_waits_for_its_snapshot_is_not_ended() -> None:
    """A restart would meet the same slow copy."""
    views = [
        view(0, "", row(DP, 0, 7, 7), open_kind="SNAPSHOT_WAIT"),
        view(1, "others", row(DP, 0, 8, 7)),
    ]
    hang = find_hang(views, CONFIG)
    assert named(hang) == ()
    assert hang is not None and hang.what == "rank 0 waits for its snapshot or checkpoint"


def test_no_action_of_a_device_makes_its_rank_a_culprit_by_being_unknown() -> None:
    """Rank 0 is held; the device of rank 1 is in any action while its sums are unfinished."""
    for kind in Kind:
        if kind in (Kind.OPTIMIZER, Kind.SNAPSHOT, Kind.DATA):
            continue  # what a device does there contains no collective
        place = DevicePlace(kind.name, 9, 0, is_end=False, age_s=5.0, asked_ago_s=0.1)
        rows = [GroupRow(line, 0, 2, Op.ALL_REDUCE, 64, 8, 7, 5000, 5000) for line in (TP, DP)]
        held = [one._replace(entered=7) for one in rows]
        views = [view(0, "", *held), view(1, "device", *rows, device=place, open_kind="NORM")]
        assert 1 not in named(find_hang(views, CONFIG)), kind.name
