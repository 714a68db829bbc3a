"""A thread that owns the journal, so that a slow, full or locked disk never stops a decision.

Records wait in memory and are written in order, as soon as the file takes them. A single piece of
work is tried once; what came of it is handed back to the loop's thread, where its callback runs.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headway.common.log import get_logger
from headway.common.node.sqlite import is_damage
from headway.common.wire.side_thread import SideThread
from headway.controller.journal.journal import Journal
from headway.controller.journal.locks import why_locked
from headway.controller.journal.rows import Record
from headway.launch.lease.base import SupersededError

MAX_WAITING = 50_000
"""Records; some 20 MB. The oldest beyond that are lost, and counted."""
MAX_BATCH = 1000
RETRY_S = (0.1, 2.0)  # first and longest pause after a failed write

Work = Callable[[Journal], Any]
Then = Callable[[Any, str], None]
"""Called in the loop's thread with the result and an empty text, or with None and why it failed."""

log = get_logger("journal")


class JournalWriter:
    """``done_fd`` is readable when callbacks wait: then call ``run_callbacks``.

    ``on_superseded`` is called there too, once, when a newer driver has written.
    """

    on_damage: Callable[[str], None] = staticmethod(lambda _: None)
    """Called in the loop's thread when the file was damaged and is a new one."""

    def __init__(self, journal: Journal, on_superseded: Callable[[], None]) -> None:
        self._journal, self._on_superseded = journal, on_superseded
        self._records: deque[Record] = deque()
        self._lock = threading.Lock()
        """The lock of ``_records``."""
        self._is_superseded = False
        self._pause_s, self._retry_at_s = 0.0, -math.inf
        self.num_lost = 0
        self.trouble = ""
        """Why the journal cannot be written now; empty while it can."""
        damage = journal.damage
        self._thread = SideThread("journal", self._write)
        self.done_fd = self._thread.done_fd
        if damage:
            self._thread.hand_back(lambda: self.on_damage(damage))

    # ---- the loop's thread --------------------------------------------------------------------
    def append(self, record: Record) -> None:
        """Write a record when the file takes it."""
        with self._lock:
            self._records.append(record)
            if len(self._records) > MAX_WAITING:
                self._records.popleft()
                self.num_lost += 1
        self._thread.wake()

    def submit(self, work: Work, then: Then = lambda _result, _error: None) -> None:
        """Do ``work`` once, before waiting records; ``then`` is called with what came of it."""

        def taken(done: tuple[Any, str] | None, error: Exception | None) -> None:
            then(*(done if done is not None else (None, repr(error))))

        self._thread.submit(partial(self._do, work), taken)
        self._thread.submit(self._journal.keep_copy)

    def run_callbacks(self) -> None:
        """Run what waits for the loop's thread."""
        self._thread.run_callbacks()

    def close(self, limit_s: float) -> bool:
        """Write what waits, for at most ``limit_s``; True when all was written."""
        self._thread.submit(self._write_all)
        is_done = self._thread.close(limit_s)
        if is_done:
            self._journal.close()
        elif self._records:
            log.error("the journal's last records are lost", count=len(self._records))
        return is_done

    # ---- the journal's thread -----------------------------------------------------------------
    def _do(self, work: Work) -> tuple[Any, str]:
        try:
            return self._with_journal(work), ""
        except Exception as caught:
            self._notice(caught)
            return None, f"{type(caught).__name__}: {self._reason(caught)}"

    def _with_journal(self, work: Work) -> Any:
        """Do it, and do it again in a new file where the present one proves damaged."""
        try:
            return work(self._journal)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._journal.begin_anew(error)
            damage = self._journal.damage
            self._thread.hand_back(lambda: self.on_damage(damage))
            return work(self._journal)

    def _write_all(self) -> None:
        while (pause_s := self._write()) is not None:
            time.sleep(pause_s)

    def _write(self) -> float | None:
        """Write the oldest records, unless a write failed just now.

        Returns how long to wait before the next, in seconds; None while no record waits.
        """
        left_s = self._retry_at_s - time.monotonic()
        if left_s > 0:
            return left_s
        batch = self._next_batch()
        if not batch:
            return None
        try:
            self._with_journal(lambda journal: journal.append(batch))
        except Exception as error:  # whatever it is, the records must not be lost
            with self._lock:
                self._records.extendleft(reversed(batch))
            self._failed(error)
            return self._pause_s
        if self.trouble:
            log.info("the journal can be written again", records=len(batch), lost=self.num_lost)
        self.trouble, self._pause_s = "", 0.0
        return 0.0

    def _next_batch(self) -> list[Record]:
        with self._lock:
            if self._is_superseded:
                self._records.clear()
            number = min(len(self._records), MAX_BATCH)
            return [self._records.popleft() for _ in range(number)]

    def _failed(self, error: Exception) -> None:
        self._pause_s = min(max(RETRY_S[0], 2 * self._pause_s), RETRY_S[1])
        self._retry_at_s = time.monotonic() + self._pause_s
        self._notice(error)
        reason = self._reason(error)
        if not self.trouble:
            log.error("the journal cannot be written; records wait", error=reason)
        self.trouble = f"the journal cannot be written: {reason}"

    def _reason(self, error: Exception) -> str:
        """Return the error and the process that holds the lock, until which no recovery begins."""
        journal = self._journal
        holder = why_locked(error, journal.path, is_shared=journal.is_shared)
        return f"{error}; {holder}" if holder else str(error)

    def _notice(self, error: Exception) -> None:
        if isinstance(error, SupersededError) and not self._is_superseded:
            self._is_superseded = True
            self._thread.hand_back(self._on_superseded)
