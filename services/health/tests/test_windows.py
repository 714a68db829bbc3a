"""Flight records on their way to the run folder: each once, over restarts and resumes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from headway.common.node.event_files import FACTS_KEY, event_files, read_facts, read_raw
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import ON_DEVICE
from headway.common.node.testing import wait_until
from headway.common.plan.schedule.actions import Kind
from headway.health.store import child
from headway.health.store.child import SaveThread, Saving
from headway.health.store.write import LOCK_FILE, _lock, save
from headway.testkit.played.hanging_rank import hanging_rank
from structlog.testing import capture_logs

NO_POLARS = "import sys; sys.modules['polars'] = None; from headway.health.store import write; "


@pytest.fixture
def events(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    return folder


def rows(events: Path) -> list[tuple[int, int]]:
    """(rank, step) of all records of all windows, in the order of the files' names."""
    found: list[tuple[int, int]] = []
    for file in event_files(events, node=0):
        frame = pl.read_parquet(file.path) if file.is_parquet else pl.DataFrame(_raw(file.path))
        found += frame.select("rank", "step").rows()
    return found


def _raw(path: Path) -> dict[str, Any]:
    window = read_raw(path)
    return {name: np.ascontiguousarray(window[name]) for name in window.dtype.names or ()}


def steps(events: Path, rank: int = 0) -> list[int]:
    return [step for of, step in rows(events) if of == rank]


def write(path: Path, numbers: range, generation: int = 0, rank: int = 0) -> FlightWriter:
    writer = FlightWriter.create(path, rank, capacity=64)
    writer.set_generation(generation)
    for step in numbers:
        writer.end(writer.begin(int(Kind.STEP), step=step))
    return writer


def test_each_record_is_written_once_and_what_was_overwritten_is_counted(
    tmp_path: Path, events: Path
) -> None:
    # The ring keeps 7 records.
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0, capacity=8)
    for first in range(0, 18, 3):
        for step in range(first, first + 3):
            writer.end(writer.begin(int(Kind.STEP), step=step))
        save(tmp_path, events, 0)
    save(tmp_path, events, 0)
    assert steps(events) == list(range(18))
    for step in range(18, 30):
        writer.end(writer.begin(int(Kind.STEP), step=step))
    with capture_logs() as logs:
        path = save(tmp_path, events, 0)
    assert path is not None
    facts = read_facts(path, pl.read_parquet_metadata(path)[FACTS_KEY])
    assert facts.ranks[0].lost == 5 == logs[0]["lost"]
    assert steps(events)[18:] == list(range(23, 30))
    writer.close()


def test_all_ranks_are_in_one_file_sorted_by_rank_and_an_idle_one_keeps_its_place(
    tmp_path: Path, events: Path
) -> None:
    writers = [write(tmp_path / f"flight-{rank}.bin", range(2), rank=rank) for rank in (10, 9)]
    save(tmp_path, events, 0)
    assert rows(events) == [(9, 0), (9, 1), (10, 0), (10, 1)]
    for step in (2, 3):
        writers[0].end(writers[0].begin(int(Kind.STEP), step=step))
        save(tmp_path, events, 0)
    assert len(event_files(events)) == 3
    writers[1].end(writers[1].begin(int(Kind.STEP), step=2))
    save(tmp_path, events, 0)
    assert rows(events)[4:] == [(10, 2), (10, 3), (9, 2)], "nothing of rank 9 twice"
    for writer in writers:
        writer.close()


def test_a_resumed_run_whose_ring_counts_from_zero_again_loses_nothing(
    tmp_path: Path, events: Path
) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(5)).close()
    save(tmp_path, events, 0, final=True)
    for numbers in (range(5, 7), range(7, 14)):  # fewer records than before, then more
        ring.unlink()
        write(ring, numbers).close()
        save(tmp_path, events, 0)
    assert steps(events) == list(range(14))


def test_a_record_that_a_dead_process_left_open_holds_nothing_up(
    tmp_path: Path, events: Path
) -> None:
    ring = tmp_path / "flight-0.bin"
    writer = write(ring, range(2))
    writer.begin(int(Kind.NORM), step=2)
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1]
    writer.close()
    write(ring, range(2, 4), generation=1).close()
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1, 2, 2, 3]


def test_of_a_dead_rank_all_is_saved_and_of_a_living_one_what_it_has_ended(
    tmp_path: Path, events: Path
) -> None:
    with (
        hanging_rank(tmp_path / "flight-0.bin", 0),
        hanging_rank(tmp_path / "flight-1.bin", 1) as b,
    ):
        b.kill()
        b.wait()
        save(tmp_path, events, 0)
        assert steps(events, rank=0) == [0, 1]
        assert steps(events, rank=1) == [0, 1, 2, 3, 4]


def test_a_record_is_saved_once_its_device_times_are_known(tmp_path: Path, events: Path) -> None:
    writer = write(tmp_path / "flight-0.bin", range(2))
    seq = writer.begin(int(Kind.STEP), step=2, flags=ON_DEVICE)
    writer.end(seq)
    writer.end(writer.begin(int(Kind.STEP), step=3))
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1]
    writer.correct(seq, 10**18, 10**18)
    newest = save(tmp_path, events, 0)
    assert newest is not None
    window = pl.read_parquet(newest)
    assert window["step"].to_list() == [2, 3]
    assert (window["device_span_us"] > 0).to_list() == [True, False]
    writer.end(writer.begin(int(Kind.STEP), step=4, flags=ON_DEVICE))
    writer.set_generation(1)  # nobody corrects it any more
    writer.end(writer.begin(int(Kind.STEP), step=5))
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1, 2, 3, 4, 5]
    writer.close()


def test_the_final_save_takes_what_living_ranks_have_open_too(tmp_path: Path, events: Path) -> None:
    with hanging_rank(tmp_path / "flight-0.bin", 0) as rank:
        rank.send_signal(signal.SIGSTOP)
        save(tmp_path, events, 0)
        assert steps(events) == [0, 1]
        save(tmp_path, events, 0, final=True)
        assert steps(events) == [0, 1, 2, 3, 4]
        save(tmp_path, events, 0, final=True)
        assert steps(events) == [0, 1, 2, 3, 4]


def test_a_process_that_takes_the_ring_over_during_the_save_keeps_its_open_record(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = tmp_path / "flight-0.bin"
    with hanging_rank(ring, 0) as dead:
        dead.kill()
        dead.wait()
    snapshot, taken_over = FlightReader.snapshot, []

    def late_snapshot(reader: FlightReader, since: int = 0) -> np.ndarray:
        writer = write(ring, range(5, 6), generation=1)
        taken_over.append((writer, writer.begin(int(Kind.STEP), step=6)))
        return snapshot(reader, since)

    with monkeypatch.context() as patch:
        patch.setattr(FlightReader, "snapshot", late_snapshot)
        save(tmp_path, events, 0)
    assert steps(events) == [0, 1, 2, 3, 4, 5]
    [(writer, still_open)] = taken_over
    writer.end(still_open)
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1, 2, 3, 4, 5, 6]
    writer.close()


def test_after_a_reboot_the_clock_begins_at_0_and_nothing_is_lost_or_written_twice(
    tmp_path: Path, events: Path
) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(90, 99)).close()
    before = save(tmp_path, events, 0)
    assert before is not None
    before = before.rename(events / f"n0-{10**18:020d}.parquet")
    os.utime(before, (1, 1))
    ring.unlink()
    write(ring, range(2)).close()
    save(tmp_path, events, 0)
    for numbers in (range(2, 4), range(4, 6)):
        write(ring, numbers).close()
        save(tmp_path, events, 0)
    assert steps(events) == [*range(6), *range(90, 99)]


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"PAR1" + b"\0" * 99 + b"PAR1", "half"])
def test_a_damaged_window_is_passed_over_with_one_line(
    tmp_path: Path, events: Path, content: bytes | str
) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(2)).close()
    whole = save(tmp_path, events, 0)
    assert whole is not None
    if isinstance(content, str):
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    damaged = events / f"n0-{10**18:020d}.parquet"
    damaged.write_bytes(content)
    write(ring, range(2, 4)).close()
    with capture_logs() as logs:
        save(tmp_path, events, 0)
    assert [line["event"] for line in logs] == ["a window of flight records is damaged"]
    damaged.unlink()
    assert steps(events) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["flight-0.bin", "flight-x.bin"])
def test_a_rank_that_cannot_be_saved_holds_up_no_other(
    tmp_path: Path, events: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"no ring")
    write(tmp_path / "flight-1.bin", range(2), rank=1).close()
    with capture_logs() as logs:
        save(tmp_path, events, 0)
    assert [line["ring"] for line in logs if line["log_level"] == "error"] == [name]
    assert steps(events, rank=1) == [0, 1]


def test_a_save_leaves_no_ring_mapped(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "flight-0.bin", range(2)).close()
    write(tmp_path / "flight-1.bin", range(2), rank=1).close()
    kept, snapshot = [], FlightReader.snapshot

    def snapshot_or_fail(reader: FlightReader, since: int = 0) -> np.ndarray:
        kept.append(reader)  # the garbage collector must not be what unmaps it
        if reader.header.rank == 0:
            raise OSError("a broken page")
        return snapshot(reader, since)

    monkeypatch.setattr(FlightReader, "snapshot", snapshot_or_fail)
    save(tmp_path, events, 0)
    assert steps(events, rank=1) == [0, 1]
    assert len(kept) == 2
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_one_process_saves_at_a_time_and_scratch_of_a_killed_one_is_removed(
    tmp_path: Path, events: Path
) -> None:
    write(tmp_path / "flight-0.bin", range(2)).close()
    scratch = events / ".n0-00000000000000000001.parquet.7.abcd"
    scratch.touch()
    with _lock(tmp_path / LOCK_FILE, 0.0) as is_held, capture_logs() as logs:
        assert is_held and save(tmp_path, events, 0) is None
    assert "another process" in logs[0]["event"] and scratch.exists()
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1] and not scratch.exists()


def test_savers_that_are_killed_at_any_moment_lose_and_repeat_nothing(
    tmp_path: Path, events: Path
) -> None:
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0, capacity=4096)
    saving, chance, num_steps = Saving(tmp_path, events, 0), random.Random(5), 0
    for _ in range(8):
        for step in range(num_steps, num_steps + 50):
            writer.end(writer.begin(int(Kind.STEP), step=step))
        num_steps += 50
        with subprocess.Popen(saving._command(final=False)) as saver:
            with contextlib.suppress(subprocess.TimeoutExpired):
                saver.wait(chance.uniform(0.0, 1.0))
            saver.kill()
    assert saving.run()
    assert steps(events) == list(range(num_steps))
    writer.close()


def test_without_polars_windows_are_raw_and_the_next_saver_continues_after_them(
    tmp_path: Path, events: Path
) -> None:
    arguments = ["--shm-dir", str(tmp_path), "--events", str(events), "--node", "0"]
    program = f"{NO_POLARS} sys.exit(write.main({arguments}))"
    for numbers in (range(2), range(2, 4)):
        write(tmp_path / "flight-0.bin", numbers).close()
        write(tmp_path / "flight-1.bin", range(2), rank=1).close()
        subprocess.run([sys.executable, "-c", program], check=True)
    assert [file.is_parquet for file in event_files(events)] == [False, False]
    write(tmp_path / "flight-0.bin", range(4, 6)).close()
    save(tmp_path, events, 0)
    assert steps(events) == [0, 1, 2, 3, 4, 5]


def test_the_child_saves_and_an_agent_leaves_open_records_to_its_successor(
    tmp_path: Path, events: Path
) -> None:
    writer = write(tmp_path / "flight-0.bin", range(2))  # this process, which lives
    still_open = writer.begin(int(Kind.STEP), step=2)
    wait_until(SaveThread(Saving(tmp_path, events, 0)).finish, what="the last save")
    assert steps(events) == [0, 1]
    writer.end(still_open)
    assert Saving(tmp_path, events, 0).run()
    assert steps(events) == [0, 1, 2]
    writer.close()


def test_a_save_that_fails_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(child, "SAVE_INTERVAL_S", 0.0)
    write(tmp_path / "flight-0.bin", range(2)).close()
    thread = SaveThread(Saving(tmp_path, tmp_path / "events", 0))
    said = []

    def has_failed_twice() -> bool:
        said.append(capfd.readouterr().err)
        return "".join(said).count("flight records are not saved") > 1

    wait_until(has_failed_twice, what="two attempts")
    (tmp_path / "events").mkdir()
    wait_until(thread.finish, what="the last save")
    assert steps(tmp_path / "events") == [0, 1]


def test_a_save_that_lasts_too_long_is_ended(tmp_path: Path) -> None:
    with capture_logs() as logs:
        # less than an interpreter takes to start, so every save lasts too long
        assert not Saving(tmp_path, tmp_path, 0).run(limit_s=0.001)
    assert "no end within 0.001 s" in logs[0]["reason"]


def test_a_ring_that_fills_soon_is_saved_before_its_minute_is_over(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LOOK_INTERVAL_S", 0.01)
    writer = write(tmp_path / "flight-0.bin", range(8))
    thread = SaveThread(Saving(tmp_path, events, 0))
    for step in range(8, 48):
        writer.end(writer.begin(int(Kind.STEP), step=step))
    wait_until(lambda: len(steps(events)) == 48, what="an early save")
    wait_until(thread.finish, what="the last save")
    writer.close()
