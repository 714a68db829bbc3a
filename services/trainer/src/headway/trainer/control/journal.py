"""The run's memory: what happened, what was decided, what was measured, in one SQLite file.

One writer, the driver, holding the lock; readers (console, analysis) open it read-only at any time.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from headway.common.errors import InputError
from headway.common.node.failpoints import failpoint
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.common.wire.messages.worker import Steer

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, monotonic_s REAL NOT NULL,
    unix_s REAL NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generations (generation INTEGER PRIMARY KEY, unix_s REAL NOT NULL, rank_nodes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS commands (sequence INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, unix_s REAL NOT NULL,
    operation TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL);
CREATE TABLE IF NOT EXISTS metrics (generation INTEGER, step INTEGER, loss REAL, grad_norm REAL, lr REAL,
    tokens INTEGER, duration_s REAL, unix_s REAL, skipped INTEGER DEFAULT 0, PRIMARY KEY (generation, step));
CREATE TABLE IF NOT EXISTS evaluations (generation INTEGER, step INTEGER, loss REAL, tokens INTEGER,
    PRIMARY KEY (generation, step));
CREATE TABLE IF NOT EXISTS reports (node INTEGER PRIMARY KEY, sequence INTEGER NOT NULL);
"""


class LockedError(InputError):
    """Another driver holds the journal."""


class Journal:
    """Opened by the driver alone: the lock falls with its process, so a killed driver never keeps a run."""

    def __init__(self, path: Path) -> None:
        self._lock = os.open(
            path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LockedError(
                f"{path} is in use by another driver", remedy="wait for it or stop that run"
            ) from None
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        columns = [row[1] for row in self._db.execute("PRAGMA table_info(metrics)")]
        if "skipped" not in columns:  # a journal of an older version
            self._db.execute("ALTER TABLE metrics ADD COLUMN skipped INTEGER DEFAULT 0")
        self.epoch = int(self.fact("epoch", "0")) + 1
        self.set_fact("epoch", str(self.epoch))

    def close(self) -> None:
        """Close the file and let go of the lock."""
        self._db.close()
        os.close(self._lock)

    # ---- facts and decisions ------------------------------------------------------------------
    def fact(self, key: str, default: str) -> str:
        """A single remembered value."""
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else default

    def set_fact(self, key: str, value: str) -> None:
        """Remember a single value."""
        self._db.execute(
            "INSERT INTO facts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def event(self, name: str, fields: dict[str, Any], now: float) -> None:
        """Write what happened, before it is acted upon."""
        failpoint("journal.before_write")
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT INTO events (epoch, monotonic_s, unix_s, name, fields) VALUES (?, ?, ?, ?, ?)",
            (self.epoch, now, time.time(), name, json.dumps(fields, sort_keys=True)),
        )
        failpoint("journal.mid_write")
        self._db.execute("COMMIT")

    def begin_generation(self, generation: int, rank_nodes: dict[int, int]) -> None:
        """Reserve a generation's number; it is durable before any worker hears of it."""
        self._db.execute(
            "INSERT INTO generations VALUES (?, ?, ?)",
            (generation, time.time(), json.dumps(rank_nodes)),
        )

    def last_generation(self) -> tuple[int, dict[int, int]] | None:
        """The newest generation and where its ranks ran."""
        row = self._db.execute(
            "SELECT generation, rank_nodes FROM generations ORDER BY generation DESC LIMIT 1"
        ).fetchone()
        return (int(row[0]), {int(k): v for k, v in json.loads(row[1]).items()}) if row else None

    # ---- commands -----------------------------------------------------------------------------
    def add_command(
        self, command_id: str, operation: str, name: str, value: float
    ) -> tuple[Steer, bool]:
        """Append a command; False with it when this id is already in the list (a retry)."""
        row = self._db.execute(
            "SELECT sequence, operation, name, value FROM commands WHERE id = ?", (command_id,)
        ).fetchone()
        if row:
            return Steer(sequence=row[0], operation=row[1], name=row[2], value=row[3]), False
        cursor = self._db.execute(
            "INSERT INTO commands (id, unix_s, operation, name, value) VALUES (?, ?, ?, ?, ?)",
            (command_id, time.time(), operation, name, value),
        )
        return Steer(
            sequence=int(cursor.lastrowid or 0), operation=operation, name=name, value=value
        ), True

    def commands(self) -> list[Steer]:
        """Every command of the run, in order."""
        rows = self._db.execute(
            "SELECT sequence, operation, name, value FROM commands ORDER BY sequence"
        )
        return [Steer(sequence=r[0], operation=r[1], name=r[2], value=r[3]) for r in rows]

    def reopen(self) -> None:
        """Make an ended run unfinished again; what stopped or paused it before has had its effect."""
        self._db.execute(
            "UPDATE commands SET operation = 'retired' WHERE operation IN ('stop', 'pause', 'checkpoint')"
        )
        self.set_fact("outcome", "")
        self.set_fact("detail", "")

    # ---- what was measured --------------------------------------------------------------------
    def store_report(
        self,
        node: int,
        sequence: int,
        metrics: StepMetrics | None,
        evaluation: Evaluation | None,
        sample: Sample | None,
        *,
        previous: int = 0,
    ) -> None:
        """Store a report and its sequence number in one transaction.

        Nothing changes for a repeated one, and for one that overtook ``previous``: both come again in order.
        """
        if not previous <= self.reported(node) < sequence:
            return
        self._db.execute("BEGIN IMMEDIATE")
        if metrics is not None:
            m = metrics
            self._db.execute(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    m.generation,
                    m.step,
                    m.loss,
                    m.grad_norm,
                    m.lr,
                    m.tokens,
                    m.duration_s,
                    m.unix_s,
                    m.skipped,
                ),
            )
        if evaluation is not None:
            e = evaluation
            self._db.execute(
                "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?)",
                (e.generation, e.step, e.loss, e.tokens),
            )
        if sample is not None:
            self.set_fact(
                "sample",
                json.dumps(
                    {"tokens": sample.tokens, "num_prompt_tokens": sample.num_prompt_tokens}
                ),
            )
        self._db.execute(
            "INSERT INTO reports VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET sequence = excluded.sequence",
            (node, sequence),
        )
        self._db.execute("COMMIT")

    def reported(self, node: int) -> int:
        """Newest report stored of a node, 0 before the first."""
        row = self._db.execute("SELECT sequence FROM reports WHERE node = ?", (node,)).fetchone()
        return int(row[0]) if row else 0
