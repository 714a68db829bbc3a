"""The run's memory: what happened, what was decided, what was measured, in one SQLite file.

One writer, the driver that holds the lease; readers (console, analysis) open it read-only at any
time. Every write is one transaction, which a failure rolls back, and none succeeds once a newer
driver has written: the epoch is compared inside the transaction. A file that proves damaged is set
aside, and a new one begun with what is essential.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from headway.common.log import get_logger
from headway.common.node.failpoints import failpoint
from headway.common.node.sqlite import damage, is_damage
from headway.common.polling import wait_until
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.controller.journal.commands import STEER, commands_of, steer_of
from headway.controller.journal.course import store
from headway.controller.journal.essentials import (
    FILE,
    VERSION,
    Essentials,
    set_aside,
    version_of,
)
from headway.controller.journal.locks import is_locked
from headway.controller.journal.reads import READS
from headway.controller.journal.rows import CLOCK_FIELDS, ClockReading, Record, as_json
from headway.controller.journal.schema import make
from headway.launch.lease.base import SupersededError

BUSY_S = 1.0
"""How long a write waits for another process's lock before it fails; it is then tried again."""
_MAGIC = b"SQLite format 3\0"
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a cell raises whose value cannot be: SQLite does not check what cells hold."""
LEAD_S = 15.0
"""How long a new driver tries to write the journal before it reads what others have written."""
log = get_logger("journal")


class Journal:
    """The journal of a run; not thread-safe.

    Every method may raise ``sqlite3.Error``; what it was to write is then absent.

    Args:
        path: made when it is absent, readable by its owner only.
        epoch: of the driver that writes; 0 for a reader.
        is_shared: several machines see the file, on a network file system.

    Raises:
        SupersededError: from every write once a newer driver has written.
    """

    def __init__(self, path: Path, *, epoch: int = 0, is_shared: bool = False) -> None:
        self.epoch, self.path, self.is_shared = epoch, path, is_shared
        self._copy = path.with_name(FILE)
        self._is_changed = self._is_copy_old = self._is_open = False
        self.damage = ""
        """What was wrong with the file that was set aside, and its new name."""
        try:
            self._begin()
            self._read_all()
        except sqlite3.DatabaseError as error:
            if not self._is_bad(error):
                raise
            self.begin_anew(error)
        except _NONSENSE as error:
            self.begin_anew(damage(f"a value cannot be read: {error}"))

    def _begin(self) -> None:
        self._open()
        make(self._db)
        kept = Essentials.load(self._copy)
        if kept is not None and kept.version > version_of(self.fact(VERSION, "0")):
            kept.restore(self._db)

    def _read_all(self) -> None:
        """Read what a driver begins with, so that damage shows now."""
        self._stay_in_place()
        Essentials.of(self._db).check_epoch(self._copy)
        self._newest_epoch(), self.commands(), self.last_generation()
        self.clocks(), self.last_event(), self.event_names(), self.num_skipped()

    def _is_bad(self, error: sqlite3.DatabaseError) -> bool:
        is_file = self.path.is_file() or not self.path.exists()
        return is_damage(error) or not is_file

    def begin_anew(self, error: sqlite3.DatabaseError) -> None:
        """Set the damaged file aside, and go on in a new one with what is essential.

        Raises:
            sqlite3.Error, OSError: neither can be done now.
        """
        with contextlib.suppress(sqlite3.Error, AttributeError, OSError):  # it may not be open
            self._close()  # first: it removes files by their names
        kept = set_aside(self.path)
        self._begin()
        self.damage = f"{error}; it is set aside as {kept.name}"
        log.error("the journal was damaged, and a new one is begun", reason=self.damage)

    def _open(self) -> None:
        self.path.touch(mode=0o600)
        # closing it takes SQLite's locks (POSIX), so only after SQLite's own descriptor
        self._probe = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._db = sqlite3.connect(
            self.path, isolation_level=None, timeout=BUSY_S, check_same_thread=False
        )
        self._file = self.path.stat().st_ino
        # A journal that exists is in its mode already, which a full disk does not let us set again.
        # The index of a WAL is shared memory, so that all its users must be on one machine.
        mode = "DELETE" if self.is_shared else "WAL"
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute(f"PRAGMA journal_mode={mode}")
        self._db.execute("PRAGMA synchronous=FULL")
        self._is_open = True

    def close(self) -> None:
        """Close the file."""
        self.keep_copy()
        self._close()

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._db.close()
        finally:
            os.close(self._probe)

    def keep_copy(self) -> None:
        """Write the copy of what is essential, if it is older. A failure is made up for later."""
        if self._is_copy_old:
            with contextlib.suppress(sqlite3.Error, OSError):
                Essentials.of(self._db).save(self._copy)
                self._is_copy_old = False

    def _stay_in_place(self) -> None:
        """Put the file back if somebody removed it: this connection still has all of it.

        Else everything would be written to a file that nobody can read, and lost at its end.
        """
        try:
            there, magic = self.path.stat(), os.pread(self._probe, len(_MAGIC), 0)
            if not self.path.is_file():
                raise IsADirectoryError
            if there.st_ino != self._file:
                raise sqlite3.OperationalError(f"{self.path} was replaced by another file")
            if there.st_size and magic != _MAGIC:  # pages in memory hide it for a while
                raise damage("file is not a database")
        except IsADirectoryError:
            set_aside(self.path)
            self._stay_in_place()
        except FileNotFoundError:
            if not self.path.parent.exists():
                return  # with the folder went the run, or it was renamed with the file in it
            copy = self.path.with_suffix(".rescued")
            copy.unlink(missing_ok=True)
            copy.touch(mode=0o600)
            self._db.execute("VACUUM INTO ?", (str(copy),))
            copy.replace(self.path)
            self._close()
            self._open()
            log.warning("the journal was removed, and is put back", journal=str(self.path))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if not self._is_open:  # an attempt to begin anew has failed
            self._begin()
        self._stay_in_place()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._check_epoch()
            yield self._db
            if self._is_changed:
                self._put(VERSION, str(version_of(self.fact(VERSION, "0")) + 1))
            self._db.execute("COMMIT")
            self._is_copy_old, self._is_changed = self._is_copy_old or self._is_changed, False
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._db.execute("ROLLBACK")
            self._is_changed = False
            raise

    def _newest_epoch(self) -> int:
        text = self.fact("epoch", "0")
        if not (text.isascii() and text.isdecimal()):
            raise damage(f"the epoch cannot be read: {text[:40]!r}")
        return int(text)

    def _check_epoch(self) -> None:
        newest = self._newest_epoch()
        if newest > self.epoch > 0:
            raise SupersededError(
                f"the journal belongs to epoch {newest}, not {self.epoch}",
                remedy="nothing to do: the newer driver leads the run",
            )
        if newest < self.epoch:
            self._put("epoch", str(self.epoch))

    # ---- facts and decisions ------------------------------------------------------------------
    def lead(self) -> None:
        """Keep earlier drivers from writing from now on.

        Tried again while another process has the file locked, for at most ``LEAD_S``. Beyond that,
        and where the disk is full, this holds only from the first write on.
        """

        def holds() -> bool:
            try:
                self.set_facts()
            except sqlite3.OperationalError as error:
                return not is_locked(error)
            return True

        wait_until(holds, LEAD_S)

    def fact(self, key: str, default: str) -> str:
        """A single remembered value."""
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else default

    def set_facts(self, **facts: str) -> None:
        """Remember single values, all or none."""
        with self._transaction():
            for key, value in facts.items():
                self._put(key, value)

    def _put(self, key: str, value: str) -> None:
        self._is_changed = True
        self._db.execute(
            "INSERT INTO facts VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def event_record(self, name: str, fields: dict[str, Any], now: float) -> Record:
        """What happened, at ``now`` (s of the run's clock) and at the present wall time."""
        return Record("events", (self.epoch, now, time.time(), name, as_json(fields)))

    def input_record(self, clock: float, event: bytes, decided: str) -> Record:
        """An input of the driver's decisions, and what was decided, for ``headway replay``."""
        return Record("inputs", (self.epoch, clock, event, decided))

    def append(self, records: Iterable[Record]) -> None:
        """Write records in order, all or none."""
        failpoint("journal.before_write")
        with self._transaction() as db:
            for record in records:
                marks = ", ".join("?" * (len(record.values) + 1))
                db.execute(f"INSERT INTO {record.table} VALUES ({marks})", (None, *record.values))
            failpoint("journal.mid_write")

    def event(self, name: str, fields: dict[str, Any], now: float) -> None:
        """Write what happened."""
        self.append([self.event_record(name, fields, now)])

    def event_names(self) -> list[str]:
        """What has happened so far, in order."""
        return [str(row[0]) for row in self._db.execute("SELECT name FROM events ORDER BY id")]

    def last_event(self) -> tuple[float, float] | None:
        """When the newest event happened, in s of the run's clock and of the wall clock."""
        sql = "SELECT monotonic_s, unix_s FROM events ORDER BY id DESC LIMIT 1"
        row = self._db.execute(sql).fetchone()
        return (float(row[0]), float(row[1])) if row else None

    def clock_record(self, reading: ClockReading) -> Record:
        """What the clock of a node was found to be."""
        return Record("clocks", dataclasses.astuple(reading))

    def clocks(self) -> list[ClockReading]:
        """What the clocks of nodes were found to be, in order."""
        sql = f"SELECT {', '.join(CLOCK_FIELDS)} FROM clocks ORDER BY id"
        return [ClockReading(*row) for row in self._db.execute(sql)]

    def begin_generation(self, generation: int, rank_nodes: dict[int, int]) -> None:
        """Reserve a generation's number; it is durable before it is sent to any worker."""
        with self._transaction() as db:
            self._is_changed = True
            db.execute(
                "INSERT INTO generations VALUES (?, ?, ?)",
                (generation, time.time(), json.dumps(rank_nodes)),
            )

    def last_generation(self) -> tuple[int, dict[int, int]] | None:
        """The newest generation and where its ranks ran."""
        sql = "SELECT generation, rank_nodes FROM generations ORDER BY generation DESC LIMIT 1"
        row = self._db.execute(sql).fetchone()
        return (int(row[0]), msgspec.json.decode(row[1], type=dict[int, int])) if row else None

    # ---- commands -----------------------------------------------------------------------------
    def add_command(self, command_id: str, steer: Steer) -> tuple[Steer, bool]:
        """Append a command, which gets the next sequence, and return it and True.

        False with the stored one when this id is already in the list (a retry).
        """
        row = self._db.execute(
            f"SELECT sequence, {STEER} FROM commands WHERE id = ?", (command_id,)
        ).fetchone()
        if row:
            return steer_of(*row), False
        with self._transaction() as db:
            self._is_changed = True
            cursor = db.execute(
                f"INSERT INTO commands (id, unix_s, {STEER}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (command_id, time.time(), steer.operation, steer.name, steer.value, steer.count,
                 json.dumps(steer.tokens)),
            )  # fmt: skip
        sequence = int(cursor.lastrowid or 0)
        return msgspec.structs.replace(steer, sequence=sequence), True  # type: ignore[type-var]

    def commands(self) -> list[Steer]:
        """Every command of the run, in order; one that an earlier end has spent is ``retired``."""
        rows = self._db.execute(READS["commands"]).fetchall()
        return commands_of(rows, int(self.fact("spent_commands", "0")))

    def inherit(self, generation: int, commands: list[Steer]) -> None:
        """Begin a fork: what its state rests on of the run that it was taken from.

        Generations are counted on from ``generation``, which wrote the checkpoint.
        """
        for steer in commands:
            self.add_command(f"inherited-{steer.sequence}", steer)
        self.begin_generation(generation, {})  # its ranks are placed anew
        self.set_facts(spent_commands=str(len(commands)))

    def reopen(self) -> None:
        """Make an ended run unfinished again; what stopped or paused it has had its effect."""
        newest = self._db.execute("SELECT MAX(sequence) FROM commands").fetchone()[0]
        self.set_facts(outcome="", detail="", spent_commands=str(newest or 0))

    # ---- what was measured --------------------------------------------------------------------
    def store(self, measured: Iterable[StepMetrics | Evaluation | Sample]) -> None:
        """Store what ranks have measured, all or none; the same again changes nothing."""
        with self._transaction() as db:
            for one in measured:
                store(db, one)

    def num_skipped(self) -> int:
        """How many steps count and were skipped: not finite, or spikes."""
        return int(
            self._db.execute(f"SELECT COUNT(*) FROM ({READS['skipped_steps']})").fetchone()[0]
        )
