"""The run's ``verdicts.jsonl``: one verdict a line, appended by the monitor alone, read by anybody."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from headway.common.errors import InputError
from headway.common.wire.messages.health import Verdict

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Verdict)


class VerdictFile:
    """The writer's end. A torn last line of a killed predecessor stays alone on its line.

    Raises:
        InputError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(
                f"cannot open {path}: {error.strerror}", remedy="check the run folder"
            ) from error
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def append(self, verdict: Verdict) -> None:
        """Writes one line in one call. Raises OSError (a full disk)."""
        os.write(self._fd, _encoder.encode(verdict) + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_verdicts(path: Path) -> list[Verdict]:
    """Every revision in order; none when there is no file. Lines that are no verdict are skipped."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    verdicts: list[Verdict] = []
    for line in lines:
        try:
            verdicts.append(_decoder.decode(line))
        except msgspec.MsgspecError:
            continue  # torn by a kill, or of a later version
    return verdicts


def newest_revisions(verdicts: list[Verdict]) -> list[Verdict]:
    """The last word on each episode, in the order in which the episodes began."""
    newest: dict[str, Verdict] = {}
    for verdict in verdicts:
        newest[verdict.id] = verdict
    return list(newest.values())
