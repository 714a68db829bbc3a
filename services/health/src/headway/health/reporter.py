"""Writes verdicts to the run's file and sends them to the current driver until it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq
from headway.common.log import get_logger
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import MonitorBeat
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.health.announce import FollowedPeer
from headway.health.journal import VerdictFile, newest_revisions, read_verdicts
from headway.health.notify.notifier import Notifier

MAX_WAITING = 256
"""Notes queued while the driver is replaced. More are dropped, as open verdicts repeat anyway."""
REPEAT_S = 1.0
"""An open verdict that the driver has not answered is sent again this often."""

_log = get_logger("verdicts")


class Unanswered:
    """The open verdicts that the driver has not answered, and when each is to be sent again."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self._open: dict[str, Verdict] = {}
        self._due_s: dict[str, float] = {}
        for verdict in verdicts:
            self.note(verdict, 0.0)

    def note(self, verdict: Verdict, now_s: float) -> bool:
        """Add a new revision; returns whether to send it now.

        Recorded answers are not sent, nor is evidence that changes nothing else.
        """
        known = self._open.pop(verdict.id, None)
        is_answered = verdict.is_open and bool(verdict.taken)
        if verdict.is_open:
            self._open[verdict.id] = verdict
        is_same = known is not None and verdict.is_open and _question(verdict) == _question(known)
        if not verdict.is_open or is_answered:
            self._due_s.pop(verdict.id, None)
        elif not is_same:
            self._due_s[verdict.id] = now_s + REPEAT_S
        is_record = is_answered and (known is None or verdict.taken != known.taken)
        return not is_same and not is_record

    def due(self, now_s: float, *, is_new_driver: bool = False) -> list[Verdict]:
        """What to send again now; a new driver gets all open verdicts, answered or not."""
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s or is_new_driver]
        for name in due:
            self._due_s[name] = now_s + REPEAT_S
        return [self._open[name] for name in (self._open if is_new_driver else due)]


def _question(verdict: Verdict) -> tuple[str | float, ...]:
    """What the driver decides on, or shows."""
    return verdict.kind, verdict.cause, verdict.action, verdict.confidence, verdict.taken


class Reporter:
    """The monitor's connection to file and driver. Call ``receive`` when its socket is readable."""

    def __init__(
        self,
        run_dir: Path,
        keys: KeyPair,
        *,
        watch: Callable[[zmq.Socket[Any]], None] = lambda _: None,
        unwatch: Callable[[zmq.Socket[Any]], None] = lambda _: None,
        notify: Sequence[str] = (),
        notify_from: float = 0.0,
    ) -> None:
        """Read what an earlier monitor wrote.

        Args:
            run_dir: ``verdicts.jsonl`` is written there, ``driver.json`` read.
            keys: the client keys; the driver admits only those of the monitor. watch: called with
            the socket of each new driver. unwatch: called before it is closed. notify: web
            addresses that verdicts of a confidence of at least ``notify_from`` are sent to.

        Raises:
            InputError: the folder cannot be written, for a reason other than a full disk; or
                another version of Headway wrote its verdicts.
        """
        path = run_dir / "verdicts.jsonl"
        self.earlier = read_verdicts(path)
        """The verdicts in the file when the monitor started."""
        newest = newest_revisions(self.earlier)
        self._unanswered = Unanswered(one for one in newest if one.is_open)
        self._file = VerdictFile(path)
        self._unwritten: dict[str, Verdict] = {}
        """By id, the newest revision for which the disk had no room."""
        self.notifier = Notifier(notify, notify_from, run_dir, self.earlier)
        self._driver = FollowedPeer(
            run_dir / "driver.json",
            MAX_WAITING,
            keys,
            accept=(VerdictTaken,),
            on_open=watch,
            on_close=unwatch,
        )

    def follow_driver(self, now_s: float) -> None:
        """Check for a new driver, which gets all open verdicts; repeat unanswered ones.

        What could not be written is tried again: a verdict that is over would stay open in the
        file, and the next monitor would take it over.
        """
        is_new = self._driver.refresh()
        for verdict in self._unanswered.due(now_s, is_new_driver=is_new):
            self._driver.notify(verdict)
        self._write_rest()

    def receive(self) -> list[VerdictTaken]:
        """The driver's answers since the last call."""
        return [note for note in self._driver.receive() if isinstance(note, VerdictTaken)]

    def show(self, beat: MonitorBeat) -> None:
        """Send the address of this monitor to the driver."""
        self._driver.notify(beat)

    def report(self, verdicts: Iterable[Verdict], now_s: float) -> None:
        """Send and write new revisions, in this order.

        A full disk then does not delay a recovery.
        """
        for verdict in verdicts:
            if self._unanswered.note(verdict, now_s):
                self._driver.notify(verdict)
            self._write(verdict)
            self.notifier.report(verdict)
            _log.warning(
                "verdict",
                id=verdict.id,
                kind=verdict.kind,
                is_open=verdict.is_open,
                taken=verdict.taken,
                **_facts(verdict),
            )

    def close(self) -> None:
        self._write_rest()
        self._file.close()
        self._driver.close()
        self.notifier.close()

    def _write_rest(self) -> None:
        for verdict in list(self._unwritten.values()):
            if not self._write(verdict):
                return

    def _write(self, verdict: Verdict) -> bool:
        """Append a revision; what finds no room now is kept, and returns False."""
        was_unwritten = self._unwritten.pop(verdict.id, None) is verdict
        try:
            self._file.append(verdict)
        except OSError as error:
            self._unwritten[verdict.id] = verdict
            if not was_unwritten:
                _log.error("verdict not written", id=verdict.id, reason=error.strerror)
            return False
        if was_unwritten:
            _log.info("delayed verdict written", id=verdict.id)
        return True


def _facts(verdict: Verdict) -> dict[str, str]:
    """For the log: the matched line with its place and program, or the sentence for people."""
    shown = ("line", "at", "program", "finding")
    return {row.name: row.value for row in verdict.evidence if row.name in shown}
