"""Flight records on their way to the run folder: each once, over restarts and resumes."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import ON_DEVICE, RECORD
from headway.common.node.testing import wait_until
from headway.common.plan.schedule.actions import Kind
from headway.health import flight_windows
from headway.health.flight_windows import FlightWindows, WindowThread
from headway.testkit.played.hanging_rank import hanging_rank
from structlog.testing import capture_logs


def steps(events: Path, rank: int | str = "*") -> list[int]:
    """The step numbers in all windows, in file order."""
    return [
        int(s)
        for file in sorted(events.glob(f"n0-rank{rank}-*.npy"))
        for s in np.load(file, allow_pickle=False)["step"]
    ]


def write(path: Path, numbers: range, generation: int = 0, rank: int = 0) -> FlightWriter:
    writer = FlightWriter.create(path, rank, capacity=64)
    writer.set_generation(generation)
    for step in numbers:
        writer.end(writer.begin(int(Kind.STEP), step=step))
    return writer


def test_each_record_is_written_once_also_by_a_restarted_agent(tmp_path: Path) -> None:
    # The ring keeps 7 records, so each window begins elsewhere and none replaces another's file.
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0, capacity=8)
    windows = FlightWindows(tmp_path, tmp_path, 0)
    for first in range(0, 18, 3):
        for step in range(first, first + 3):
            writer.end(writer.begin(int(Kind.STEP), step=step))
        if first == 6:
            windows = FlightWindows(tmp_path, tmp_path, 0)
        windows.save()
    windows.save()
    assert steps(tmp_path) == list(range(18))


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


def test_an_agent_that_is_ended_alone_leaves_open_records_to_its_successor(tmp_path: Path) -> None:
    writer = write(tmp_path / "flight-0.bin", range(2))  # this process, which lives
    still_open = writer.begin(int(Kind.STEP), step=2)
    wait_until(WindowThread(FlightWindows(tmp_path, tmp_path, 0)).finish, what="the last save")
    assert steps(tmp_path) == [0, 1]
    writer.end(still_open)
    FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2]


def test_of_a_dead_rank_all_is_saved_and_of_a_living_one_what_it_has_ended(tmp_path: Path) -> None:
    with (
        hanging_rank(tmp_path / "flight-0.bin", 0),
        hanging_rank(tmp_path / "flight-1.bin", 1) as b,
    ):
        b.kill()
        b.wait()
        FlightWindows(tmp_path, tmp_path, 0).save()
        assert steps(tmp_path, rank=0) == [0, 1]
        assert steps(tmp_path, rank=1) == [0, 1, 2, 3, 4]


def test_a_record_is_saved_once_its_device_times_are_known(tmp_path: Path) -> None:
    writer = write(tmp_path / "flight-0.bin", range(2))
    seq = writer.begin(int(Kind.STEP), step=2, flags=ON_DEVICE)
    writer.end(seq)
    writer.end(writer.begin(int(Kind.STEP), step=3))
    windows = FlightWindows(tmp_path, tmp_path, 0)
    windows.save()
    assert steps(tmp_path) == [0, 1]
    writer.correct(seq, 10**18, 10**18)
    windows.save()
    assert steps(tmp_path) == [0, 1, 2, 3]
    newest = np.load(max(tmp_path.glob("*.npy")))
    assert newest["step"].tolist() == [2, 3]
    assert newest["device"].astype(bool).tolist() == [True, False]
    writer.end(writer.begin(int(Kind.STEP), step=4, flags=ON_DEVICE))
    writer.set_generation(1)  # nobody corrects it any more
    writer.end(writer.begin(int(Kind.STEP), step=5))
    windows.save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]
    writer.close()


def test_the_final_save_takes_what_living_ranks_have_open_too(tmp_path: Path) -> None:
    with hanging_rank(tmp_path / "flight-0.bin", 0) as rank:
        rank.send_signal(signal.SIGSTOP)
        FlightWindows(tmp_path, tmp_path, 0).save()
        assert steps(tmp_path) == [0, 1]
        FlightWindows(tmp_path, tmp_path, 0).save(final=True)
        assert steps(tmp_path) == [0, 1, 2, 3, 4]
        FlightWindows(tmp_path, tmp_path, 0).save(final=True)
        assert steps(tmp_path) == [0, 1, 2, 3, 4]


def test_a_process_that_takes_the_ring_over_during_the_save_keeps_its_open_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = tmp_path / "flight-0.bin"
    with hanging_rank(ring, 0) as dead:
        dead.kill()
        dead.wait()
    snapshot, taken_over = FlightReader.snapshot, []

    def late_snapshot(reader: FlightReader) -> np.ndarray:
        writer = write(ring, range(5, 6), generation=1)
        taken_over.append((writer, writer.begin(int(Kind.STEP), step=6)))
        return snapshot(reader)

    windows = FlightWindows(tmp_path, tmp_path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(FlightReader, "snapshot", late_snapshot)
        windows.save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]
    [(writer, still_open)] = taken_over
    writer.end(still_open)
    windows.save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


def old_window(events: Path, content: bytes) -> Path:
    """A window of rank 0 that a saver before left, by its name later than any of this boot."""
    window = events / f"n0-rank0-{10**18:020d}.npy"
    window.write_bytes(content)
    return window


def test_after_a_reboot_the_clock_begins_at_0_and_nothing_is_lost_or_written_twice(
    tmp_path: Path,
) -> None:
    ring, before = tmp_path / "flight-0.bin", np.zeros(1, RECORD)
    before["start_ns"], before["step"] = 10**18, 99
    content = io.BytesIO()
    np.save(content, before)
    window = old_window(tmp_path, content.getvalue())
    os.utime(window, (1, 1))
    write(ring, range(2)).close()
    windows = FlightWindows(tmp_path, tmp_path, 0)
    windows.save()
    write(ring, range(2, 4)).close()
    windows.save()
    for numbers in (range(4, 6), range(6, 8)):  # an agent that is restarted twice
        write(ring, numbers).close()
        FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [*range(8), 99]


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"\x93NUMPY\x01\0v\0{'descr': [(", b"torn"])
def test_a_damaged_window_is_passed_over(tmp_path: Path, content: bytes) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(2)).close()
    FlightWindows(tmp_path, tmp_path, 0).save()
    damaged = old_window(tmp_path, content)
    write(ring, range(2, 4)).close()
    with capture_logs() as logs:
        FlightWindows(tmp_path, tmp_path, 0).save()
    assert [line["event"] for line in logs] == ["a window of flight records is damaged"]
    damaged.unlink()
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_a_window_that_ends_in_zeros_is_damaged_too(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(2)).close()
    FlightWindows(tmp_path, tmp_path, 0).save()
    content = io.BytesIO()
    np.save(content, np.zeros(3, RECORD))
    damaged = old_window(tmp_path, content.getvalue())
    write(ring, range(2, 4)).close()
    FlightWindows(tmp_path, tmp_path, 0).save()
    damaged.unlink()
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_a_rank_that_cannot_be_saved_holds_up_no_other(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "flight-0.bin").write_bytes(b"no ring")
    write(tmp_path / "flight-1.bin", range(2), rank=1).close()
    with capture_logs() as logs:
        FlightWindows(tmp_path, events, 0).save()
    assert [line["rank"] for line in logs if line["log_level"] == "error"] == ["0"]
    assert steps(events, rank=1) == [0, 1]


def test_a_save_leaves_no_ring_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "flight-0.bin", range(2)).close()
    write(tmp_path / "flight-1.bin", range(2), rank=1).close()
    kept, snapshot = [], FlightReader.snapshot

    def snapshot_or_fail(reader: FlightReader) -> np.ndarray:
        kept.append(reader)  # the garbage collector must not be what unmaps it
        if reader.header.rank == 0:
            raise OSError("a broken page")
        return snapshot(reader)

    monkeypatch.setattr(FlightReader, "snapshot", snapshot_or_fail)
    FlightWindows(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1]
    assert len(kept) == 2
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_write_that_fails_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_windows, "SAVE_INTERVAL_S", 0.01)
    write(tmp_path / "flight-0.bin", range(2)).close()
    with capture_logs() as logs:
        thread = WindowThread(FlightWindows(tmp_path, tmp_path / "events", 0))
        wait_until(lambda: len(logs) > 1, what="two attempts")
        (tmp_path / "events").mkdir()
        wait_until(thread.finish, what="the last save")
    assert {line["event"] for line in logs} == {"flight records are not saved"}
    assert steps(tmp_path / "events") == [0, 1]
