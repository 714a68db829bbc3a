"""A thread that owns the journal, so that a slow, full or locked disk never stops a decision.

Records wait in memory and are written in order, as soon as the file takes them. A single piece of
work is tried once; what came of it is handed back to the loop's thread, where its callback runs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.common.log import get_logger
from headway.common.node.sqlite import is_damage
from headway.controller.journal.journal import Journal
from headway.controller.journal.locks import why_locked
from headway.controller.journal.rows import Record
from headway.launch.lease.file import SupersededError

MAX_WAITING = 50_000
"""Records; some 20 MB. The oldest beyond that are lost, and counted."""
MAX_BATCH = 1000
RETRY_S = (0.1, 2.0)  # first and longest pause after a failed write

Work = Callable[[Journal], Any]
Then = Callable[[Any, str], None]
"""Called in the loop's thread with the result and an empty text, or with None and why it failed."""

log = get_logger("journal")


@dataclass
class _Job:
    work: Work
    then: Then


class JournalWriter:
    """``done_fd`` is readable when callbacks wait: then call ``run_callbacks``.

    ``on_superseded`` is called there too, once, when a newer driver has written.
    """

    on_damage: Callable[[str], None] = staticmethod(lambda _: None)
    """Called in the loop's thread when the file was damaged and is a new one."""

    def __init__(self, journal: Journal, on_superseded: Callable[[], None]) -> None:
        self._journal, self._on_superseded = journal, on_superseded
        self._records: deque[Record] = deque()
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closing = self._is_superseded = False
        self._pause_s = 0.0
        self.num_lost = 0
        self.trouble = ""
        """Why the journal cannot be written now; empty while it can."""
        if damage := journal.damage:
            self._hand_back(lambda: self.on_damage(damage))
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._thread.start()

    # ---- the loop's thread --------------------------------------------------------------------
    def append(self, record: Record) -> None:
        """Write a record when the file takes it."""
        with self._changed:
            self._records.append(record)
            if len(self._records) > MAX_WAITING:
                self._records.popleft()
                self.num_lost += 1
            self._changed.notify()

    def submit(self, work: Work, then: Then = lambda _result, _error: None) -> None:
        """Do ``work`` once, before waiting records; ``then`` is called with what came of it."""
        with self._changed:
            self._jobs.append(_Job(work, then))
            self._changed.notify()

    def run_callbacks(self) -> None:
        """Run what waits for the loop's thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done_fd)
        while not self._done.empty():
            callback = self._done.get()
            try:
                callback()
            except Exception:  # the others must not wait for the next result
                log.exception("a result of the journal could not be taken")

    def close(self, limit_s: float) -> bool:
        """Write what waits, for at most ``limit_s``; True when all was written."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        is_done = not self._thread.is_alive()
        if is_done:
            self._journal.close()
        elif self._records:
            log.error("the journal's last records are lost", count=len(self._records))
        return is_done

    # ---- the journal's thread -----------------------------------------------------------------
    def _serve(self) -> None:
        while (task := self._next()) is not None:
            if isinstance(task, _Job):
                self._do(task)
            elif task:
                self._write(task)

    def _next(self) -> _Job | list[Record] | None:
        """A piece of work, else the oldest records; None when there will be no more."""
        with self._changed:
            while not self._jobs:
                if self._is_superseded:
                    self._records.clear()
                if self._is_closing and not self._records:
                    return None
                if self._records and not self._pause_s:
                    break
                if not self._changed.wait(self._pause_s or None):
                    break  # the pause after a failed write is over
            if self._jobs:
                return self._jobs.popleft()
            number = min(len(self._records), MAX_BATCH)
            return [self._records.popleft() for _ in range(number)]

    def _do(self, job: _Job) -> None:
        try:
            result, error = self._with_journal(job.work), ""
        except Exception as caught:
            result, error = None, f"{type(caught).__name__}: {self._reason(caught)}"
            self._notice(caught)
        self._hand_back(lambda: job.then(result, error))
        self._journal.keep_copy()

    def _with_journal(self, work: Work) -> Any:
        """Do it, and do it again in a new file where the present one proves damaged."""
        try:
            return work(self._journal)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._journal.begin_anew(error)
            damage = self._journal.damage
            self._hand_back(lambda: self.on_damage(damage))
            return work(self._journal)

    def _write(self, batch: list[Record]) -> None:
        try:
            self._with_journal(lambda journal: journal.append(batch))
        except Exception as error:  # whatever it is, this thread must live
            with self._changed:
                self._records.extendleft(reversed(batch))
            self._failed(error)
            return
        if self.trouble:
            log.info("the journal can be written again", records=len(batch), lost=self.num_lost)
        self.trouble, self._pause_s = "", 0.0

    def _failed(self, error: Exception) -> None:
        reason = self._reason(error)
        if not self.trouble:
            log.error("the journal cannot be written; records wait", error=reason)
        self.trouble = f"the journal cannot be written: {reason}"
        self._pause_s = min(max(RETRY_S[0], 2 * self._pause_s), RETRY_S[1])
        self._notice(error)

    def _reason(self, error: Exception) -> str:
        """With the process that holds the lock, if one does: until it ends, no recovery begins."""
        journal = self._journal
        holder = why_locked(error, journal.path, is_shared=journal.is_shared)
        return f"{error}; {holder}" if holder else str(error)

    def _notice(self, error: Exception) -> None:
        if isinstance(error, SupersededError) and not self._is_superseded:
            self._is_superseded = True
            self._hand_back(self._on_superseded)

    def _hand_back(self, callback: Callable[[], None]) -> None:
        self._done.put(callback)
        os.eventfd_write(self.done_fd, 1)
