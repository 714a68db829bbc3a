"""The summaries that a monitor has saved are read and judged, and damaged files are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from headway.common.plan.grid import Grid
from headway.common.wire import codec
from headway.common.wire.messages.health import Verdict, VerdictKind
from headway.common.wire.messages.summaries import StepSum, StepSummary
from headway.health.client import diagnose_run
from headway.health.slowness.steps import MOST_RANKS
from headway.health.store.summary_file import framed, write_summaries

GRID = Grid(dp=4)
SINCE = 20


def message(one: StepSum) -> StepSummary:
    return StepSummary(run_id="0badcafe", node=one.rank // 2, pid=1, boot_id="b", sequence=1,
                       num_dropped=0, steps=(one,))  # fmt: skip


def messages(steps: range, slow: int = 2) -> Iterator[bytes]:
    for step in steps:
        for rank in range(4):
            own_us = 150_000 if rank == slow and step >= SINCE else 100_000
            one = StepSum(rank, 0, step, step, 0, own_us + 9_000, own_us, 100, 0, 0, 0, 0, ())
            yield codec.encode(message(one))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two minutes of a run."""
    for steps in (range(25), range(25, 50)):
        write_summaries(tmp_path, framed(messages(steps)))
    return tmp_path


def test_the_summaries_of_a_run_show_who_slows_it(folder: Path) -> None:
    done = diagnose_run(folder, folder, GRID)
    [found] = done.found
    assert (found.kind, found.cause, found.since_step) == ("slow", "compute", SINCE)
    assert [str(one) for one in found.culprits] == ["rank 2 on node 1"]
    assert not done.is_wrong, "a hint, until the monitor names the rank"
    assert "rank 2 computes slower than its peers: 1.50x" in done.lines[0]
    assert len([what for what in done.read.values() if what == "summaries of steps"]) == 2


def test_messages_that_were_kept_without_polars_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "summary-1.msgpack").write_bytes(framed(messages(range(50))))
    [found] = diagnose_run(tmp_path, tmp_path, GRID).found
    assert found.since_step == SINCE


def test_a_damaged_file_is_listed_and_the_rest_is_judged(folder: Path) -> None:
    (folder / "summary-00000000000000000000.parquet").write_bytes(b"PAR1 and no more")
    (folder / "summary-00000000000000000001.msgpack").write_bytes(b"\x09\0\0\0cut")
    done = diagnose_run(folder, folder, GRID)
    assert [one.since_step for one in done.found] == [SINCE]
    assert set(done.unread) == {
        "summary-00000000000000000000.parquet", "summary-00000000000000000001.msgpack"
    }  # fmt: skip


def test_a_run_without_summaries_has_nothing_slow(tmp_path: Path) -> None:
    assert not diagnose_run(tmp_path, tmp_path, GRID).is_wrong


def verdict(kind: VerdictKind = "slow_rank") -> Verdict:
    return Verdict(id="a#1", revision=0, kind=kind, cause="compute", is_open=True,
                   run_id="0badcafe", subject="rank", node=1, rank=2)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "is_over", "is_wrong"),
    [
        (None, False, False), (None, True, False), ("slow_rank", False, True),
        ("slow_rank", True, False), ("crash", True, True),
    ],
)  # fmt: skip
def test_a_run_is_wrong_while_its_monitor_says_so_and_slow_only_while_it_trains(
    folder: Path, kind: VerdictKind | None, is_over: bool, is_wrong: bool
) -> None:
    if kind is not None:
        (folder / "verdicts.jsonl").write_bytes(msgspec.json.encode(verdict(kind)) + b"\n")
    done = diagnose_run(folder, folder, GRID, is_over=is_over)
    assert (done.is_wrong, done.is_past) == (is_wrong, is_over and not is_wrong)
    assert any(one.kind == "slow" for one in done.found), "reported in any case"


def test_what_the_monitor_holds_against_a_rank_is_not_said_twice(folder: Path) -> None:
    held = msgspec.structs.replace(verdict(), cause="host_stall")
    (folder / "verdicts.jsonl").write_bytes(msgspec.json.encode(held) + b"\n")
    [found] = diagnose_run(folder, folder, GRID).found
    assert found.cause == "host_stall"


def test_what_slowed_a_running_run_and_is_over_is_past(tmp_path: Path) -> None:
    def quick_again(steps: range) -> Iterator[bytes]:
        yield from messages(steps)
        yield from messages(range(50, 70), slow=-1)

    write_summaries(tmp_path, framed(quick_again(range(50))))
    done = diagnose_run(tmp_path, tmp_path, GRID)
    assert [one.until_step for one in done.found] == [49]
    assert done.is_past
    assert done.lines[0] == "nothing is wrong now; already over:"


@pytest.mark.parametrize("grid", [GRID, None])
@pytest.mark.parametrize("rank", [2**33, MOST_RANKS])
def test_rows_of_a_rank_that_the_run_cannot_have_are_refused_and_the_rest_is_judged(
    tmp_path: Path, rank: int, grid: Grid | None
) -> None:
    damaged = StepSum(rank, 0, 49, 49, 0, 109_000, 100_000, 100, 0, 0, 0, 0, ())
    whole = [*messages(range(50)), codec.encode(message(damaged))]
    (tmp_path / "summary-1.msgpack").write_bytes(framed(iter(whole)))
    done = diagnose_run(tmp_path, tmp_path, grid)
    assert [one.since_step for one in done.found] == [SINCE]
    assert set(done.read) == {"verdicts.jsonl", "summary-1.msgpack"}
    most = 4 if grid else MOST_RANKS
    assert done.unread["summary-1.msgpack"] == (
        f"1 of its 201 rows: rank {rank} is beyond the {most} that the run may have"
    )
