"""The status of NCCL's RAS as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headway.health.dumps.ras_json import read_ras_json
from headway.health.dumps.ras_text import read_ras_text

TABLE = """\
NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {errors}

Errors
======
"""
BEHIND = (
    TABLE.format(errors="MISMATCH")
    + """\

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 641
  2 ranks have launched up to operation 640
  Rank 12 -- GPU 4 managed by process 323032 on node 10.9.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.9.190.124
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 7 managed by process 1650386 on node 10.9.190.121
"""
)
DEAD = (
    TABLE.format(errors="INCOMPLETE")
    + """\

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 10.9.64.213 managing GPU 5

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487985 on node 10.9.64.213 managing GPU 6

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 21,22

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
)


def test_the_ranks_that_are_behind_are_named() -> None:
    report = read_ras_text(BEHIND)
    assert report is not None and report.nccl_version == "2.26.2"
    (one,) = report.communicators
    assert (one.name, one.size, one.errors) == ("#0-0 fa93daea854b060b", 32, ("MISMATCH",))
    gather, reduce = one.behind
    assert (gather.op, gather.count, gather.num_ranks) == ("AllGather", 640, 2)
    assert [member.rank for member in gather.members] == [12, 13]
    assert (reduce.op, reduce.count) == ("AllReduce", 60)
    (member,) = reduce.members
    assert (member.rank, member.gpu, member.pid, member.host) == (7, 7, 1650386, "10.9.190.121")


def test_dead_and_silent_processes_and_missing_ranks_are_named() -> None:
    report = read_ras_text(DEAD)
    assert report is not None
    assert report.dead == (("10.9.64.213", 3487984),)
    assert report.silent == (("10.9.64.213", 3487985),)
    assert report.num_timeouts == 2
    assert [member.rank for member in report.communicators[0].missing] == [21, 22]


def test_a_missing_rank_with_its_process_is_missing() -> None:
    text = TABLE + "#0-0 (b3398875b8b2a063) INCOMPLETE\n  Missing communicator data from 1 rank\n"
    text += "  Rank 1 -- GPU 0 managed by process 60004 on node 10.9.109.13\n"
    report = read_ras_text(text)
    assert report is not None
    (member,) = report.communicators[0].missing
    assert (member.rank, member.host, member.pid, member.status) == (
        1,
        "10.9.109.13",
        60004,
        "MISSING",
    )


def test_ranks_of_another_status_are_no_side_of_a_count() -> None:
    text = (
        TABLE.format(errors="MISMATCH")
        + """\
#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  2 ranks have status FINALIZE
  Rank 4 -- GPU 4 managed by process 507289 on node 10.9.64.210
  Rank 20 -- GPU 4 managed by process 3500075 on node 10.9.64.213
"""
    )
    report = read_ras_text(text)
    assert report is not None
    (one,) = report.communicators
    assert one.behind == ()
    assert [(member.rank, member.status) for member in one.members] == [
        (4, "FINALIZE"),
        (20, "FINALIZE"),
    ]


def test_a_healthy_job_lists_no_communicator() -> None:
    report = read_ras_text(TABLE.format(errors="OK"))
    assert report is not None
    assert (report.communicators, report.dead, report.num_timeouts) == ((), (), 0)


def rank(number: int, launched: int, **status: Any) -> dict[str, Any]:
    flags = {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False}
    return {
        "rank": number, "host": "10.9.64.245", "pid": 1500 + number, "cuda_dev": 0,
        "nvml_dev": number, "status": flags | status,
        "collective_counts": {"AllReduce": launched, "Broadcast": 1},
    }  # fmt: skip


def status_of(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> str:
    one = {"hash": "0xae94", "size": 4, "ranks": list(ranks), "missing_ranks": list(missing)}
    document = {
        "nccl_version": "2.29.1", "timestamp": "2026-12-19 13:06:53", "communicators_count": 1,
        "communicators": [one], "ras": {"collection_time_sec": 0.0, "timeouts_count": 1},
    }  # fmt: skip
    return json.dumps(document, indent=2)


def test_json_has_all_ranks_and_the_same_sides() -> None:
    report = read_ras_json(
        status_of(rank(0, 7), rank(1, 5), rank(2, 7), rank(3, 7, abort_flag=True))
    )
    assert report is not None
    (one,) = report.communicators
    assert (one.name, one.errors, report.num_timeouts) == ("0xae94", ("MISMATCH",), 1)
    (side,) = one.behind
    assert (side.op, side.count, [member.rank for member in side.members]) == ("AllReduce", 5, [1])
    assert [member.status for member in one.members] == ["RUNNING", "RUNNING", "RUNNING", "ABORT"]
    assert one.members[1].gpu == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_missing_ranks_are_read_even_without_the_comma_of_one_version(is_damaged: bool) -> None:
    gone = {"rank": 1, "host": "10.9.64.246", "pid": 9, "status": {"unresponsive": True}}
    dead = {"rank": 2, "host": "10.9.64.246", "pid": 10, "status": {"considered_dead": True}}
    text = status_of(rank(0, 7), rank(3, 7), missing=(gone, dead))
    if is_damaged:
        text = text.replace('"pid": 9,', '"pid": 9').replace('"10.9.64.246",', '"10.9.64.246"')
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    report = read_ras_json("some line of the client\n" + text + "\ntrailing")
    assert report is not None
    assert [member.status for member in report.communicators[0].missing] == ["UNRESPONSIVE", "DEAD"]
    assert (report.dead, report.silent) == ((("10.9.64.246", 10),), (("10.9.64.246", 9),))


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '{"communicators": 3}', "no status"])
def test_another_text_is_no_status(text: str) -> None:
    assert read_ras_json(text) is None
    assert read_ras_text(text) is None
