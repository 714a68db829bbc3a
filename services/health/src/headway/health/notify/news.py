"""What of a verdict was sent to an address, so that nothing is sent twice.

It is kept in a file of each address, which outlives the monitor.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import msgspec
from headway.common.log import complain, get_logger
from headway.common.node.files import replace_json
from headway.common.wire.messages.health import Verdict

_NO_NEWS = frozenset({"repeated", "victim", "on_node"})
"""Rows of evidence that add nothing to what is known of the fault itself."""
_log = get_logger("notify")


class Essence(NamedTuple):
    """What matters of a verdict: a revision with another one is news."""

    facts: str
    """A digest of what is known, whether it still holds, and the advice."""
    taken: str
    """What the driver did about it."""

    @classmethod
    def of(cls, verdict: Verdict) -> Essence:
        """Repetitions of an open verdict are left out, and who else suffers from it."""
        rows = [(row.name, row.value) for row in verdict.evidence if row.name not in _NO_NEWS]
        facts = (verdict.kind, verdict.cause, verdict.is_open, verdict.confidence, verdict.remedy)
        return cls(_digest(msgspec.json.encode((facts, rows))), verdict.taken)

    def is_news_after(self, earlier: Essence) -> bool:
        """A verdict that is repeated has no answer yet, which is not news."""
        return self.facts != earlier.facts or self.taken not in ("", earlier.taken)


class SentFile:
    """The essence of each open verdict that an address has received. One writer."""

    def __init__(self, folder: Path, url: str) -> None:
        """The file's name is a digest of ``url``, which contains secrets."""
        self._path = folder / f"notified-{_digest(url.encode())}.json"
        self._sent = self._read()

    def sent(self) -> dict[str, Essence]:
        """By the verdict's id, as of the start and of what was noted since."""
        return dict(self._sent)

    def note(self, verdict: Verdict) -> None:
        """Note that the address has received a verdict; a closed one is forgotten."""
        if verdict.is_open:
            self._sent[verdict.id] = Essence.of(verdict)
        else:
            self._sent.pop(verdict.id, None)
        try:
            replace_json(self._path, self._sent, mode=0o600)
        except OSError as error:  # at worst it is sent once more
            complain(_log.error, "what was sent cannot be noted", reason=error.strerror)

    def _read(self) -> dict[str, Essence]:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads(self._path.read_bytes())
            return {str(name): Essence(str(row[0]), str(row[1])) for name, row in rows.items()}
        return {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
