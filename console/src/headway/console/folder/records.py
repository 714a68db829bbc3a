"""A run as its folder shows it, live or ended: configuration, journal, processes. Sends nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir
from headway.common.node.sqlite import open_to_read
from headway.console.hints import hint
from headway.console.machine.peak import Peak, cached_peak
from headway.launch.cluster import ClusterFolder
from headway.launch.lease import LeaseWatch, is_led
from headway.launch.leases import lease_of
from headway.trainer.config import RunConfig

ENDED_S = 2.0
"""A run on other machines that has an outcome counts as over when its lease is not renewed."""
TAKEOVER_S = 60.0
"""The same of a run without one, which another driver may still lead."""
TERMINAL_OUTCOMES = frozenset({"finished", "stopped", "failed"})
"""Outcomes of a run that has ended."""


class RunRecords:
    """What analysis needs of a run; ``Run`` adds the driver's answers and its commands.

    Every call opens the journal anew, except within ``reading``, so an object may be used from any
    thread.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunDir(path)
        if not self.folder.run_json.exists():
            raise InputError(f"{path} holds no run", remedy="see `headway runs`")
        self._parsed: tuple[tuple[int, int], RunConfig] | None = None
        self._shared = _Shared()
        self._watch: LeaseWatch | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.state})"

    def hint(self, verb: str) -> str:
        """The command line of ``verb`` for this run."""
        return hint(verb, self.path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The resolved configuration; parsed again only after the file has changed."""
        file = self.folder.config.stat() if self.folder.config.exists() else None
        key = (file.st_mtime_ns, file.st_ino) if file is not None else (0, 0)
        parsed = self._parsed
        if parsed is None or parsed[0] != key:
            parsed = self._parsed = (key, load(RunConfig, files=[self.folder.config]))
        return parsed[1]

    @property
    def peak(self) -> Peak | None:
        """The peak of what it computes on, None if never measured on this machine."""
        return cached_peak(self.config.train.device)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its folder is on another machine, and this one has only what a gateway shows."""
        return False

    @property
    def known_checkpoint(self) -> int | None:
        """Step of the newest complete checkpoint of a run elsewhere, -1 without one; None of a run
        whose checkpoints can be looked at."""
        return None

    # ---- where it stands ----------------------------------------------------------------------
    @property
    def live(self) -> bool:
        """Whether an executor or the driver runs: either one restarts the rest."""
        if self.folder.bundle.exists():
            return self._is_led_elsewhere()
        cluster = ClusterFolder(self.cluster_folder)
        return cluster.is_carrying(self.folder.run_id) or self._has_driver()

    @property
    def state(self) -> str:
        """``live``, its outcome, ``interrupted`` if it ended without one, or ``not started``."""
        ended = "interrupted" if self.has_begun else "not started"
        return self.outcome or ("live" if self.live else ended)

    @property
    def has_begun(self) -> bool:
        """Whether a driver has led it yet; a fork waits for its start."""
        return bool(self.query("SELECT 1 FROM events LIMIT 1"))

    @property
    def outcome(self) -> str:
        """``finished``, ``stopped`` or ``failed``; empty while the run is unfinished."""
        return self.fact("outcome")

    @property
    def completed_steps(self) -> int:
        """Completed steps by the journal, at the same cost for any length of the run."""
        newest = "SELECT step FROM metrics ORDER BY generation DESC, step DESC LIMIT 1"
        rows = self.query(newest)
        origin = self.forked_from
        return int(rows[0][0]) + 1 if rows else int(origin["step"]) if origin else 0

    @property
    def forked_from(self) -> dict[str, Any] | None:
        """The run and the step that it was forked from: run, step; None if it began at step 0."""
        record: dict[str, Any] = json.loads(self.folder.run_json.read_text())
        return record.get("forked_from")

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, extensions included."""
        longest = "SELECT MAX(count) FROM commands WHERE operation = 'extend'"
        try:
            rows = self.query(longest)
        except sqlite3.OperationalError:  # a journal of an older version: no run was extended
            rows = []
        return max(self.config.train.steps, int(rows[0][0] or 0) if rows else 0)

    @property
    def cluster_folder(self) -> Path:
        """The folder of the cluster that carries, or last carried, the run."""
        record = json.loads(self.folder.run_json.read_text())
        return Path(record.get("cluster") or self.path / "cluster")

    def _has_driver(self) -> bool:
        holder = lease_of(self.folder.control).look().holder
        return holder is not None and not holder.process.is_doomed()

    def _is_led_elsewhere(self) -> bool:
        """Whether the lease was renewed lately; a takeover after a driver's death takes a while."""
        lease = lease_of(self.folder.control)
        if self._watch is None:
            self._watch = LeaseWatch()
            if not is_led(lease):
                self._watch = None
                return False
        stale_s = self._watch.see(lease.look(), time.monotonic())
        return stale_s < (ENDED_S if self.outcome else TAKEOVER_S)

    # ---- the journal --------------------------------------------------------------------------
    def fact(self, key: str) -> str:
        """A remembered value of the journal, empty if there is none."""
        rows = self.query("SELECT value FROM facts WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else ""

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Read the journal; an absent one is empty."""
        if not self.folder.database.exists():
            return []
        with self.reading():
            database = self._shared.database
            if database is None:
                database = self._shared.database = open_to_read(self.folder.database)
            try:
                return database.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within it the queries of this thread share one connection, which costs a tenth."""
        shared = self._shared
        shared.depth += 1
        try:
            yield
        finally:
            shared.depth -= 1
            if not shared.depth and shared.database is not None:
                shared.database.close()
                shared.database = None


class _Shared(threading.local):
    """Of each thread: the connection while a ``with`` of ``reading`` lasts, else None."""

    depth = 0
    database: sqlite3.Connection | None = None
