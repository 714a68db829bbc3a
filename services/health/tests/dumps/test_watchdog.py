"""What the watchdog of PyTorch's NCCL backend prints, in the wordings of its versions."""

from __future__ import annotations

import pytest
from headway.health.dumps.watchdog import WatchdogReport, read_watchdog

OF_2_1 = "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out."  # noqa: E501
OF_2_2 = "[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE, NumelIn=17, NumelOut=17, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out."  # noqa: E501
OF_2_6 = "[rank3]:[E1118 20:32:23.955028747 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE, NumelIn=17, NumelOut=17, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out."  # noqa: E501
IN_RAY = "(WorkerDict pid=3490362, ip=10.0.0.7) " + OF_2_6
IN_KUBERNETES = "2026-11-18T20:32:23.9560001Z stderr F " + OF_2_6

STATUS_2_4 = "[rank3]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 96, last enqueued NCCL work: 98, last completed NCCL work: 95."  # noqa: E501
STATUS_2_4_LATER = "[rank3]:[E1206 18:44:16.994932383 ProcessGroupNCCL.cpp:1709] [PG 1 Rank 0] Timeout at NCCL work: 96, last enqueued NCCL work: 98, last completed NCCL work: 95."  # noqa: E501
STATUS_2_5 = "[rank3]:[E126 01:17:58.183820380 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 96, last enqueued NCCL work: 98, last completed NCCL work: 95."  # noqa: E501
STATUS_2_7 = "[rank3]:[E1118 20:32:23.957372583 ProcessGroupNCCL.cpp:2168] [PG ID 2 PG GUID 1(tp_pg) Rank 0]  failure detected by watchdog at work sequence id: 96 PG status: last enqueued work: 98, last completed work: 95"  # noqa: E501
STATUS_XPU = STATUS_2_7.replace("ProcessGroupNCCL", "ProcessGroupXCCL")


@pytest.mark.parametrize("line", [OF_2_1, OF_2_2, OF_2_6, IN_RAY, IN_KUBERNETES])
def test_a_timeout_of_any_version_is_read(line: str) -> None:
    (event,) = read_watchdog([line]).timeouts
    assert (event.rank, event.sequence, event.op) == (3, 96, "all_reduce")
    assert (event.timeout_s, event.ran_s) == (1800.0, 1800.887)
    assert event.num_in == (-1 if line is OF_2_1 else 17)


@pytest.mark.parametrize("line", [STATUS_2_4, STATUS_2_4_LATER, STATUS_2_5, STATUS_2_7, STATUS_XPU])
def test_a_status_of_any_version_names_the_rank_of_the_job_and_that_of_the_group(
    line: str,
) -> None:
    (status,) = read_watchdog([line]).statuses
    assert (status.rank, status.group_rank, status.group) == (3, 0, "1")
    assert (status.failed, status.enqueued, status.completed) == (96, 98, 95)
    assert status.started == -1


def test_the_name_of_the_group_is_kept() -> None:
    assert read_watchdog([STATUS_2_7]).statuses[0].description == "tp_pg"
    older = STATUS_2_4.replace("[PG 1 Rank 0]", "[PG 0 (default_pg) Rank 3]")
    assert read_watchdog([older]).statuses[0].description == "default_pg"


def test_a_status_that_prints_what_was_started_has_it() -> None:
    line = STATUS_2_7.replace("last completed", "last started work: 97, last completed")
    assert read_watchdog([line]).statuses[0].started == 97


def test_a_group_rank_is_that_of_the_job_only_in_the_group_of_all() -> None:
    bare = STATUS_2_7.replace("[rank3]:", "")
    assert read_watchdog([bare]).statuses[0].rank == -1
    of_all = bare.replace("1(tp_pg) Rank 0", "0(default_pg) Rank 6")
    assert read_watchdog([of_all]).statuses[0].rank == 6


def test_the_timeout_has_the_group_of_the_line_that_follows() -> None:
    other = OF_2_6.replace("rank3", "rank4").replace("Rank 3", "Rank 4")
    report = read_watchdog([OF_2_6, other, STATUS_2_7])
    assert {event.rank: event.group for event in report.timeouts} == {3: "1", 4: ""}


def test_a_timeout_that_is_printed_again_counts_once() -> None:
    again = OF_2_6.replace(
        "[Rank 3] Watchdog",
        "[PG ID 2 PG GUID 1 Rank 0] Process group watchdog thread terminated with exception: "
        "[Rank 3] Watchdog",
    )
    assert len(read_watchdog([OF_2_6, again]).timeouts) == 1


def test_a_size_that_was_not_set_is_unknown() -> None:
    line = OF_2_6.replace("NumelIn=17", f"NumelIn={(1 << 64) - 1}")
    event = read_watchdog([line]).timeouts[0]
    assert (event.num_in, event.num_out) == (-1, 17)


def test_a_signal_to_dump_does_not_hide_which_collective_failed() -> None:
    dump = "[rank3]:[E1118 20:32:24.1 ProcessGroupNCCL.cpp:1746] [PG ID 2 PG GUID 1(tp_pg) Rank 0] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 98, last completed NCCL work: 95.This is most likely caused by incorrect usages of collectives"  # noqa: E501
    for lines in ([STATUS_2_7, dump], [dump, STATUS_2_7]):
        (status,) = read_watchdog(lines).statuses
        assert (status.failed, status.enqueued, status.completed) == (96, 98, 95)


def test_a_watchdog_that_could_not_watch_is_no_timeout() -> None:
    lines = [
        "[rank6]:[E429 13:55:49.1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 6] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=103",  # noqa: E501
        "[rank6]:[F429 14:05:49.1 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 6] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",  # noqa: E501
    ]
    report = read_watchdog(lines, year=2026)
    assert [(one.rank, one.seconds) for one in report.stuck] == [(6, 480.0)]
    assert report.timeouts == report.statuses == ()


def test_the_stack_of_the_failed_collective_is_that_of_its_rank() -> None:
    lines = [
        "[rank3]:[E710 18:00:32.427312432 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: ",  # noqa: E501
        "#0 all_reduce from /usr/lib/python3/dist-packages/torch/distributed_c10d.py:3174",
        "#1 step from /workspace/trainer/loop.py:88",
    ]
    (call,) = read_watchdog(lines).calls
    assert call.rank == 3
    assert call.frames[1] == ("step", "/workspace/trainer/loop.py", 88)


def test_a_stamp_has_a_time_only_with_its_year() -> None:
    assert read_watchdog([OF_2_6]).timeouts[0].at_s is None
    at_s = read_watchdog([OF_2_6], year=2025).timeouts[0].at_s
    assert at_s == pytest.approx(1763497943.955, abs=0.01)


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: I1121 ProcessGroupNCCL.cpp:1] ProcessGroupNCCL environments: TIMEOUT(ms): 600000",
        "step 4600 loss 1.8821",
        "loading from /mnt/data/corpus",
        "Watchdog caught",
    ],
)
def test_a_healthy_line_is_no_event(line: str) -> None:
    assert read_watchdog([line]) == WatchdogReport()
