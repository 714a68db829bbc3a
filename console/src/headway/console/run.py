"""One run, live or ended: its records as data frames, its driver's answers and its operations."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import (
    Accepted,
    Command,
    CommandOperation,
    GetStatus,
    RankStatus,
    Status,
)
from headway.console.folder.records import TERMINAL_OUTCOMES
from headway.console.hints import fork_hint
from headway.console.run_frames import RunFrames
from headway.console.steering.methods import Steering
from headway.launch.lease.choose import lease_of

__all__ = ["PAGE_RANKS", "TERMINAL_OUTCOMES", "Run"]
PAGE_RANKS = 1024
"""Ranks in one answer of the driver, at most."""


class Run(RunFrames, Steering):
    """A run folder and, while it is live, its driver.

    Every call makes its own connection, so a ``Run`` may be used from any thread and survives a
    restarted driver.
    """

    # ---- the driver ---------------------------------------------------------------------------
    def status(
        self, timeout_s: float = 5.0, *, first_rank: int = 0, num_ranks: int | None = None
    ) -> Status:
        """Ask the driver: counts of all ranks, and ``num_ranks`` of them from ``first_rank`` on.

        Raises:
            DeadlineError: no driver answers; it may be starting, or the run is over.
        """
        with self.driver() as client:
            page = PAGE_RANKS if num_ranks is None else num_ranks
            question = GetStatus(first_rank=first_rank, num_ranks=page)
            return client.call(question, Status, timeout_s=timeout_s)

    def ranks(self, timeout_s: float = 5.0) -> list[RankStatus]:
        """Every rank of the run, asked for page by page.

        Raises:
            DeadlineError: as ``status``.
        """
        found: list[RankStatus] = []
        while True:
            page = self.status(timeout_s, first_rank=len(found))
            found += page.ranks
            if not page.ranks or len(found) >= page.num_ranks:
                return found

    def wait(self, timeout_s: float | None = None) -> str:
        """Block until the run is over; returns its outcome.

        Raises:
            DeadlineError: not over within ``timeout_s``.
            HeadwayError: none of its processes is running, and it is not over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            outcome, live = self.outcome, self.live
            if outcome in TERMINAL_OUTCOMES and not live:
                return outcome
            if not live and not self.outcome and self.starter is None:
                raise self.crashed()
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(
                    f"run {self.name} is not over after {timeout_s} s",
                    remedy="see `headway status`",
                )
            time.sleep(0.2)

    def crashed(self) -> HeadwayError:
        """The error for a run that is not over and has no process any more."""
        return HeadwayError(
            f"run {self.name} stopped unexpectedly: none of its processes is running",
            remedy=f"start it again with `headway run`; logs: {self.hint('logs')}",
        )

    def fetch_records(self) -> list[str]:
        """Copy logs and records of steps from the machines of the run into its folder.

        Nothing is copied where this machine carries it. Returns a sentence for each machine that
        failed.
        """
        if not self.folder.bundle.exists():
            return []
        from headway.launch.engines.choose import of_bundle
        from headway.launch.join.bundle import Bundle

        return of_bundle(Bundle.load(self.folder.bundle)).fetch_records(self.path)

    # ---- operations ---------------------------------------------------------------------------
    def command(self, operation: CommandOperation, **fields: Any) -> int:
        """Send one operation; retried over a driver's restart and carried out once.

        Args:
            operation: a name of ``steering.OPERATIONS``.
            fields: the other fields of the message ``Command`` that it needs.

        Raises:
            InputError: the run is over, or none of its processes is running.
            RemoteError: the driver refused it.
            DeadlineError: no driver took it.
        """
        self._refuse_over(operation, fields.get("count", 0))
        command = Command(id=uuid.uuid4().hex, operation=operation, **fields)
        for attempt in range(4):
            try:
                return self.send(command, timeout_s=4.0)
            except DeadlineError:  # it may have been taken, or the run may have ended meanwhile
                if (taken := self.records.sequence_of(command.id)) is not None:
                    return taken
                self._refuse_over(operation, fields.get("count", 0))
                if attempt == 3:
                    raise
        raise AssertionError("unreachable")

    def send(self, command: Command, *, timeout_s: float) -> int:
        """Send one command once; the same ``id`` again is carried out once.

        Raises:
            RemoteError: the driver refused it. DeadlineError: no driver took it.
        """
        with self.driver() as client:
            return client.call(command, Accepted, timeout_s=timeout_s).sequence

    def _refuse_over(self, operation: str = "", count: int = 0) -> None:
        if (starter := self.starter) is not None and not self.live:
            raise InputError(
                f"run {self.name} is starting: {starter.doing()}",
                remedy=f"try again when {self.hint('status')} shows it as running",
            )
        if self.outcome in TERMINAL_OUTCOMES:
            remedy = f"see {self.hint('status')}"
            if operation == "extend" and self.outcome == "finished":
                remedy = f"train on in a new run: {fork_hint(self.path, self.total_steps + count)}"
            raise InputError(f"run {self.name} is {self.outcome}, not live", remedy=remedy)
        if not self.live:
            raise InputError(f"run {self.name} is not live", remedy="start it with `headway run`")

    def wait_applied(self, sequence: int, timeout_s: float = 60.0) -> None:
        """Block until all ranks have applied a command.

        Raises:
            DeadlineError: not within ``timeout_s``.
            InputError: the run ended before.
        """

        def is_applied() -> bool:
            with contextlib.suppress(DeadlineError):
                if self.status().applied >= sequence:
                    return True
            self._refuse_over()
            return False

        if not wait_until(is_applied, timeout_s, every_s=0.1):
            raise DeadlineError(
                f"command {sequence} is not applied after {timeout_s} s",
                remedy="see `headway status`",
            )

    def result(self, sequence: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Block until the result of ``evaluate`` or ``sample`` is there, and return it.

        It has the step, and loss (nats per token) or prompt and text.

        Raises:
            DeadlineError: not within ``timeout_s``.
            InputError: the run ended before.
        """
        from headway.console.folder.samples import result_of

        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found.extend(result_of(self, sequence))
            if not found:
                self._refuse_over()
            return bool(found)

        if not wait_until(is_there, timeout_s, every_s=0.1):
            raise DeadlineError(
                f"command {sequence} has no result after {timeout_s} s",
                remedy="see `headway status`",
            )
        return found[-1]

    def driver(self) -> Client:
        """A connection to the driver.

        Raises:
            DeadlineError: there is none yet, or its keys are gone.
        """
        holder = lease_of(self.folder.control).look().holder
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
