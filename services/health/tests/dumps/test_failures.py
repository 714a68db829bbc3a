"""Tracebacks, torchrun's table, and the one pass over a log that reads both."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from headway.health.dumps.elastic import read_elastic
from headway.health.dumps.failures import read_failures
from headway.health.dumps.logs import read_log

OOM = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/work/train.py", line 121, in <module>
[rank{rank}]:     main()
[rank{rank}]:     ~~~~^^
[rank{rank}]:   File "/work/model/mlp.py", line 44, in forward
[rank{rank}]:     return self.down(x)
[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/linear.py", line 125, in forward
[rank{rank}]:     return F.linear(input, self.weight, self.bias)
[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-05-21_15:43:09
  host      : gpu-k07
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 14751)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-21_15:43:03
  host      : gpu-k07
  rank      : 8 (local_rank: 0)
  exitcode  : -9 (pid: 14750)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14750
============================================================
""".splitlines()


def test_a_traceback_has_its_last_line_and_the_users_own_innermost_frame() -> None:
    (failure,) = read_failures(OOM.format(rank=3).splitlines())
    assert (failure.rank, failure.error) == (3, "torch.OutOfMemoryError")
    assert failure.message.startswith("CUDA out of memory")
    assert str(failure.where) == "forward (/work/model/mlp.py:44)"
    assert [frame.line for frame in failure.frames] == [125, 44, 121]


def test_tracebacks_of_ranks_that_write_at_once_are_kept_apart() -> None:
    three, four = OOM.format(rank=3), OOM.format(rank=4).replace("mlp.py", "attention.py")
    mixed = [
        line for pair in zip(three.splitlines(), four.splitlines(), strict=True) for line in pair
    ]
    found = {failure.rank: failure for failure in read_failures(mixed)}
    assert str(found[3].where) == "forward (/work/model/mlp.py:44)"
    assert str(found[4].where) == "forward (/work/model/attention.py:44)"


def _raise() -> None:
    try:
        raise KeyError("shard")
    except KeyError as error:
        raise ValueError("a bad index") from error


def test_what_python_prints_itself_is_read() -> None:
    try:
        _raise()
    except ValueError:
        text = traceback.format_exc()
    cause, failure = read_failures(text.splitlines())
    assert (cause.error, cause.is_cause) == ("KeyError", True)
    assert (failure.error, failure.message, failure.is_cause) == (
        "ValueError",
        "a bad index",
        False,
    )
    assert failure.frames[0].function == "_raise"
    assert failure.where is not None and failure.where.file == __file__


def test_the_last_line_alone_is_a_failure_without_frames() -> None:
    (failure,) = read_failures(["[rank13]: RuntimeError: CUDA error: unspecified launch failure"])
    assert (failure.rank, failure.frames) == (13, ())
    assert failure.message == "CUDA error: unspecified launch failure"


def test_a_word_in_a_sentence_is_no_failure() -> None:
    lines = ["[rank0]: retried after ValueError: fine", "step 3 Error rate 0.2", "no Exception"]
    assert read_failures(lines) == ()


def test_torchruns_table_has_the_first_failure_in_front() -> None:
    root, other = read_elastic(TABLE)
    assert (root.rank, root.local_rank, root.host) == (8, 0, "gpu-k07")
    assert (root.exit_code, root.pid, root.is_root) == (-9, 14750, True)
    assert root.message == "Signal 9 (SIGKILL) received by PID 14750"
    assert (other.rank, other.exit_code, other.is_root) == (9, 1, False)
    assert root.at_s is not None and other.at_s is not None and other.at_s - root.at_s == 6.0


def test_a_table_that_was_cut_off_gives_what_there_is() -> None:
    (other,) = read_elastic(TABLE[:10])
    assert (other.rank, other.exit_code) == (9, 1)


def test_the_line_of_a_process_is_not_counted_beside_its_row_of_the_table() -> None:
    line = "E0325 20:57:27.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 14750) of binary: /usr/bin/python3"  # noqa: E501
    assert len(read_elastic([line, *TABLE])) == 2
    assert [one.exit_code for one in read_elastic([line])] == [-9]


def test_one_pass_over_a_log_finds_everything() -> None:
    lines = [
        "job started Mon Sep 14 01:58:00 2026",
        "step 91 loss 2.3017",
        *OOM.format(rank=3).splitlines(),
        "[rank4]: RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [10.2.0.7]:28077",
        *TABLE,
    ]
    report = read_log(lines)
    assert report.begun_at_s == pytest.approx(1789351080)
    assert {failure.rank for failure in report.failures} >= {3, 4}
    assert [event.peer for event in report.transport.lines] == ["10.2.0.7"]
    assert [worker.rank for worker in report.workers] == [8, 9]
    assert report.num_lines == len(lines)


def test_stacks_that_were_written_into_a_log_are_those_of_their_ranks() -> None:
    lines = [
        "step 91 loss 2.3017",
        "[rank3]: Thread 0x00007f1c2b7fe700 (most recent call first):",
        '[rank3]:   File "/usr/lib/python3.11/threading.py", line 320 in wait',
        "[rank3]: ",
        "[rank3]: Current thread 0x00007f1c40a8e740 (most recent call first):",
        '[rank3]:   File "/work/shards.py", line 88 in read',
        '[rank3]:   File "/work/train.py", line 121 in <module>',
        "step 92 loss 2.3017",
        "[rank4]: Current thread 0x00007f1c40a8e740 (most recent call first):",
        '[rank4]:   File "/work/loop.py", line 9 in wait',
    ]
    stacks = {stack.rank: stack for stack in read_log(lines).stacks}
    assert str(stacks[3].where) == "read (/work/shards.py:88)"
    assert len(stacks[3].threads) == 2
    assert str(stacks[4].where) == "wait (/work/loop.py:9)"


def test_the_first_stamp_is_no_start_of_the_job_by_itself() -> None:
    report = read_log(["2026-09-14 02:17:40,100 step 4600"])
    assert report.begun_at_s is None
    assert report.first_at_s == pytest.approx(1789352260.1)


def test_a_log_is_read_as_it_comes() -> None:
    """A log of 10 GB is never held: the reader takes one line after the other."""
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for taken in range(200_000):  # noqa: B007
            yield "step 91 loss 2.3017"

    assert read_log(endless()).num_lines == 200_000
    assert taken == 199_999
