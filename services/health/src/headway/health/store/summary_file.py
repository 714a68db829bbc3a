"""``python -m headway.health.store.summary_file``: write one minute's summaries of steps, and end.

The monitor starts it and sends the messages to its standard input, each behind its length. The file
is ``summary-<time, ns>.parquet``, a row per rank and step with a list of its groups; without polars
``summary-<time, ns>.msgpack``, the same bytes as it has read.
"""

from __future__ import annotations

import argparse
import io
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from headway.common.errors import CorruptError, HeadwayError
from headway.common.log import get_logger, setup
from headway.common.node.files import make_private_folder, replace_file
from headway.common.wire.messages.summaries import StepSum, StepSummary
from headway.health.store.retention import keep_to

LENGTH = struct.Struct("<I")
GROUP_FIELDS = ("line", "number", "num", "wait_us", "nbytes", "first_us", "last_us")
_SUMMARY = msgspec.msgpack.Decoder(StepSummary)

_log = get_logger("windows")


def framed(bodies: Iterable[bytes]) -> bytes:
    """Messages, each behind its length."""
    return b"".join(LENGTH.pack(len(body)) + body for body in bodies)


def unframed(content: bytes) -> Iterator[StepSummary]:
    """The messages of ``framed``.

    Raises:
        CorruptError: the content is cut or is something else.
    """
    at = 0
    while at < len(content):
        try:
            (length,) = LENGTH.unpack_from(content, at)
            body = content[at + LENGTH.size : at + LENGTH.size + length]
            if len(body) < length:
                raise CorruptError(f"summary at byte {at} is cut", remedy="remove the file")
            yield _SUMMARY.decode(body)
        except (struct.error, msgspec.MsgspecError) as error:
            raise CorruptError(
                f"bytes from {at} on are not a summary: {error}", remedy="remove the file"
            ) from error
        at += LENGTH.size + length


def write_summaries(folder: Path, content: bytes) -> Path:
    """Write one file; returns its path.

    Raises:
        CorruptError: ``content`` is not what ``framed`` makes. OSError: it cannot be written.
    """
    make_private_folder(folder)
    stem = folder / f"summary-{time.time_ns():020d}"
    try:
        import polars as pl
    except ImportError:
        target = stem.with_suffix(".msgpack")
        replace_file(target, content)
        return target
    group = pl.Struct(dict.fromkeys(GROUP_FIELDS, pl.Int64))
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "node": pl.Int32,
        "boot_id": pl.String,
        **{name: pl.Int64 for name in StepSum._fields if name != "groups"},
        "groups": pl.List(group),
    }
    frame = pl.DataFrame(list(_rows(content)), schema=schema, orient="row")
    buffer = io.BytesIO()
    frame.sort("rank", "generation", "step").write_parquet(buffer, compression="zstd")
    target = stem.with_suffix(".parquet")
    replace_file(target, buffer.getvalue())
    return target


def _rows(content: bytes) -> Iterator[tuple[object, ...]]:
    for message in unframed(content):
        for one in message.steps:
            fields = one._asdict()
            groups = [dict(zip(GROUP_FIELDS, group, strict=True)) for group in fields.pop("groups")]
            yield message.node, message.boot_id, *fields.values(), groups


def summary_files(folder: Path) -> list[Path]:
    """All files of summaries, the oldest first."""
    return sorted([*folder.glob("summary-*.parquet"), *folder.glob("summary-*.msgpack")])


def main(arguments: list[str]) -> int:
    """Write what comes on standard input; the exit code is 1 if that failed."""
    parser = argparse.ArgumentParser(prog="python -m headway.health.store.summary_file")
    parser.add_argument("--folder", type=Path, required=True, help="where the file goes")
    parser.add_argument("--keep-bytes", type=int, default=0, help="disk space; 0 keeps all")
    parser.add_argument("--verdicts", type=Path, help="the run's verdicts.jsonl")
    given = parser.parse_args(arguments)
    setup("monitor")
    os.environ["POLARS_MAX_THREADS"] = "1"
    os.nice(10)
    try:
        write_summaries(given.folder, sys.stdin.buffer.read())
        if given.keep_bytes > 0:
            keep_to(given.keep_bytes, summary_files(given.folder), given.verdicts)
    except (OSError, HeadwayError) as error:
        _log.error("summaries of steps are not saved", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
