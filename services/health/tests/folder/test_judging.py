"""What follows from single kinds of evidence, and what comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headway.health.client import Diagnosed, diagnose_folder

STACKS = """Process 48216: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 48216 (active): "MainThread"
    {function} ({file}:{line})
    main (train.py:71)
    <module> (train.py:121)
"""


def diagnose(folder: Path, **files: str) -> Diagnosed:
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(text)
    return diagnose_folder(folder)


def test_an_error_of_the_program_comes_before_ranks_that_lost_their_peer(tmp_path: Path) -> None:
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 88, in main\n'
        "[rank1]:     loss = model(batch)\n"
        "[rank1]: ValueError: vocabulary of 32000, token 32001\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 90, in main\n'
        "[rank0]:     loss.backward()\n"
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[10.0.0.1]:4711\n"
    )
    done = diagnose(tmp_path, train__log=log)
    first = done.found[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("program_error", [1])
    assert first.where.startswith("train.py:88 main") and "token 32001" in first.summary


def test_memory_that_runs_out_is_told_from_other_errors(tmp_path: Path) -> None:
    log = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "train.py", line 12, in main\n'
        "[rank3]:     x = torch.empty(1 << 40)\n"
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB\n"
    )
    assert diagnose(tmp_path, train__log=log).found[0].cause == "out_of_memory"


def test_an_xid_of_the_same_day_counts_where_nothing_says_when_the_job_began(
    tmp_path: Path,
) -> None:
    """The first line of the log is the time-out, ten minutes after the GPU was lost."""
    log = (
        "2026-09-14 02:17:40 [rank0]:[E914 02:17:40.100443 ProcessGroupNCCL.cpp:689] [Rank 0] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2041, OpType=ALLREDUCE, "
        "NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600037 milliseconds before timing "
        "out.\n"
    )
    kernel = (
        "[Mon Sep 14 02:07:39 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=91, name=python3, GPU has "
        "fallen off the bus.\n"
    )
    done = diagnose(tmp_path, train__log=log, dmesg_gpu_a01__txt=kernel)
    assert done.found[0].cause == "gpu_lost", done.lines


def test_torchruns_table_is_used_where_no_traceback_says_more(tmp_path: Path) -> None:
    log = (
        "E0914 02:17:40.1 123 torch/distributed/elastic/multiprocessing/errors] \n"
        "============================================================\n"
        "train.py FAILED\n"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-09-14_02:17:40\n"
        "  host      : gpu-a01\n"
        "  rank      : 5 (local_rank: 5)\n"
        "  exitcode  : -9 (pid: 48216)\n"
        "  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 48216\n"
        "============================================================\n"
    )
    [first] = diagnose(tmp_path, train__log=log).found
    assert [one.rank for one in first.culprits] == [5] and "signal 9" in first.summary
    assert "kernel's log" in first.do


def test_a_folder_of_stacks_alone_shows_nothing_that_is_wrong(tmp_path: Path) -> None:
    for rank in range(3):
        text = STACKS.format(function="wait", file="torch/distributed/c10d.py", line=9)
        (tmp_path / f"rank_{rank}.txt").write_text(text)
    done = diagnose_folder(tmp_path)
    assert done.found[0].kind == "none" and done.found[0].confidence <= 0.5


def counters(folder: Path, **grown: int) -> None:
    """Counters of two ports before and after; those of ``mlx5_0`` grow."""
    for phase in ("before", "after"):
        rows = [
            f"/sys/class/infiniband/mlx5_{device}/ports/1/counters/{name}:"
            f"{5 + (count if phase == 'after' and device == 0 else 0)}"
            for device in range(2)
            for name, count in {"link_downed": 0, "symbol_error": 0, **grown}.items()
        ]
        path = folder / "counters" / f"gpu-b05.{phase}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(rows) + "\n")


def test_one_port_whose_errors_grow_has_a_faulty_link(tmp_path: Path) -> None:
    counters(tmp_path, symbol_error=4000)
    first = diagnose_folder(tmp_path).found[0]
    assert (first.kind, first.cause) == ("fault", "link_fault")
    assert [str(one) for one in first.culprits] == ["mlx5_0 port 1 on gpu-b05"]
    assert "symbol_error by 4000" in first.why[0] and "cable of mlx5_0" in first.do


def test_a_few_errors_are_no_fault(tmp_path: Path) -> None:
    counters(tmp_path, symbol_error=20)
    assert diagnose_folder(tmp_path).found[0].kind == "none"


DOWN = "[Mon Sep 14 {at} 2026] mlx5_core 0000:9a:00.0 ibs3: Link down\n"


@pytest.mark.parametrize(
    ("count", "times", "says"),
    [
        (1, (), "note it: a single loss costs no node"),
        (3, (), "replace node gpu-b05: it went down 3 times between the two readings"),
        (2, ("02:11:07", "02:13:52"), "went down 2 times within 5 minutes"),
        (2, ("02:11:07", "04:13:52"), "note it: it went down 2 times, never twice within"),
    ],
)
def test_two_losses_of_a_link_in_five_minutes_cost_the_node(
    tmp_path: Path, count: int, times: tuple[str, ...], says: str
) -> None:
    counters(tmp_path, link_downed=count)
    lines = "".join(DOWN.format(at=at) for at in times)
    if lines:
        (tmp_path / "dmesg_gpu-b05.txt").write_text(lines)
    first = diagnose_folder(tmp_path).found[0]
    assert first.cause == "link_flap" and says in first.do


def test_a_watchdogs_line_counts_in_the_group_of_its_own_rank(tmp_path: Path) -> None:
    """Each pair of ranks calls its group 1; the dump of rank 3 is missing, and its log shows that
    it has entered what rank 2 waits in."""

    def dump(pair: list[int], last: int) -> str:
        entries = [
            {"record_id": n, "pg_id": 1, "process_group": ["1", "undefined"],
             "collective_seq_id": n, "profiling_name": "nccl:all_reduce", "input_sizes": [[16]],
             "time_created_ns": 10**18 + n, "state": "completed" if n < last else "scheduled"}
            for n in range(1, last + 1)
        ]  # fmt: skip
        config = {"1": {"name": "1", "desc": "undefined", "ranks": str(pair)}}
        return json.dumps({"version": "2.10", "entries": entries, "pg_config": config})

    for rank, pair in ((0, [0, 1]), (1, [0, 1]), (2, [2, 3])):
        (tmp_path / f"rank_{rank}.json").write_text(dump(pair, 5))
    log = (
        "[rank3]:[E1118 20:32:23.957372583 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID "
        "1(undefined) Rank 1]  failure detected by watchdog at work sequence id: 5 PG status: "
        "last enqueued work: 5, last completed work: 4\n"
    )
    sure = [one for one in diagnose(tmp_path, train__log=log).found if one.confidence > 0.5]
    assert [one.rank for found in sure for one in found.culprits] == []
