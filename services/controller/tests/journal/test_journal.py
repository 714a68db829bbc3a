"""The run's journal and the thread that writes it: a failed write leaves both usable."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Report
from headway.common.wire.messages.executor import Sample, StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import Memory
from headway.controller.driver.memory import recall, remember
from headway.controller.journal.journal import Journal
from headway.controller.journal.reads import READS
from headway.controller.journal.reports import Reports
from headway.controller.journal.writer import JournalWriter
from headway.launch.lease.base import SupersededError
from structlog.testing import capture_logs

LIMIT_S = 30.0


NAN = float("nan")


def _metrics(step: int, loss: float = 1.0, generation: int = 0) -> StepMetrics:
    return StepMetrics(
        generation=generation,
        step=step,
        loss=loss,
        grad_norm=1.0,
        lr=1e-3,
        tokens=8,
        duration_s=0.1,
        unix_s=float(step),
        skipped=loss != loss,
    )


def _rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


@pytest.fixture
def writer(path: Path) -> Iterator[JournalWriter]:
    made = JournalWriter(Journal(path, epoch=1), lambda: None)
    yield made
    made.close(LIMIT_S)


def _until(writer: JournalWriter, condition: Callable[[], bool]) -> None:
    def look() -> bool:
        writer.run_callbacks()
        return condition()

    assert wait_until(look, LIMIT_S)


def test_a_number_that_is_not_finite_leaves_an_event_valid_json(path: Path) -> None:
    journal = Journal(path, epoch=1)
    fields = {"b": [NAN, 1.5, path], "a": {0: -math.inf}}
    journal.event("odd", fields, 0.0)
    journal.event("plain", {"b": path, "a": 1}, 0.0)
    journal.close()
    assert _rows(path, "SELECT fields FROM events WHERE json_valid(fields)") == [
        (f'{{"a": {{"0": null}}, "b": [null, 1.5, "{path}"]}}',),
        (f'{{"a": 1, "b": "{path}"}}',),
    ]


def test_a_write_that_fails_leaves_nothing_and_the_journal_usable(path: Path) -> None:
    journal = Journal(path, epoch=1)
    with pytest.raises(OverflowError):
        journal.store([_metrics(1), _metrics(2**63)])
    journal.event("after", {}, 1.0)
    journal.begin_generation(0, {0: 0})
    assert _rows(path, "SELECT name FROM events") == [("after",)]
    assert _rows(path, "SELECT generation FROM generations") == [(0,)], "durable for other readers"
    assert _rows(path, "SELECT step FROM metrics") == []
    journal.close()


def test_the_journal_is_private_and_keeps_what_a_successor_needs(path: Path) -> None:
    journal = Journal(path, epoch=1)
    memory = Memory(crashes=(("rank 1 failed", 5, 2),), lost=(3,), bad_checkpoints=(7,))
    remember(journal, memory)
    journal.close()
    assert path.stat().st_mode & 0o777 == 0o600
    successor = Journal(path, epoch=2)
    assert recall(successor) == memory
    successor.set_facts(memory="{torn")
    assert recall(successor) == Memory()
    successor.close()


def test_an_older_driver_cannot_write_once_a_newer_one_has(path: Path) -> None:
    old, new = Journal(path, epoch=3), Journal(path, epoch=4)
    old.event("old", {}, 1.0)
    new.event("new", {}, 2.0)
    with pytest.raises(SupersededError, match="belongs to epoch 4"):
        old.event("late", {}, 3.0)
    with pytest.raises(SupersededError):
        old.begin_generation(9, {0: 0})
    assert _rows(path, "SELECT epoch, name FROM events") == [(3, "old"), (4, "new")]
    old.close()
    new.close()


def test_a_resumed_run_forgets_its_stop_and_keeps_its_rate_and_its_history(path: Path) -> None:
    journal = Journal(path)
    journal.add_command("a", Steer(sequence=0, operation="set", name="lr", value=0.1))
    journal.add_command("b", Steer(sequence=0, operation="stop"))
    journal.set_facts(outcome="stopped")
    journal.reopen()
    journal.add_command("c", Steer(sequence=0, operation="pause"))
    assert [one.operation for one in journal.commands()] == ["set", "retired", "pause"]
    assert journal.fact("outcome", "?") == ""
    assert _rows(path, "SELECT operation FROM commands") == [("set",), ("stop",), ("pause",)]
    journal.close()


def test_metrics_of_a_second_rank_fill_gaps_and_change_nothing(
    path: Path, writer: JournalWriter
) -> None:
    reports, numbers = Reports(writer), {0: itertools.count(1), 1: itertools.count(1)}

    def take(node: int, step: int, duration_s: float, loss: float = 1.0) -> None:
        metrics = msgspec.structs.replace(_metrics(step, loss, generation=1), duration_s=duration_s)
        reports.take(Report(node=node, sequence=next(numbers[node]), oldest=1, metrics=metrics))

    def stored() -> None:
        reports.flush()
        _until(writer, lambda: not reports._waiting)

    take(0, 7, 0.1), stored()
    assert reports.measured == (1, 7)
    take(1, 7, 0.5), take(1, 8, 0.5, NAN), stored()
    assert reports.measured == (1, 8) and reports.num_skipped == 1
    assert [(one.step, one.duration_s) for one in reports.newest] == [(7, 0.1), (8, 0.5)]
    rows = _rows(path, "SELECT step, duration_s FROM metrics ORDER BY step")
    assert rows == [(7, 0.1), (8, 0.5)]
    reports.take(
        Report(node=0, sequence=next(numbers[0]), oldest=1, metrics=_metrics(12, generation=2))
    )
    take(1, 9, 0.5, NAN), stored()  # of before, and not repeated
    take(1, 12, 0.5, NAN), stored()  # of before, and repeated
    assert reports.measured == (2, 12) and reports.num_skipped == 2
    reports.take(
        Report(node=0, sequence=next(numbers[0]), oldest=1, metrics=_metrics(20, generation=3))
    )
    take(1, 13, 0.5, NAN)  # repeated by the generation between
    take(1, 2**63, 0.5), stored()
    assert reports.measured == (3, 20) and reports.num_skipped == 2
    skipped = _rows(path, READS["skipped_steps"])
    assert skipped == [(8,), (9,)]


def test_a_locked_journal_holds_nobody_up_and_loses_nothing(
    path: Path, writer: JournalWriter
) -> None:
    records = Journal(path, epoch=1)
    with capture_logs() as logs:
        writer.append(records.event_record("first", {}, 0.0))
        _until(writer, lambda: len(_rows(path, "SELECT * FROM events")) == 1)
    assert logs == [], "a journal that works is nothing to report"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(5):
            writer.append(records.event_record(f"event {number}", {}, 0.0))
        errors: list[str] = []
        writer.submit(
            lambda one: one.begin_generation(0, {}), lambda _, error: errors.append(error)
        )
        _until(writer, lambda: bool(errors) and bool(writer.trouble))
        assert "locked" in errors[0] and "locked" in writer.trouble
        other.execute("ROLLBACK")
    _until(writer, lambda: not writer.trouble and len(_rows(path, "SELECT * FROM events")) == 6)
    assert [row[0] for row in _rows(path, "SELECT name FROM events ORDER BY id")][1:] == [
        f"event {number}" for number in range(5)
    ]
    assert _rows(path, "SELECT * FROM generations") == [], "a failed number is not used later"
    records.close()


def test_records_that_keep_coming_do_not_put_the_next_attempt_off(
    path: Path, writer: JournalWriter
) -> None:
    records = Journal(path, epoch=1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer.append(records.event_record("first", {}, 0.0))
        _until(writer, lambda: bool(writer.trouble))
        other.execute("ROLLBACK")

    def append() -> bool:
        writer.append(records.event_record("more", {}, 0.0))
        return not writer.trouble

    _until(writer, append)
    records.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here (needs root)")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_what_a_full_disk_refuses_is_written_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "run.sqlite"
    journal = Journal(path, epoch=1)
    journal.event("before", {}, 0.0)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * 4096):
            pass
    successor = Journal(path, epoch=2)  # a driver that starts on the full disk
    writer = JournalWriter(successor, lambda: None)
    for number in range(200):
        writer.append(successor.event_record(f"event {number}", {"text": "x" * 100}, 0.0))
    _until(writer, lambda: bool(writer.trouble))
    filler.unlink()
    _until(writer, lambda: not writer.trouble and not writer._records)
    assert writer.close(LIMIT_S)
    assert len(_rows(path, "SELECT * FROM events")) == 201
    journal.close()


def _report(sequence: int, *, oldest: int = 1, incarnation: int = 1) -> Report:
    return Report(
        node=3,
        sequence=sequence,
        oldest=oldest,
        incarnation=incarnation,
        metrics=_metrics(1000 * incarnation + sequence),
    )


def test_reports_that_overtake_repeat_and_vanish_are_all_stored(
    path: Path, writer: JournalWriter
) -> None:
    """The sender repeats the oldest ones that are not acknowledged, as an executor does."""
    reports, rng, number = Reports(writer), random.Random(0), 200

    def send() -> bool:
        first = reports.acknowledged(3, 1) + 1
        waiting = list(range(first, min(first + 64, number + 1)))
        for sequence in rng.sample(waiting, len(waiting)):
            if rng.random() < 0.5:
                reports.take(_report(sequence, oldest=first))
        reports.flush()
        return not waiting

    _until(writer, send)
    assert len(_rows(path, "SELECT step FROM metrics")) == number


def test_reports_that_the_executor_had_to_drop_wedge_nothing(
    path: Path, writer: JournalWriter
) -> None:
    reports = Reports(writer)
    reports.take(_report(1))
    reports.take(_report(500, oldest=500))

    def stored() -> bool:
        reports.flush()
        return reports.acknowledged(3, 1) == 500

    _until(writer, stored)
    reports.take(_report(1, incarnation=2))  # the next executor counts anew

    def stored_anew() -> bool:
        reports.flush()
        return reports.acknowledged(3, 2) == 1

    _until(writer, stored_anew)
    assert _rows(path, "SELECT COUNT(*) FROM metrics") == [(3,)]


def test_an_impossible_number_is_dropped_and_what_follows_it_is_stored(
    path: Path, writer: JournalWriter
) -> None:
    reports = Reports(writer)
    reports.take(Report(node=0, sequence=1, oldest=1, metrics=_metrics(2**63)))
    reports.take(Report(node=0, sequence=2, oldest=1, metrics=_metrics(7)))
    sample = Sample(generation=0, tokens=(1, 2), num_prompt_tokens=1)
    reports.take(Report(node=0, sequence=3, oldest=1, sample=sample))

    def stored() -> bool:
        reports.flush()
        return reports.acknowledged(0, 0) == 3

    _until(writer, stored)
    assert _rows(path, "SELECT step FROM metrics") == [(7,)]


def test_a_writer_learns_that_a_newer_driver_has_written(path: Path) -> None:
    calls: list[int] = []
    old = Journal(path, epoch=1)
    writer = JournalWriter(old, lambda: calls.append(os.getpid()))
    newer = Journal(path, epoch=2)
    newer.event("newer", {}, 0.0)
    writer.append(old.event_record("late", {}, 0.0))
    _until(writer, lambda: len(calls) == 1)
    assert writer.close(LIMIT_S)
    assert _rows(path, "SELECT name FROM events") == [("newer",)]
    newer.close()


def test_a_journal_that_is_removed_is_put_back_with_all_that_it_held(path: Path) -> None:
    journal = Journal(path, epoch=1)
    journal.begin_generation(0, {0: 0})
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    journal.begin_generation(1, {0: 0})
    assert _rows(path, "SELECT generation FROM generations") == [(0,), (1,)]
    assert path.stat().st_mode & 0o777 == 0o600
    journal.begin_generation(2, {0: 0})
    journal.close()
    assert Journal(path).last_generation() == (2, {0: 0})


def test_a_journal_in_whose_place_is_another_file_is_not_written(path: Path) -> None:
    journal = Journal(path, epoch=1)
    path.rename(path.with_suffix(".moved"))
    path.write_text("another file")
    with pytest.raises(sqlite3.OperationalError, match="was replaced by another file"):
        journal.begin_generation(0, {0: 0})
    assert path.read_text() == "another file"
    path.with_suffix(".moved").rename(path)
    journal.begin_generation(0, {0: 0})
    journal.close()
