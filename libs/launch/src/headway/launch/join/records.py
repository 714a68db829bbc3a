"""Packs a node's logs and records of steps into text, to be sent as the output of a command."""

from __future__ import annotations

import base64
import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from headway.common.errors import CorruptError
from headway.common.node.files import files_below, replace_file

MOST_BYTES = 64 << 20
"""The most bytes of one node's records, before compression; the newest files come first."""
FOLDERS = ("logs", "events")
_SHOWN = 80
_BY_HAND = "copy the node's logs by hand"


def pack(run: Path, most_bytes: int = MOST_BYTES) -> str:
    """The newest files of a node's run folder: a compressed tar archive in base64.

    Raises:
        OSError: one of them cannot be read.
    """
    found = [path for name in FOLDERS for path in files_below(run / name)]
    stats = sorted(((path.stat(), path) for path in found), key=lambda one: -one[0].st_mtime_ns)
    buffer, left = io.BytesIO(), most_bytes
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for stat, path in stats:
            left -= stat.st_size
            if left < 0:
                break
            archive.add(path, arcname=str(path.relative_to(run)))
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(text: str, run: Path, most_bytes: int = 2 * MOST_BYTES) -> int:
    """Put what ``pack`` made into the run's folder here; returns the number of files.

    Only plain files below ``logs`` and ``events`` are taken.

    Raises:
        CorruptError: it is not what ``pack`` makes, or holds far more than it would.
    """
    try:
        data = _decompress(base64.b64decode(text, validate=False), most_bytes)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = [one for one in archive if one.isfile() and _is_expected(one.name)]
            _check_sizes(members, most_bytes)
            for one in members:
                _write(run / one.name, archive.extractfile(one), one.mtime)
            return len(members)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise CorruptError(
            f"the records of a node cannot be read: {error}", remedy="ask for them again"
        ) from error


def _decompress(data: bytes, most_bytes: int) -> bytes:
    """All of it, so that its checksum is compared before anything is written."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        found = packed.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise _too_much(most_bytes)
    return found


def _check_sizes(members: Sequence[tarfile.TarInfo], most_bytes: int) -> None:
    """A sparse member may be of any size, whatever the archive's own is; ``pack`` makes none."""
    for one in members:
        if one.issparse():
            raise CorruptError(
                f"{one.name[:_SHOWN]!a} is packed as a sparse file of {one.size} bytes",
                remedy=_BY_HAND,
            )
    if sum(one.size for one in members) > most_bytes:
        raise _too_much(most_bytes)


def _too_much(most_bytes: int) -> CorruptError:
    text = f"a node sends more than {most_bytes >> 20} MiB of records"
    return CorruptError(text, remedy=_BY_HAND)


def _write(path: Path, content: IO[bytes] | None, saved_unix_s: float) -> None:
    # not ``TarFile.extract``, whose filters Python 3.11.2 does not have
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.read())
        os.utime(path, (saved_unix_s, saved_unix_s))  # it shows which boot a window belongs to


def _is_expected(name: str) -> bool:
    parts = Path(name).parts
    return len(parts) > 1 and parts[0] in FOLDERS and ".." not in parts
