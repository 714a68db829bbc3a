"""Reads a run's journal while its driver writes it, or once the run is over. Changes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.common.node.sqlite import is_damage, is_undecodable, open_to_read, replaced
from headway.controller.journal.reads import READ_BY_DRIVERS, READS
from headway.controller.journal.schema import check

Row = tuple[Any, ...]


class UnreadableJournalError(HeadwayError):
    """The journal cannot be read now, as while another process keeps it locked."""


class JournalFile:
    """The reads of ``READS``, from the file of a run's journal.

    Every call opens the file anew, except within ``reading``, so that an object may be used from
    any thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shared = _Shared()

    @property
    def damage(self) -> str:
        """What this thread's last read found wrong with the file."""
        return self._shared.damage

    def rows(self, read: str, values: tuple[Any, ...] = ()) -> list[Row]:
        """Return the rows of a read.

        An absent file has none, nor has a damaged one, see ``damage``. A text that is not UTF-8
        comes with replacement characters.

        Raises:
            InputError: the file is of another version of Headway.
            UnreadableJournalError: it cannot be read now.
        """
        return self._rows(READS[read], values)

    def damage_for_drivers(self) -> str:
        """What is wrong with what a driver reads before it leads; empty if nothing is."""
        with self.reading():
            for sql in READ_BY_DRIVERS:
                self._rows(sql, ())
                if self.damage:
                    break
        return self.damage

    def page(self, read: str, values: tuple[Any, ...], first: int, limit_s: float) -> Iterator[Row]:
        """The rows from number ``first`` on, for a reader elsewhere, in at most ``limit_s``.

        Raises:
            InputError: there is no such read, the file is of another version, or the limit is over.
        """
        if read not in READS:
            raise InputError(f"there is no read {read!r}", remedy="use the gateway's version")
        if not self.path.exists():
            return
        try:
            with contextlib.closing(open_to_read(self.path)) as database:
                check(database)
                until = time.monotonic() + limit_s
                database.set_progress_handler(lambda: time.monotonic() > until, 10_000)
                if read != "facts":  # an outcome that is not UTF-8 must not count
                    database.text_factory = replaced
                found = database.execute(READS[read], values)
                for number, row in enumerate(found):
                    if number >= first:
                        yield row
        except (sqlite3.Error, OverflowError) as error:
            if "no such table" in str(error):  # it has none yet
                return
            raise InputError(
                f"the read of {read} failed: {error}", remedy=f"it may take {limit_s:.0f} s"
            ) from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within it the reads of this thread share one connection, which costs a tenth."""
        shared = self._shared
        shared.depth += 1
        try:
            yield
        finally:
            shared.depth -= 1
            if not shared.depth and shared.database is not None:
                shared.database.close()
                shared.database = None

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[Row]:
        self._shared.damage = ""
        if not self.path.exists():
            return []
        with self.reading():
            try:
                return self._fetch(self._database(), sql, values)
            except sqlite3.DatabaseError as error:
                if is_damage(error) or not self.path.is_file():
                    self._shared.damage = str(error)
                elif "no such table" not in str(error):  # it has none yet
                    raise UnreadableJournalError(
                        f"{self.path} cannot be read: {error}", remedy="try again"
                    ) from error
                return []

    def _database(self) -> sqlite3.Connection:
        if self._shared.database is None:
            database = open_to_read(self.path)
            try:
                check(database)
            except BaseException:
                database.close()
                raise
            self._shared.database = database
        return self._shared.database

    def _fetch(self, database: sqlite3.Connection, sql: str, values: Iterable[Any]) -> list[Row]:
        """Return all rows, decoded in Python where SQLite cannot.

        A flipped bit may leave text, also valid JSON, that is not UTF-8: only then is it decoded in
        Python, which is slower, so that it costs no other row.
        """
        try:
            return database.execute(sql, tuple(values)).fetchall()
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
            self._shared.damage = str(error)
        database.text_factory = replaced
        try:
            return database.execute(sql, tuple(values)).fetchall()
        finally:
            database.text_factory = str


class _Shared(threading.local):
    """What each thread has: the connection while a ``with`` of ``reading`` lasts, else None."""

    depth = 0
    database: sqlite3.Connection | None = None
    damage = ""
