"""A run as its folder shows it, live or ended: configuration, journal, processes. Sends nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.errors import CorruptError, InputError
from headway.common.node.files import replace_json
from headway.common.node.run_dir import RunDir
from headway.common.polling import wait_until
from headway.console.folder.older_version import implied
from headway.console.folder.presence import TAKEOVER_S, Observer, Presence
from headway.console.folder.starting import Starter, starter_of
from headway.console.hints import hint, resume_command
from headway.console.machine.peak import Peak, cached_peak
from headway.controller.client import JournalFile, RunJournal, kept_facts
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.choose import lease_of
from headway.trainer.config import RunConfig

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
        self._journal = JournalFile(self.folder.database)
        self.records = RunJournal(self._read)
        """What its journal holds."""
        self._observer = Observer()

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
            own = self.folder.config
            parsed = self._parsed = (key, load(RunConfig, files=[own], overrides=implied(own)))
        return parsed[1]

    @property
    def peak(self) -> Peak | None:
        """The peak of what the run computes on, or None.

        None if it was never measured, or if the run computes on other machines, whose peak is not
        known here.
        """
        if self.is_elsewhere or self.folder.bundle.exists():
            return None
        return cached_peak(self.config.train.device)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its folder is on another machine, and this one has only what a gateway shows."""
        return False

    @property
    def known_checkpoint(self) -> int | None:
        """Step of the newest complete checkpoint of a run elsewhere, -1 without one.

        None for a run whose checkpoints can be looked at.
        """
        return None

    # ---- where it stands ----------------------------------------------------------------------
    @property
    def presence(self) -> Presence:
        """Whether an executor or the driver runs, either of which restarts the rest.

        ``silent`` is a run on machines that may still be taken over.
        """
        if self.folder.bundle.exists():
            lease = lease_of(self.folder.control)
            return self._observer.look(lease, has_outcome=bool(self.outcome))
        cluster = ClusterFolder(self.cluster_folder)
        is_here = cluster.is_carrying(self.folder.run_id) or self._has_driver()
        return "led" if is_here else "gone"

    @property
    def live(self) -> bool:
        """Whether it runs, as far as is known: only a run that is certainly dead is not live."""
        return self.presence != "gone"

    def settle(self, report: Callable[[str], None]) -> bool:
        """``live``, but certain: a run that is silent is watched until it is led or dead."""
        if self.presence == "silent":
            report(
                f"no driver leads run {self.name} now; waiting up to {TAKEOVER_S:.0f} s to see "
                "whether another one takes over"
            )
            wait_until(lambda: self.presence != "silent", 2 * TAKEOVER_S, every_s=0.25)
        return self.live

    @property
    def state(self) -> str:
        """The state of the run as text.

        It is ``starting`` while a command starts it, ``live``, its outcome, ``unreachable`` while
        nobody leads it and another driver may take over, ``interrupted`` if it ended without an
        outcome, ``interrupted while starting`` if it never began, or ``not started``.
        """
        if self.starter is not None:
            return "starting"
        if outcome := self.outcome:
            return outcome
        ended = "interrupted" if self.has_begun else "not started"
        if ended == "not started" and starter_of(self.path) is not None:
            ended = "interrupted while starting"
        return {"led": "live", "silent": "unreachable", "gone": ended}[self.presence]

    def resume_command(self, state: str) -> str:
        """What resumes it; empty in a state in which nothing can, and on another machine."""
        if self.is_elsewhere or state in ("starting", "live", "finished"):
            return ""
        return resume_command(self.path, self.cluster_folder)

    @property
    def starter(self) -> Starter | None:
        """The command that starts or resumes it now, if there is one."""
        found = starter_of(self.path)
        return found if found is not None and not found.is_dead else None

    @property
    def has_begun(self) -> bool:
        """Whether a driver has led it yet; a fork waits for its start."""
        return self.records.has_begun() or bool(self.journal_trouble)

    @property
    def outcome(self) -> str:
        """``finished``, ``stopped`` or ``failed``; empty while the run is unfinished."""
        return self.fact("outcome")

    @property
    def completed_steps(self) -> int:
        """Completed steps by the journal, at the same cost for any length of the run."""
        completed, origin = self.records.completed_steps(), self.forked_from
        if completed is not None:
            return completed
        return int(origin["step"]) if origin else 0

    @property
    def forked_from(self) -> dict[str, Any] | None:
        """The run and the step that it was forked from: run, step; None if it began at step 0."""
        return self._record().get("forked_from")

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, extensions included."""
        return max(self.config.train.steps, self.records.extended_to())

    @property
    def cluster_folder(self) -> Path:
        """The folder of the cluster that carries, or last carried, the run."""
        return Path(self._record().get("cluster") or self.path / "cluster")

    def _record(self) -> dict[str, Any]:
        """What ``run.json`` holds. Raises CorruptError if it is damaged."""
        try:
            return dict(json.loads(self.folder.run_json.read_text()))
        except (ValueError, TypeError) as error:
            raise CorruptError(
                f"{self.folder.run_json} is damaged",
                remedy="put it back from a copy; the checkpoints are whole",
            ) from error

    def note(self, **facts: object) -> None:
        """Write some entries of ``run.json`` anew. Raises CorruptError if it is damaged."""
        replace_json(self.folder.run_json, {**self._record(), **facts})

    def _has_driver(self) -> bool:
        holder = lease_of(self.folder.control).look().holder
        return holder is not None and not holder.process.is_terminating()

    # ---- the journal --------------------------------------------------------------------------
    def fact(self, key: str) -> str:
        """A remembered value of the journal, empty if there is none."""
        facts = self.records.facts()  # all: a key may be damaged
        if self._file.damage:
            facts = kept_facts(self.folder.database)
        return str(facts.get(key, ""))

    def _read(self, read: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of one of the journal's reads."""
        return self._file.rows(read, values)

    @property
    def _file(self) -> JournalFile:
        """The journal where it is now: a run gets a folder that its machines share as it starts."""
        self._journal.path = self.folder.database
        return self._journal

    @property
    def journal_trouble(self) -> str:
        """What is wrong with the journal and what to do, empty while it can be read."""
        if self.is_elsewhere:
            return ""
        damage = self._file.damage_for_drivers()
        if not damage:
            return ""
        return (
            f"its journal {self.folder.database} is damaged ({damage}); the driver sets it "
            "aside and begins a new one, of a run that has ended once `headway run` resumes it"
        )

    @property
    def journal_id(self) -> int:
        """Another number for another file: a new one may have taken the place of a damaged one."""
        with contextlib.suppress(OSError):
            return self.folder.database.stat().st_ino
        return 0

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Within it the reads of this thread share one connection, which costs a tenth."""
        return self._file.reading()
