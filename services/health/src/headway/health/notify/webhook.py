"""Delivers verdicts to one web address, on a thread of its own.

What cannot be delivered now waits, of each verdict the newest revision, and is tried again after
growing pauses. Verdicts that waited for too long, or for which there is no room, are dropped and
counted. An outage is one line in the log, and its end another.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from headway.common.log import get_logger
from headway.common.wire.messages.health import Verdict
from headway.common.wire.side_thread import SideThread
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.diagnosis.words import short_lines
from headway.health.notify.address import shown
from headway.health.notify.news import Essence, SentFile
from headway.health.notify.post import NotDelivered, Refused, post

MAX_WAITING: Final = 256
"""Verdicts that wait; beyond it the oldest is dropped."""
KEEP_S: Final = 3600.0
"""How long one waits at most: what is older, somebody has found out otherwise."""
ANSWER_S: Final = 10.0
"""How long a server may take to answer."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Between two tries; each pause is twice as long as the one before."""
CLOSE_S: Final = 2.0
"""How long the end of a monitor waits for what is to be sent."""

_log = get_logger("notify")


@dataclass(frozen=True, slots=True)
class _Waiting:
    verdict: Verdict
    since_s: float


class Webhook:
    """``put`` never blocks. The other public methods are for one thread, the monitor's."""

    def __init__(
        self,
        url: str,
        least: float,
        file: SentFile,
        *,
        answer_s: float = ANSWER_S,
        pause_s: float = FIRST_PAUSE_S,
        keep_s: float = KEEP_S,
    ) -> None:
        """``least`` is the confidence from which on a verdict is sent."""
        self._url, self._least, self._file = url, least, file
        self._answer_s, self._first_pause_s, self._keep_s = answer_s, pause_s, keep_s
        self._known = file.sent()
        """By id, what was sent or is to be sent."""
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._pause_s = 0.0
        """Until the next try, 0 while the address takes what it is sent."""
        self._outage_since_s: float | None = None
        self.num_dropped = 0
        self._dropped_before = 0
        """How many were dropped before the present outage."""
        self._thread = SideThread("notify", self._deliver_next)

    def put(self, verdict: Verdict) -> None:
        """Have a verdict sent if it is news."""
        essence, known = Essence.of(verdict), self._known.get(verdict.id)
        if known is None and (not verdict.is_open or verdict.confidence < self._least):
            return
        if known is not None and not essence.is_news_after(known):
            return
        if verdict.is_open:
            taken = essence.taken or (known.taken if known else "")
            self._known[verdict.id] = Essence(essence.facts, taken)
        else:
            self._known.pop(verdict.id, None)
        with self._lock:
            self._waiting[verdict.id] = _Waiting(verdict, time.monotonic())
            if len(self._waiting) > MAX_WAITING:
                self._drop(next(iter(self._waiting)))
        if not self._pause_s:
            self._thread.wake()

    def catch_up(self, verdicts: Iterable[Verdict]) -> None:
        """Have sent what an earlier monitor has left; ``verdicts`` are the newest revisions."""
        for verdict in verdicts:
            self.put(verdict)

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Send what waits, for at most ``limit_s``; the next monitor sends the rest."""
        self._thread.submit(self._flush)
        self._thread.close(limit_s)

    def _flush(self) -> None:
        while self._deliver_next() == 0.0:
            pass

    def _deliver_next(self) -> float | None:
        """Send the verdict that has waited longest; returns when to be called again."""
        with self._lock:
            now_s = time.monotonic()
            for name in [
                n for n, one in self._waiting.items() if now_s - one.since_s > self._keep_s
            ]:
                self._drop(name)
            if not self._waiting:
                self._pause_s = 0.0  # else ``put`` would leave the next one to a call never made
                return None
            name, waiting = next(iter(self._waiting.items()))
        verdict = waiting.verdict
        try:
            post(self._url, body_of(verdict), _key(verdict), self._answer_s)
        except NotDelivered as error:
            self._fail(str(error))
            self._pause_s = min(max(self._first_pause_s, 2 * self._pause_s), LONGEST_PAUSE_S)
            return self._pause_s
        except Refused as error:
            self._fail(str(error))
            self._pause_s = 0.0
            with self._lock:
                if self._waiting.get(name) is waiting:
                    self._drop(name)
            return 0.0
        self._file.note(verdict)
        with self._lock:
            if self._waiting.get(name) is waiting:
                del self._waiting[name]
        self._succeed()
        return 0.0

    def _drop(self, name: str) -> None:
        del self._waiting[name]
        self.num_dropped += 1

    def _fail(self, reason: str) -> None:
        if self._outage_since_s is None:
            self._outage_since_s, self._dropped_before = time.monotonic(), self.num_dropped
            _log.warning("verdicts are not delivered", to=shown(self._url), reason=reason)

    def _succeed(self) -> None:
        self._pause_s = 0.0
        if self._outage_since_s is not None:
            lasted_s = time.monotonic() - self._outage_since_s
            self._outage_since_s = None
            _log.info(
                "verdicts are delivered again",
                to=shown(self._url),
                after_s=round(lasted_s, 1),
                dropped=self.num_dropped - self._dropped_before,
            )


def _key(verdict: Verdict) -> str:
    """A key that all tries of one revision share; a header may hold ASCII letters only."""
    name = f"{verdict.run_id}/{verdict.id}/{verdict.revision}"
    return hashlib.sha256(name.encode()).hexdigest()


def body_of(verdict: Verdict) -> bytes:
    """What is sent: the verdict as in ``verdicts.jsonl``, and the same for people."""
    lines = [*short_lines(diagnosis_of(verdict), verdict.unix_s)]
    if not verdict.is_open:
        lines.insert(0, "over:")
    return msgspec.json.encode({"text": "\n".join(lines), "verdict": verdict})
