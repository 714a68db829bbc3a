"""A journal that proves damaged is set aside, and the run goes on with what is essential."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.ckpt_store import mark_generation
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Accepted, Command, GetStatus, Status
from headway.common.wire.messages.executor import StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import Memory
from headway.controller.driver import initial_state as beginning
from headway.controller.driver.durable import newest_mark
from headway.controller.driver.memory import recall, remember
from headway.controller.journal.essentials import FILE, damaged_of, kept_facts
from headway.controller.journal.journal import Journal
from headway.controller.journal.rows import ClockReading
from headway.controller.journal.writer import JournalWriter
from headway.launch.lease.base import SupersededError
from headway.testkit.played.place import Place, begin, place_console, run_to_first_step
from headway.trainer.config import RunConfig

LIMIT_S = 30.0
TEXTS = (
    "UPDATE generations SET rank_nodes = {}",
    "UPDATE facts SET value = {} WHERE key = 'epoch'",
    "UPDATE facts SET value = {} WHERE key = 'outcome'",
    "UPDATE facts SET value = {} WHERE key = 'memory'",
    "UPDATE facts SET key = {} WHERE key = 'memory'",
    "UPDATE events SET name = {}",
    "UPDATE commands SET operation = {}",
    "UPDATE commands SET id = {} WHERE sequence = 1",
    "UPDATE clocks SET boot_id = {}",
)
MEMORY = Memory(lost=(3,), bad_checkpoints=(7,))


def _overwrite(path: Path) -> None:
    for part in (path, path.with_name(f"{path.name}-wal")):
        if part.exists():
            part.write_bytes(b"\xa5" * max(4096, part.stat().st_size))


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _cut(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    os.truncate(path, 4096 + 100)


def _spoil_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4096):
            file.seek(4096 * page)
            file.write(b"\xa5" * 4096)


def _replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with private_roots():
        made = Place(tmp_path)
        yield made
        made.close()


DAMAGES = [_overwrite, _zero, _cut, _spoil_a_page, _replace_by_a_folder]


def _steps(first: int, number: int = 500) -> list[StepMetrics]:
    return [
        StepMetrics(generation=2, step=step, loss=1.0, grad_norm=1.0, lr=1e-3, tokens=8,
                    duration_s=0.1, unix_s=1.0, skipped=False)
        for step in range(first, first + number)
    ]  # fmt: skip


def _filled(path: Path, *, is_shared: bool = False) -> Journal:
    journal = Journal(path, epoch=3, is_shared=is_shared)
    journal.begin_generation(2, {0: 0, 1: 4})
    journal.add_command("a", Steer(sequence=0, operation="set", name="lr", value=0.5))
    journal.add_command("b", Steer(sequence=0, operation="pause"))
    remember(journal, MEMORY)
    journal.set_facts(outcome="stopped", spent_commands="1")
    journal.store(_steps(0))
    journal.append([journal.clock_record(ClockReading(0, "boot", 0, 0, 0.0, 0.0))])
    journal.event("begun", {}, 0.0)
    return journal


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_driver_begins_with_what_is_essential_of_a_damaged_journal(
    tmp_path: Path, damage: Callable[[Path], None], is_shared: bool
) -> None:
    path = tmp_path / "run.sqlite"
    _filled(path, is_shared=is_shared).close()
    damage(path)
    with contextlib.closing(Journal(path, epoch=4, is_shared=is_shared)) as journal:
        assert "it is set aside as run.sqlite.damaged-1" in journal.damage
        assert journal.last_generation() == (2, {0: 0, 1: 4})
        assert [(one.sequence, one.operation) for one in journal.commands()] == [
            (1, "set"),
            (2, "pause"),
        ]
        assert recall(journal) == MEMORY and journal.fact("outcome", "") == "stopped"
        assert journal.add_command("b", Steer(sequence=0, operation="pause")) == (
            Steer(sequence=2, operation="pause"),
            False,
        ), "it is known by its id"
        assert journal.add_command("c", Steer(sequence=0, operation="resume"))[0].sequence == 3
        former = Journal(path, epoch=3, is_shared=is_shared)
        with contextlib.closing(former), pytest.raises(SupersededError):
            former.event("late", {}, 0.0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert damaged_of(path) == ["run.sqlite.damaged-1"]
    damage(path)
    Journal(path, epoch=5, is_shared=is_shared).close()
    assert damaged_of(path) == ["run.sqlite.damaged-1", "run.sqlite.damaged-2"]


@pytest.mark.parametrize("damage", [_overwrite, _zero, _replace_by_a_folder])
def test_what_a_driver_writes_is_in_a_new_file_once_the_old_one_is_damaged(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "run.sqlite"
    journal = _filled(path)
    found: list[str] = []
    writer = JournalWriter(journal, lambda: None)
    writer.on_damage = found.append
    errors: list[str] = []
    # one that is written: then the copy is there
    writer.submit(lambda j: j.set_facts(x="y"), lambda _, error: errors.append(error))
    assert _until(writer, lambda: errors == [""])
    damage(path)
    writer.append(journal.event_record("after", {}, 0.0))
    writer.submit(lambda j: j.begin_generation(3, {0: 0}), lambda _, error: errors.append(error))
    writer.submit(lambda j: j.store(_steps(500)), lambda _, error: errors.append(error))
    assert _until(writer, lambda: errors == [""] * 3)
    assert writer.close(LIMIT_S)
    with contextlib.closing(sqlite3.connect(path)) as database:
        numbers = database.execute("SELECT generation FROM generations").fetchall()
        assert numbers == [(2,), (3,)]
        kept = [("begun",)] if damage is _replace_by_a_folder else []
        names = database.execute("SELECT name FROM events").fetchall()
        assert names == [*kept, ("after",)]
    if damage is not _replace_by_a_folder:  # of which all could be put back
        writer.run_callbacks()
        assert len(found) == 1 and "damaged-1" in found[0]


def _until(writer: JournalWriter, condition: Callable[[], bool]) -> bool:
    def look() -> bool:
        writer.run_callbacks()
        return condition()

    return wait_until(look, LIMIT_S)


def test_changes_that_were_lost_with_a_damaged_wal_are_put_back(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    journal = _filled(path)
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.begin_generation(3, {0: 0})
    journal.add_command("c", Steer(sequence=0, operation="resume"))
    journal.keep_copy()
    path.with_name("run.sqlite-wal").write_bytes(b"\xa5" * 8192)
    path.with_name("run.sqlite-shm").unlink()
    other = tmp_path / "other"
    other.mkdir()
    for name in ("run.sqlite", "run.sqlite-wal", FILE):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    with contextlib.closing(Journal(other / "run.sqlite", epoch=4)) as successor:
        assert successor.last_generation() == (3, {0: 0}) and len(successor.commands()) == 3
        assert not successor.damage
    journal.close()


def test_without_a_copy_numbers_go_on_above_the_marks(tmp_path: Path) -> None:
    path, checkpoints = tmp_path / "run.sqlite", tmp_path / "checkpoints"
    _filled(path).close()
    _overwrite(path)
    (tmp_path / FILE).write_text("{")
    assert kept_facts(path) == {} and newest_mark(checkpoints) == -1
    mark_generation(checkpoints, 8, 40)
    with contextlib.closing(Journal(path, epoch=4)) as journal:
        marked = newest_mark(checkpoints)
        start = beginning.begin(RunConfig(), "0123abcd", 2, 4, journal, marked=marked)
        assert start.generation == 8 and start.commands == ()


def test_a_live_driver_goes_on_over_a_damaged_journal_and_so_does_its_successor(
    place: Place,
) -> None:
    first = place.start()
    node = begin(place)
    run_to_first_step(place, node)
    with place_console(place) as console:
        assert console.call(Command(id="one", operation="pause"), Accepted).sequence == 1
        _zero(place.run.database)  # one file: it may be a new one at the next moment
        assert console.call(Command(id="two", operation="resume"), Accepted).sequence == 2
    assert damaged_of(place.run.database) == ["run.sqlite.damaged-1"]
    assert place.rows("SELECT id FROM commands") == [("one",), ("two",)]
    named = "SELECT COUNT(*) FROM events WHERE name = 'journal_damaged'"
    assert wait_until(lambda: place.rows(named) == [(1,)], LIMIT_S)
    _zero(place.run.database)
    first.kill()
    first.wait()
    place.start()
    place.holder(2)
    with place_console(place) as console:
        status = console.call(GetStatus(), Status)
        assert (status.epoch, status.generation, status.commands) == (2, 0, 2)
        assert console.call(Command(id="three", operation="pause"), Accepted).sequence == 3


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE generations SET rank_nodes = '{broken'",
        "UPDATE generations SET rank_nodes = '[0]'",
        "UPDATE generations SET rank_nodes = '7'",
        """UPDATE generations SET rank_nodes = '{"0": "a"}'""",
        "UPDATE commands SET tokens = '7' WHERE sequence = 1",
        "UPDATE facts SET value = '1x' WHERE key = 'epoch'",
        "UPDATE facts SET value = '7' WHERE key = 'epoch'",
        "UPDATE facts SET value = '1' WHERE key = 'epoch'",
        "UPDATE facts SET value = '92' WHERE key = 'epoch'",
        *(sql.format("CAST(x'7ba2' AS TEXT)") for sql in TEXTS),
    ],
)
def test_a_cell_that_holds_nonsense_is_damage_too(tmp_path: Path, sql: str) -> None:
    """SQLite has no checksums: a flipped bit in a cell comes back as it is."""
    path = tmp_path / "run.sqlite"
    _filled(path).close()
    _execute(path, sql)
    with contextlib.closing(Journal(path, epoch=4)) as again:
        assert "cannot be read" in again.damage or "Could not decode" in again.damage
        assert again.last_generation() == (2, {0: 0, 1: 4}) and len(again.commands()) == 2
        again.begin_generation(4, {0: 0})
        assert again.last_generation() == (4, {0: 0})


def test_a_takeover_that_the_copy_lags_behind_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    _filled(path).close()
    lagging = (tmp_path / FILE).read_bytes()
    newer = Journal(path, epoch=7)
    newer.lead()
    for copy in (lagging, None):  # as it is before the newer driver's first decision, and then
        if copy is None:
            newer.keep_copy()
        assert (kept_facts(path)["epoch"] == "3") == (copy is not None)
        with contextlib.closing(Journal(path, epoch=4)) as former:
            assert not former.damage
            with pytest.raises(SupersededError, match="belongs to epoch 7, not 4"):
                former.lead()
    newer.event("after", {}, 0.0)
    newer.close()
    with contextlib.closing(Journal(path, epoch=8)) as successor:
        assert not successor.damage and successor.event_names() == ["begun", "after"]


@pytest.mark.parametrize("value", ["'1x'", "CAST(x'7ba2' AS TEXT)"])
def test_an_epoch_that_a_live_driver_cannot_read_has_it_begin_a_new_journal(
    tmp_path: Path, value: str
) -> None:
    path = tmp_path / "run.sqlite"
    journal = _filled(path)
    journal.keep_copy()
    _execute(path, f"UPDATE facts SET value = {value} WHERE key = 'epoch'")
    errors: list[str] = []
    writer = JournalWriter(journal, lambda: None)
    writer.submit(lambda j: j.begin_generation(3, {0: 0}), lambda _, error: errors.append(error))
    assert _until(writer, lambda: errors == [""])
    assert writer.close(LIMIT_S)
    assert damaged_of(path) == ["run.sqlite.damaged-1"]


def _execute(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(sql)


def test_a_repair_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    journal.begin_generation(1, {0: 0})

    def full(_path: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr("headway.controller.journal.journal.set_aside", full)
        journal.begin_anew(sqlite3.DatabaseError("malformed"))
    journal.begin_generation(2, {0: 0})
    assert journal.last_generation() == (2, {0: 0})
    journal.close()
