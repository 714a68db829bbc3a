"""Summaries of steps as frames: times of one clock, and who entered a group how late."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest
from headway.common.errors import CorruptError
from headway.common.plan.collectives import GroupKind
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.console.analysis.summaries import SCHEMA, group_lateness, load_summaries
from headway.console.testing import FakeRun
from headway.health.store.summary_file import framed, write_summaries

DP, FORWARD = 2 * GroupKind.DP, 2 * GroupKind.FORWARD


def summed(rank: int, step: int, entered_us: int, number: int = 0) -> StepSum:
    """A step that entered its dp group ``entered_us`` after its beginning, and again 1 ms later."""
    return StepSum(
        rank=rank,
        generation=0,
        step=step,
        sequence=step,
        start_ns=10**9 * (step + 1),
        duration_us=10_000,
        own_us=5_000,
        data_us=0,
        snapshot_us=0,
        collection_us=0,
        norm_us=0,
        optimizer_us=0,
        groups=(
            GroupSum(DP, number, 2, 70, 100, entered_us, entered_us + 1000),
            GroupSum(FORWARD, rank, 2, 70, 100, 0, 1),
        ),
    )


def save(folder: Path, *steps: StepSum) -> Path:
    message = StepSummary(
        run_id="0" * 8, node=0, pid=1, boot_id="b", sequence=1, num_dropped=0, steps=steps
    )
    return write_summaries(folder, framed([msgspec.msgpack.encode(message)]))


def test_each_rank_is_late_by_what_its_group_entered_before(fake: FakeRun) -> None:
    folder = fake.folder.summaries
    save(folder, *(summed(rank, 0, entered) for rank, entered in enumerate((100, 110, 5000))))
    save(folder, summed(0, 1, 100), summed(3, 1, 100, number=3))
    rows = load_summaries(fake.folder.path)
    assert rows.select("rank", "step").rows() == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 1)]
    assert rows["uncertainty_ns"].to_list() == [0] * 5, "one machine carries the run"
    late = group_lateness(rows)
    assert late.select("rank", "line", "first_late_us", "last_late_us").rows() == [
        (0, DP, -10, -10),
        (1, DP, 0, 0),
        (2, DP, 4890, 4890),
    ]


def test_only_the_steps_asked_for_are_returned_and_one_saved_twice_counts_once(
    fake: FakeRun,
) -> None:
    for _ in range(2):
        save(fake.folder.summaries, summed(0, 0, 1), summed(0, 1, 1))
    found = load_summaries(fake.folder.path, where=pl.col("step") == 1)
    assert found["step"].to_list() == [1]


def test_without_summaries_the_frames_are_empty(fake: FakeRun) -> None:
    found = load_summaries(fake.folder.path)
    assert found.columns == [*SCHEMA, "uncertainty_ns"] and found.is_empty()
    assert group_lateness(found).is_empty()


@pytest.mark.parametrize("content", ["half", b"", b"PAR1PAR1PAR1"])
def test_a_damaged_file_is_one_finding(fake: FakeRun, content: str | bytes) -> None:
    path = save(fake.folder.summaries, summed(0, 0, 1))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if isinstance(content, str) else content)
    with pytest.raises(CorruptError, match=str(path)):
        load_summaries(fake.folder.path)
