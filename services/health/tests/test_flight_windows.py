"""Flight records on their way to the run folder: each once, over restarts and resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headway.common.node.flight import FlightWriter
from headway.common.node.testing import wait_until
from headway.common.plan.schedule.actions import Kind
from headway.health import flight_windows
from headway.health.flight_windows import FlightWindows, WindowThread
from structlog.testing import capture_logs


def steps(events: Path) -> list[int]:
    """The step numbers in all windows, in file order."""
    return [
        int(s)
        for file in sorted(events.glob("*.npy"))
        for s in np.load(file, allow_pickle=False)["step"]
    ]


def write(path: Path, numbers: range, generation: int = 0) -> FlightWriter:
    writer = FlightWriter.create(path, 0, capacity=64)
    writer.set_generation(generation)
    for step in numbers:
        writer.end(writer.begin(int(Kind.STEP), step=step))
    return writer


def test_each_record_is_written_once_also_by_a_restarted_agent(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(3)).close()
    windows = FlightWindows(tmp_path, tmp_path, 0)
    windows.save()
    windows.save()
    write(ring, range(3, 5)).close()
    FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4]


def test_a_resumed_run_whose_ring_counts_from_zero_again_loses_nothing(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(5)).close()
    FlightWindows(tmp_path, tmp_path, 0).save(final=True)
    ring.unlink()
    write(ring, range(5, 7)).close()
    FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


def test_a_record_that_a_dead_process_left_open_holds_nothing_up(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    writer = write(ring, range(2))
    writer.begin(int(Kind.NORM), step=2)
    windows = FlightWindows(tmp_path, tmp_path, 0)
    windows.save()
    assert steps(tmp_path) == [0, 1]
    writer.close()
    write(ring, range(2, 4), generation=1).close()
    windows.save()
    assert steps(tmp_path) == [0, 1, 2, 2, 3]


def test_the_last_save_waits_for_the_ranks_and_takes_what_they_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(tmp_path / "flight-0.bin", range(2))
    windows = FlightWindows(tmp_path, tmp_path, 0)
    has_writers = [True]
    monkeypatch.setattr(windows, "has_writers", lambda: has_writers[0])
    thread = WindowThread(windows)
    assert not thread.finish()
    writer.end(writer.begin(int(Kind.STEP), step=2))
    writer.begin(int(Kind.NORM), step=3)
    has_writers[0] = False
    wait_until(thread.finish, what="the last save")
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_an_agent_that_is_ended_alone_leaves_open_records_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_windows, "WRITERS_LIMIT_S", 0.1)
    writer = write(tmp_path / "flight-0.bin", range(2))  # this process, which lives
    still_open = writer.begin(int(Kind.STEP), step=2)
    wait_until(WindowThread(FlightWindows(tmp_path, tmp_path, 0)).finish, what="the last save")
    assert steps(tmp_path) == [0, 1]
    writer.end(still_open)
    FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2]


def test_a_write_that_fails_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_windows, "SAVE_INTERVAL_S", 0.01)
    monkeypatch.setattr(flight_windows, "WRITERS_LIMIT_S", 0.1)
    write(tmp_path / "flight-0.bin", range(2)).close()
    with capture_logs() as logs:
        thread = WindowThread(FlightWindows(tmp_path, tmp_path / "events", 0))
        wait_until(lambda: len(logs) > 1, what="two attempts")
        (tmp_path / "events").mkdir()
        wait_until(thread.finish, what="the last save")
    assert {line["event"] for line in logs} == {"flight records are not saved"}
    assert steps(tmp_path / "events") == [0, 1]
