"""The files of a node's run.

They are what an executor leaves to its successor, and what workers leave behind.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node import zygote_beat
from headway.common.node.exit_record import ExitRecord
from headway.common.node.files import replace_file
from headway.common.node.janitor import processes_of, role_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.controller.executor.node_events import Exit, Memory

FILE = "executor.json"
KEPT_DEAD = 16
"""Dead workers of a node whose logs and last words are kept, the newest."""

OUT_OF_MEMORY = "killed by the kernel: out of memory"

log = get_logger("node")


class MemoryFiles:
    """Reads and writes the files an executor leaves to its successor.

    ``executor.json`` is in the node's socket folder; ``monitor.json`` is for the agent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytes] = {}
        self.incarnation = 0

    def load(self, me: ProcessId) -> Memory:
        """What the executor before left; a damaged file counts as absent.

        Its services are found without it, and its workers report by themselves.

        The number of this executor on the node is its predecessor's plus one, and never less than
        its start time in ticks, so that it grows even where the file could not be written.
        """
        memory = Memory()
        try:
            memory = msgspec.json.decode((self._folder / FILE).read_bytes(), type=Memory)
        except (OSError, ValueError) as error:  # of msgspec, or of the decoder of UTF-8
            if not isinstance(error, FileNotFoundError):  # the node's first executor
                log.warning("what the executor before left cannot be read", reason=str(error))
        self.incarnation = max(memory.incarnation + 1, me.start_ticks)
        return memory

    def save(self, memory: Memory) -> None:
        """Raises OSError: as ``write``."""
        self.write(FILE, memory)

    def write(self, name: str, data: Any) -> None:
        """Write one of the files.

        Raises:
            OSError: it cannot be written; it then is what it was.
        """
        content = msgspec.json.encode(data)
        replace_file(self._folder / name, content)
        self._written[name] = content

    def keep(self) -> None:
        """Write the files again that were removed. Raises OSError."""
        for name, content in self._written.items():
            if not (self._folder / name).exists():
                replace_file(self._folder / name, content)


def running_services(paths: NodePaths, names: Collection[str]) -> dict[str, ProcessId]:
    """Return services of this node that run, by the environment they were started with.

    One that was started a moment before the executor died, or while its files could not be written,
    is in no file.

    Workers have the environment of the zygote that forked them, which therefore is known by its
    record.
    """
    found: dict[str, ProcessId] = {}
    for process in processes_of(paths.run_id, paths.node):
        role = role_of(process)
        if role in names and role != "zygote":
            found[role] = process
    record = zygote_beat.read(paths.shm_dir)
    if record is not None and not record[0].is_terminating():
        found["zygote"] = record[0]
    return found


# ---- what workers leave behind ----------------------------------------------------------------
def next_worker(paths: NodePaths, logs: Path) -> int:
    """A number that no worker with a file left here has had."""
    numbers = [number for number, _, _ in _left(paths, logs)]
    return max(numbers, default=-1) + 1


def clear_away(
    paths: NodePaths, logs: Path, living: Collection[str], keep: int = KEPT_DEAD
) -> None:
    """Remove last words and logs of dead workers, but for the newest ``keep`` workers'."""
    left = [found for found in _left(paths, logs) if found[1] not in living]
    newest = sorted({number for number, _, _ in left})[-keep:]
    for number, _, path in left:
        if number not in newest:
            path.unlink(missing_ok=True)


def _left(paths: NodePaths, logs: Path) -> list[tuple[int, str, Path]]:
    """(number, worker, file) of all last words and logs of this node's workers."""
    name = re.compile(rf"(?:words-)?(n{paths.node}w(\d{{1,9}}))\.(?:bin|log|log\.1)")
    files = [*paths.shm_dir.glob("words-*.bin"), *logs.glob(f"n{paths.node}w*.log*")]
    matches = [(name.fullmatch(path.name), path) for path in files]
    return [(int(match[2]), match[1], path) for match, path in matches if match is not None]


def exit_record(paths: NodePaths, worker: str, *, is_oom: bool = False) -> Exit:
    """Return how a worker ended; never raises.

    Without an account of its own it was killed, by the kernel if ``is_oom``.
    """
    try:
        words = ExitRecord(paths.segment("words", worker)).read()
    except (HeadwayError, OSError, ValueError) as error:
        log.warning("last words cannot be read", worker=worker, reason=str(error))
        words = None
    if words is not None:
        return Exit(words.reason, words.code)
    return Exit(OUT_OF_MEMORY, is_out_of_memory=True) if is_oom else Exit()


# ---- arenas -----------------------------------------------------------------------------------
def forget_arenas(files: Collection[Path]) -> None:
    """Remove arenas. Raises OSError when one cannot be; the others are removed first."""
    trouble: OSError | None = None
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            trouble = error
    if trouble is not None:
        raise trouble
