"""One run, seen from outside: its status, its commands, its numbers. Works on live and ended runs alike."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.run_dir import RunDir
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import (
    Accepted,
    Command,
    GetStatus,
    RankStatus,
    Status,
)
from headway.console.hints import hint
from headway.console.peak import Peak, cached_peak
from headway.launch.cluster import ClusterFolder
from headway.launch.lease import FileLease
from headway.trainer.config import RunConfig, check_name, check_setting

OVER = frozenset({"finished", "stopped", "failed"})
PAGE_RANKS = 1024
"""Ranks in one answer of the driver, at most."""


class Run:
    """A run folder and, while it lives, its driver.

    Every call makes its own connection, so a ``Run`` may be used from any thread and survives a restarted
    driver.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunDir(path)
        if not self.folder.run_json.exists():
            raise InputError(f"{path} holds no run", remedy="see `headway runs`")

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.state})"

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
        """The resolved configuration."""
        return load(RunConfig, files=[self.folder.config])

    @property
    def peak(self) -> Peak | None:
        """The peak of what it computes on, None if never measured on this machine."""
        return cached_peak(self.config.train.device)

    # ---- where it stands ----------------------------------------------------------------------
    @property
    def live(self) -> bool:
        """Whether an executor or the driver runs: either one restarts the rest."""
        cluster = ClusterFolder(self.cluster_folder)
        return cluster.is_carrying(self.folder.run_id) or self._has_driver()

    @property
    def state(self) -> str:
        """``live``, its outcome, or ``interrupted`` if it ended without one."""
        return self.outcome or ("live" if self.live else "interrupted")

    @property
    def outcome(self) -> str:
        """``finished``, ``stopped`` or ``failed``; empty while the run is unfinished."""
        return self.fact("outcome")

    def fact(self, key: str) -> str:
        """A remembered value of the journal, empty if there is none."""
        rows = self.query("SELECT value FROM facts WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else ""

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Read the journal; an absent one is empty."""
        if not self.folder.database.exists():
            return []
        uri = f"file:{self.folder.database}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as database:
            try:
                return database.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    def status(
        self, timeout_s: float = 5.0, *, first_rank: int = 0, num_ranks: int | None = None
    ) -> Status:
        """Ask the driver; the answer counts all ranks, and lists ``num_ranks`` from ``first_rank`` on.

        Raises:
            DeadlineError: no driver answers; it may be starting, or the run is over.
        """
        with self._driver() as client:
            page = PAGE_RANKS if num_ranks is None else num_ranks
            question = GetStatus(first_rank=first_rank, num_ranks=page)
            return client.call(question, Status, timeout_s=timeout_s)

    def ranks(self, timeout_s: float = 5.0) -> list[RankStatus]:
        """Every rank of the run, asked for page by page.

        Raises:
            DeadlineError: as ``status``.
        """
        found: dict[int, RankStatus] = {}
        while True:
            page = self.status(timeout_s, first_rank=len(found))
            new = {rank.rank: rank for rank in page.ranks if rank.rank not in found}
            found |= new
            if not new or len(found) >= page.num_ranks:  # 0: a driver that always lists all
                return [found[rank] for rank in sorted(found)]

    def wait(self, timeout_s: float | None = None) -> str:
        """Block until the run is over; returns its outcome.

        Raises:
            DeadlineError: not over within ``timeout_s``.
            HeadwayError: none of its processes is running, and it is not over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            outcome, live = self.outcome, self.live
            if outcome in OVER and not live:
                return outcome
            if not live and not self.outcome:
                raise HeadwayError(
                    f"run {self.name} stopped unexpectedly: none of its processes is running",
                    remedy=f"start it again with `headway run`; logs: {self.folder.logs}",
                )
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(
                    f"run {self.name} is not over after {timeout_s} s",
                    remedy="see `headway status`",
                )
            time.sleep(0.2)

    # ---- steering -----------------------------------------------------------------------------
    def pause(self) -> int:
        """Hold all ranks at their next step; returns the command's sequence number."""
        return self.command("pause")

    def resume(self) -> int:
        """Resume after ``pause``."""
        return self.command("resume")

    def stop(self) -> int:
        """End at the next step, with a checkpoint."""
        return self.command("stop")

    def checkpoint(self) -> int:
        """Make the next snapshot durable."""
        return self.command("checkpoint")

    def set(self, *, lr: float, force: bool = False) -> int:
        """Hold the learning rate at ``lr`` from the next step on, until ``unset``.

        Raises:
            InputError: ``lr`` is not above 0, or so far above ``optim.lr`` that it takes ``force``.
        """
        check_setting("lr", lr, self.config, force=force)
        return self.command("set", name="lr", value=lr, force=force)

    def unset(self, name: str = "lr") -> int:
        """Take a ``set`` back: from the next step on the schedule decides again."""
        check_name(name)
        return self.command("unset", name=name)

    def evict(self, node: int) -> int:
        """Take a node out of the run; its ranks move to a spare."""
        return self.command("evict", node=node)

    def inject(
        self,
        fault: str,
        *,
        target: str = "worker",
        rank: int = -1,
        node: int = -1,
        duration_s: float = 0.0,
    ) -> int:
        """Break something on purpose: a worker by rank, a service of a node, ``node`` or ``run``.

        Args:
            fault: one of ``headway.trainer.control.faults.FAULTS``.
            target: ``worker``, the name of a service, ``node``, or ``run``.
            rank: of the worker.
            node: of the service; -1 for the driver's.
            duration_s: how long a fault that ends by itself lasts, 0 for its default.
        """
        return self.command(
            "inject", name=target, fault=fault, rank=rank, node=node, duration_s=duration_s
        )

    def command(
        self,
        operation: str,
        *,
        name: str = "",
        value: float = 0.0,
        fault: str = "",
        rank: int = -1,
        node: int = -1,
        force: bool = False,
        duration_s: float = 0.0,
    ) -> int:
        """Send one command; retried over a driver's restart and carried out once.

        Raises:
            InputError: the run is over, or none of its processes is running.
            RemoteError: the driver refused it.
            DeadlineError: no driver took it.
        """
        self._refuse_over()
        command = Command(
            id=uuid.uuid4().hex,
            operation=operation,
            name=name,
            value=value,
            fault=fault,
            rank=rank,
            node=node,
            force=force,
            duration_s=duration_s,
        )
        for attempt in range(4):
            try:
                return self.send(command, timeout_s=4.0)
            except DeadlineError:
                self._refuse_over()  # it may have ended meanwhile
                if attempt == 3:
                    raise
        raise AssertionError("unreachable")

    def send(self, command: Command, *, timeout_s: float) -> int:
        """Send one command once; the same ``id`` again is carried out once.

        Raises:
            RemoteError: the driver refused it. DeadlineError: no driver took it.
        """
        with self._driver() as client:
            return client.call(command, Accepted, timeout_s=timeout_s).sequence

    def _refuse_over(self) -> None:
        if self.outcome in OVER:
            raise InputError(
                f"run {self.name} is {self.outcome}, not live", remedy=f"see {self.hint('status')}"
            )
        if not self.live:
            raise InputError(f"run {self.name} is not live", remedy="start it with `headway run`")

    def wait_applied(self, sequence: int, timeout_s: float = 60.0) -> None:
        """Block until all ranks have applied a command.

        Raises:
            DeadlineError: not within ``timeout_s``.
        """

        def is_applied() -> bool:
            with contextlib.suppress(DeadlineError):
                return self.status().applied >= sequence
            return False

        if not wait_until(is_applied, timeout_s, every_s=0.1):
            raise DeadlineError(
                f"command {sequence} is not applied after {timeout_s} s",
                remedy="see `headway status`",
            )

    # ---- inside -------------------------------------------------------------------------------
    @property
    def cluster_folder(self) -> Path:
        """The folder of the cluster that carries, or last carried, the run."""
        record = json.loads(self.folder.run_json.read_text())
        return Path(record.get("cluster") or self.path / "cluster")

    def _has_driver(self) -> bool:
        holder = FileLease(self.path).look().holder
        return holder is not None and not holder.process.is_doomed()

    def _driver(self) -> Client:
        holder = FileLease(self.path).look().holder
        if holder is None:
            raise DeadlineError(
                f"run {self.name} has no driver yet", remedy="try again in a moment"
            )
        key = self.cluster_folder / "keys" / "console.key"
        if not key.exists():
            raise DeadlineError(
                f"the cluster of run {self.name} is gone", remedy="start the run with `headway run`"
            )
        return Client(
            holder.endpoint, keys=KeyPair.load(key), server_key=holder.server_key.encode()
        )
