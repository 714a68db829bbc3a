"""Saved windows of flight records: only those of the time asked for are read."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from headway.common.errors import CorruptError
from headway.common.node.event_files import WINDOW, event_files
from headway.common.node.flight import FlightWriter
from headway.common.node.flight_record import RECORD
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.events import in_steps, load_events, windows
from headway.console.run import Run
from headway.console.testing import FakeRun
from headway.console.widgets.tail import FlightTail
from headway.health.client import Saving
from structlog.testing import capture_logs

FUZZ = """
import sys
from pathlib import Path
from headway.common.errors import CorruptError
from headway.common.node.event_files import event_files
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.windows import read_window
from headway.console.folder.records import RunRecords
num_read = num_refused = 0
clocks = Clocks(RunRecords(Path(sys.argv[1])))
for file in event_files(Path(sys.argv[2])):
    try:
        read_window(file, clocks)
        num_read += 1
    except CorruptError as error:
        assert str(file.path) in str(error) and error.remedy and "\\n" not in str(error), error
        num_refused += 1
print(num_read, num_refused)
"""


@pytest.fixture
def saved(fake: FakeRun) -> Iterator[RunDir]:
    """A run of which two windows were saved, of steps 0 to 2 and 3 to 5; its rings are gone."""
    paths = NodePaths(fake.folder.run_id, 0)
    for _ in range(2):
        fake.advance(3)
        assert Saving(paths.shm_dir, fake.folder.events, 0).run()
    fake.finish()
    for ring in paths.segments("flight"):
        ring.unlink()
    yield fake.folder


def damage(run: RunDir, number: int, content: bytes | None = None) -> Path:
    """Cut a window in half, or give it another content."""
    path = event_files(run.events)[number].path
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    return path


def test_what_was_saved_is_what_the_rings_had(fake: FakeRun) -> None:
    fake.advance(3)
    live = load_events(fake.folder.path)
    paths = NodePaths(fake.folder.run_id, 0)
    assert Saving(paths.shm_dir, fake.folder.events, 0).run()
    for ring in paths.segments("flight"):
        ring.unlink()
    assert load_events(fake.folder.path).equals(live)


def test_a_window_outside_of_the_time_asked_for_is_not_read(saved: RunDir) -> None:
    events = load_events(saved.path)
    border_ns = events.filter(step=2)["end_ns"].max()
    assert isinstance(border_ns, int)
    begin_ns = events.filter(step=3)["start_ns"].min()
    assert isinstance(begin_ns, int) and begin_ns > border_ns
    second = load_events(saved.path, since_s=begin_ns / 1e9)
    assert second["step"].unique().sort().to_list() == [3, 4, 5]
    damage(saved, 1)
    first = load_events(saved.path, until_s=border_ns / 1e9)
    assert first["step"].unique().sort().to_list() == [0, 1, 2]
    with pytest.raises(CorruptError, match="not a window of records"):
        load_events(saved.path)


def test_a_window_before_the_time_asked_for_costs_its_metadata_only(
    saved: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_ns = load_events(saved.path).filter(step=3)["start_ns"].min()
    assert isinstance(begin_ns, int)
    scanned, scan = [], pl.scan_parquet

    def noted(path: Path, **options: bool) -> pl.LazyFrame:
        scanned.append(path)
        return scan(path, **options)

    monkeypatch.setattr(pl, "scan_parquet", noted)
    load_events(saved.path, since_s=begin_ns / 1e9)
    assert scanned == [event_files(saved.events)[1].path]


def test_only_the_records_asked_for_are_returned(saved: RunDir) -> None:
    events = load_events(saved.path)
    chosen = load_events(saved.path, where=in_steps(2, 3))
    assert chosen.equals(events.filter(pl.col("step").is_between(2, 3)))
    steps = load_events(saved.path, where=pl.col("kind") == Kind.STEP)
    assert steps["action"].unique().to_list() == ["STEP"]


def test_a_report_on_some_steps_reads_those_and_says_the_same(saved: RunDir) -> None:
    run = Run(saved.path)
    whole, part = run.performance(), run.performance(first_step=2, last_step=3)
    assert part.ledger.equals(whole.ledger.filter(pl.col("step").is_between(2, 3)))
    assert len(part._events) < len(whole._events)


def test_a_window_that_was_cut_in_half_is_one_finding_and_a_live_view_leaves_it_out(
    saved: RunDir,
) -> None:
    path = damage(saved, 0)
    with pytest.raises(CorruptError, match="not a window of records") as caught:
        load_events(saved.path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.remedy == "remove the file"
    with capture_logs() as logs:
        found = list(windows(saved, skips_damaged=True))
    assert {step for _, _, rows in found for step in rows["step"]} == {3, 4, 5}
    assert [line["log_level"] for line in logs] == ["warning"]
    tail = FlightTail(saved.path)
    assert set(tail.read().rows["step"].tolist()) == {3, 4, 5}
    tail.close()


def test_the_tail_of_an_ended_run_reads_only_its_window(saved: RunDir) -> None:
    tail = FlightTail(saved.path, window_s=1e-6)
    assert set(tail.read().rows["step"].tolist()) == {5}
    tail.close()


def test_a_window_that_its_node_removes_meanwhile_is_left_out(
    saved: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = event_files(saved.events)
    monkeypatch.setattr("headway.console.analysis.events.event_files", lambda _: found)
    found[0].path.unlink()
    assert load_events(saved.path)["step"].unique().sort().to_list() == [3, 4, 5]


def test_windows_of_an_earlier_version_are_refused_by_name(fake: FakeRun) -> None:
    np.save(fake.folder.events / f"n0-rank0-{0:020d}.npy", np.zeros(3, RECORD))
    with pytest.raises(CorruptError, match=r"n0-rank0-0+\.npy holds records of another format"):
        load_events(fake.folder.path)


@pytest.mark.parametrize("content", [b"no array", b"\x93NUMPY\x01\0v\0{'descr': [("])
def test_an_unreadable_raw_window_is_named(fake: FakeRun, content: bytes) -> None:
    path = fake.folder.events / f"n0-{0:020d}.npy"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=str(path)):
        load_events(fake.folder.path)


@pytest.mark.parametrize("dtype", [np.dtype("f8"), RECORD])
def test_a_raw_window_of_another_format_is_refused(fake: FakeRun, dtype: np.dtype) -> None:
    np.save(fake.folder.events / f"n0-{0:020d}.npy", np.zeros(3, dtype))
    with pytest.raises(CorruptError, match="another format"):
        load_events(fake.folder.path)


def test_raw_windows_are_filtered_too(fake: FakeRun) -> None:
    rows = np.zeros(4, WINDOW)
    rows["step"], rows["rank"], rows["sequence"] = [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1]
    rows["start_ns"] = rows["end_ns"] = np.arange(1, 5)
    np.save(fake.folder.events / f"n0-{1:020d}.npy", rows)
    found = load_events(fake.folder.path, where=pl.col("step") == 1)
    assert found.select("rank", "start_ns").rows() == [(0, 2), (1, 4)]


def test_no_damage_ends_a_reader(saved: RunDir, tmp_path: Path) -> None:
    """Bytes changed, removed or added: a window is read, or refused by name."""
    chance, folder = random.Random(7), tmp_path / "fuzzed"
    folder.mkdir()
    whole = event_files(saved.events)[0].path.read_bytes()
    for number in range(300):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 4, 64))):
            # half of them in the footer, where the sizes are
            low = chance.choice((0, len(content) * 3 // 4))
            content[chance.randrange(low, len(content))] = chance.randrange(256)
        if number % 5 == 0:
            at = chance.randrange(len(content))
            content[at : at + chance.randrange(64)] = chance.randbytes(chance.randrange(64))
        (folder / f"n0-{number:020d}.parquet").write_bytes(content)
    program = [sys.executable, "-c", FUZZ, str(saved.path), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    num_read, num_refused = map(int, done.stdout.split())
    assert num_read + num_refused == 300 and num_refused > 30


def test_a_ring_of_the_run_is_read_beside_its_windows(saved: RunDir) -> None:
    writer = FlightWriter.create(NodePaths(saved.run_id, 0).segment("flight", 0), 0, 64)
    writer.end(writer.begin(int(Kind.STEP), step=9))
    assert load_events(saved.path, where=pl.col("step") > 4)["step"].unique().sort().to_list() == [
        5,
        9,
    ]
    writer.close()
