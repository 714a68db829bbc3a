"""The run's ``verdicts.jsonl``: one verdict per line, appended by the monitor only."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path

import msgspec
from headway.common.errors import InputError
from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.detectors.episodes import closing

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Verdict)
_TAG = re.compile(rb'"(health\.verdict/\d{1,9})"')
_OWN_TAG = str(Verdict.__struct_config__.tag).encode()


class VerdictFile:
    """Writes the file. A torn last line, from a killed predecessor or a full disk, is terminated.

    On a full disk it opens anyway, and creates the file with the first verdict that fits.

    Raises:
        InputError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._fd, self._is_torn = path, -1, False
        try:
            self._open()
        except OSError as error:
            if error.errno not in _FULL:
                raise InputError(
                    f"cannot open {path}: {error.strerror}", remedy="check the run folder"
                ) from error

    def append(self, verdict: Verdict) -> None:
        """Write one line in one call.

        Raises:
            OSError: the line is not, or only partly, in the file: a full disk.
        """
        if self._fd < 0:
            self._open()
        line = _encoder.encode(verdict) + b"\n"
        row = b"\n" + line if self._is_torn else line
        written = os.write(self._fd, row)
        self._is_torn = written < len(row) and not row[:written].endswith(b"\n")
        if written < len(row):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        size = os.fstat(self._fd).st_size
        self._is_torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"


class OtherVersionError(InputError):
    """Another version of Headway wrote the file."""


def read_verdicts(path: Path) -> list[Verdict]:
    """Every revision in order; none without a file. Lines torn by a kill are skipped.

    Raises:
        OtherVersionError: another version of Headway wrote verdicts to it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    verdicts: list[Verdict] = []
    for line in lines:
        try:
            verdicts.append(_decoder.decode(line))
        except msgspec.MsgspecError:
            found = _TAG.search(line)
            if found and found[1] != _OWN_TAG:
                raise OtherVersionError(
                    f"{path} contains verdicts of another version of Headway "
                    f"({found[1].decode()}, this one writes {_OWN_TAG.decode()})",
                    remedy="use the version that wrote them, or move the file away",
                ) from None
    return verdicts


def newest_revisions(verdicts: list[Verdict]) -> list[Verdict]:
    """The newest revision of each episode, in the order in which the episodes began.

    An older one may stand behind it: one that a full disk did not take at first.
    """
    newest: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.revision >= newest.setdefault(verdict.id, verdict).revision:
            newest[verdict.id] = verdict
    return list(newest.values())


def set_aside(path: Path) -> Path | None:
    """Rename a file that another version of Headway wrote; returns its new name, else None.

    Raises:
        OSError: it cannot be read or renamed.
    """
    try:
        read_verdicts(path)
    except OtherVersionError:
        older = path.with_name(f"{path.stem}-{time.time():.0f}{path.suffix}")
        return path.replace(older)
    return None


def close_open(path: Path, why: Evidence) -> int:
    """Write a closing revision of every open verdict of a file; returns how many.

    Raises:
        InputError: the file cannot be opened. OSError: it cannot be written.
    """
    left = [verdict for verdict in newest_revisions(read_verdicts(path)) if verdict.is_open]
    if left:
        file = VerdictFile(path)
        with contextlib.closing(file):
            for verdict in left:
                file.append(closing(verdict, why, time.time()))
    return len(left)
