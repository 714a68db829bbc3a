"""The arenas of one node as the daemon sees them: which exist, and what they want flushed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeAlias

from headway.ckpt_store.attempts import Key
from headway.ckpt_store.events import Slot
from headway.ckpt_store.flush import Snapshot, parse_layout
from headway.ckpt_store.in_memory import Holding
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.arena import Arena, SlotInfo

_FileId: TypeAlias = tuple[int, int]
"""Inode and size in bytes: reading past the end of a truncated file would kill the daemon."""

_log = get_logger("store")


class Arenas:
    """The arena files of a shared-memory folder, opened when they appear, dropped when removed."""

    def __init__(self, shm_dir: Path, run_id: str) -> None:
        self._shm_dir = shm_dir
        self._run_id = run_id
        self._open: dict[Path, tuple[_FileId, Arena]] = {}
        self._refused: dict[Path, _FileId] = {}
        self._gone: list[Arena] = []
        self._slots: dict[Slot, tuple[Arena, SlotInfo]] = {}

    def look(self, *, keep_mapped: bool) -> frozenset[int]:
        """Follow the files of the arenas and return the ranks that have one.

        While ``keep_mapped`` nothing is unmapped: the disk thread may be reading.
        """
        self._follow_files()
        if not keep_mapped:
            for arena in self._gone:
                arena.close()
            self._gone.clear()
        return frozenset(arena.rank for _, arena in self._open.values())

    def slots(self, also: Key | None = None) -> tuple[Slot, ...]:
        """Return the snapshots to flush.

        They are those that ranks want, and with ``also`` those of that step and generation.
        """
        self._slots = {
            Slot(info.step, info.generation, arena.rank, info.seal): (arena, info)
            for path, (_, arena) in list(self._open.items())
            for info in [*self._wanted(path, arena), *_of(arena, also)]
        }
        return tuple(self._slots)

    def holdings(self) -> dict[int, Holding]:
        """What each rank's arena holds, doubtful snapshots left out, and so are damaged arenas."""
        found = {}
        for _, arena in self._open.values():
            with contextlib.suppress(CorruptError):  # dropped by the next scan
                found[arena.rank] = Holding(arena.committed, _undoubted(arena))
        return found

    def is_written(self) -> bool:
        """Whether a process that writes snapshots is running."""
        writers = [arena.writer for _, arena in self._open.values()]
        return any(writer.pid and not writer.is_terminating() for writer in writers)

    def generation(self) -> int:
        """The newest of all sealed snapshots; -1 without any."""
        found = [info.generation for _, arena in self._open.values() for info in arena.sealed()]
        return max(found, default=-1)

    def committed(self) -> dict[int, int]:
        """Newest committed step by rank, in order of ranks."""
        steps = {}
        for _, arena in self._open.values():
            with contextlib.suppress(CorruptError):  # dropped by the next scan
                steps[arena.rank] = arena.committed
        return dict(sorted(steps.items()))

    def release(self, slot: Slot) -> None:
        """Let the rank use the slot again."""
        if slot in self._slots:
            arena, info = self._slots[slot]
            if arena not in self._gone:
                arena.release(info)

    def snapshot(self, slot: Slot) -> Snapshot | None:
        """Return the snapshot in ``slot``, or None if it is gone.

        Raises:
            CorruptError: its layout is unreadable.
        """
        if slot not in self._slots:
            return None
        arena, info = self._slots[slot]
        data, extra = arena.read(info)
        if not arena.unchanged(info):
            return None
        layout = parse_layout(arena.layout)
        incarnation = str(layout.pop("incarnation", ""))
        return Snapshot(
            arena.run_id, info.step, info.generation, layout, data, extra,
            still_valid=lambda: arena.unchanged(info), incarnation=incarnation,
            digest=info.digest, where=f"slot {info.index} of {arena.path}",
        )  # fmt: skip

    def close(self) -> None:
        for arena in [*self._gone, *(arena for _, arena in self._open.values())]:
            arena.close()
        self._open.clear()
        self._gone.clear()

    def _follow_files(self) -> None:
        found = {
            path: file_id for path in self._shm_dir.glob("arena-*.bin") if (file_id := _id_of(path))
        }
        for path, (file_id, _) in list(self._open.items()):
            if found.get(path) != file_id:
                self._drop(path)
        for path, file_id in found.items():
            if path not in self._open and self._refused.get(path) != file_id:
                self._adopt(path, file_id)

    def _wanted(self, path: Path, arena: Arena) -> list[SlotInfo]:
        try:
            return arena.wanted()
        except CorruptError as error:
            self._refused[path] = self._open[path][0]
            self._drop(path)
            _log.error("a damaged arena is ignored", path=str(path), error=str(error))
            return []

    def _drop(self, path: Path) -> None:
        self._gone.append(self._open.pop(path)[1])

    def _adopt(self, path: Path, file_id: _FileId) -> None:
        try:
            arena = Arena.open(path)
        except FileNotFoundError:
            return
        except (CorruptError, OSError) as error:
            self._refused[path] = file_id
            _log.error("a file that is not an arena is ignored", path=str(path), error=str(error))
            return
        if self._run_id and arena.run_id != self._run_id:
            self._refused[path] = file_id
            _log.error("an arena of another run is ignored", path=str(path), run_id=arena.run_id)
            arena.close()
            return
        self._open[path] = (file_id, arena)
        _log.info("arena adopted", path=str(path), rank=arena.rank, committed=arena.committed)


def _undoubted(arena: Arena) -> frozenset[Key]:
    infos = arena.sealed()
    doubtful = {(info.step, info.generation) for info in infos if info.doubtful}
    return frozenset((info.step, info.generation) for info in infos) - doubtful


def _of(arena: Arena, key: Key | None) -> list[SlotInfo]:
    return [info for info in arena.sealed() if (info.step, info.generation) == key]


def _id_of(path: Path) -> _FileId | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size
