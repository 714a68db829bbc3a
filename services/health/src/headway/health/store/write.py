"""``python -m headway.health.store.write``: save what the rings of a node have new, and end.

The agent starts it once a minute, and the executor at the end of a run. One at a time writes:
they hold a lock in the node's shared memory, which the kernel releases however they end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import CorruptError
from headway.common.log import get_logger, setup
from headway.common.node.event_files import RankFacts, earlier_files, event_files
from headway.health.store.retention import keep_to
from headway.health.store.rings import NewRecords, new_records
from headway.health.store.windows import saved_until, write_window

LOCK_FILE = "window.lock"
LOCK_WAIT_S = 5.0
"""How long the last save of a run waits for one under way."""
NICENESS = 10
"""A periodic save gives way to the ranks; the last one of a run does not."""

_log = get_logger("windows")


def save(shm_dir: Path, events: Path, node: int, *, final: bool = False) -> Path | None:
    """Write one window with all that is new; None if nothing is, or another process is writing.

    A rank whose ring cannot be read is logged and does not delay others.

    Args:
        final: the run ends: records that are still open are written, too.

    Raises:
        OSError: the window cannot be written; the next save contains its records.
    """
    with _lock(shm_dir / LOCK_FILE, LOCK_WAIT_S if final else 0.0) as is_held:
        if not is_held:
            _log.warning("flight records are not saved: another process is saving them")
            return None
        _remove_scratch(events, node)
        rings = sorted(shm_dir.glob("flight-*.bin"))
        ranks = {int(path.stem[7:]) for path in rings if path.stem[7:].isdigit()}
        saved = saved_until(events, node, ranks)
        parts = [part for part in _read(rings, saved, final=final) if len(part.records)]
        for part in parts:
            if part.facts.lost:
                _log.warning(
                    "flight records were overwritten before they were saved",
                    rank=part.rank,
                    lost=part.facts.lost,
                )
        return write_window(events, node, parts, saved) if parts else None


def _read(rings: list[Path], saved: dict[int, RankFacts], *, final: bool) -> Iterator[NewRecords]:
    for path in rings:
        try:
            yield new_records(path, saved, final=final)
        except FileNotFoundError:
            continue  # removed with its rank
        except (CorruptError, OSError) as error:
            _log.error("flight records are not saved", ring=path.name, reason=str(error))


@contextlib.contextmanager
def _lock(path: Path, wait_s: float) -> Iterator[bool]:
    """Whether the lock is held, after ``wait_s`` at the latest."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + wait_s
    try:
        while not (is_held := _try_lock(fd)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        yield is_held
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def files_of(events: Path, node: int) -> list[Path]:
    """All windows of a node, those of earlier versions included."""
    return [file.path for file in event_files(events, node)] + earlier_files(events, node)


def _remove_scratch(events: Path, node: int) -> None:
    """Remove what savers of this node that were killed have left; the lock is held."""
    for path in events.glob(f".n{node}-*"):
        path.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Save once; the exit code is 1 if the window could not be written."""
    parser = argparse.ArgumentParser(prog="python -m headway.health.store.write")
    parser.add_argument("--shm-dir", type=Path, required=True, help="with the node's rings")
    parser.add_argument("--events", type=Path, required=True, help="where the windows go")
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--keep-bytes", type=int, default=0, help="disk space; 0 keeps all")
    parser.add_argument("--verdicts", type=Path, help="the run's verdicts.jsonl")
    parser.add_argument("--final", action="store_true", help="save open records, too")
    given = parser.parse_args(arguments)
    setup("agent", node=given.node)
    os.environ["POLARS_MAX_THREADS"] = "1"
    if not given.final:
        os.nice(NICENESS)
    try:
        save(given.shm_dir, given.events, given.node, final=given.final)
        if given.keep_bytes > 0:
            keep_to(given.keep_bytes, files_of(given.events, given.node), given.verdicts)
    except OSError as error:
        _log.error("flight records are not saved", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
