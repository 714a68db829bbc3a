"""What is in one step folder, complete or not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headway.ckpt_store.manifest import (
    KEEP_NAME,
    MANIFEST_NAME,
    decode_part,
    is_damaged_name,
    is_gave_up_name,
    parse_part_name,
    part_name,
)
from headway.common.errors import CorruptError

Key = tuple[int, int]
"""Step and generation."""
_TICK_NS = 1_000_000_000
"""A file this young may be replaced by one with the same time stamp and even the same inode."""


@dataclass(frozen=True)
class Attempt:
    """One step folder, complete or not."""

    step: int
    generation: int
    ranks: frozenset[int]
    """Ranks whose part file exists."""
    world_size: int | None
    """From a part file; None while none can be read."""
    is_complete: bool
    is_marked: bool = False
    incarnation: str = ""
    """Which start of the job wrote its parts, according to one part file."""
    is_mixed: bool = False
    """Whether all parts exist but come from different starts of the job: some
    rank must write again."""
    has_given_up: bool = False
    """Whether a rank has given up writing its part; notes of another start of
    the job do not count."""
    is_damaged: bool = False
    """Whether some rank found its shard damaged, so that no rank restores it."""

    @property
    def key(self) -> Key:
        """The attempt's (step, generation)."""
        return (self.step, self.generation)

    @property
    def has_all_parts(self) -> bool:
        """Whether the step may be committed."""
        return self._names_all_parts and not self.is_mixed

    @property
    def _names_all_parts(self) -> bool:
        return self.world_size is not None and self.ranks >= set(range(self.world_size))


def read_attempt(folder: Path, step: int, generation: int) -> Attempt | None:
    """The attempt in ``folder``; None if the folder is gone."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return None
    ranks = frozenset(rank for name in names if (rank := parse_part_name(name)) is not None)
    is_complete = MANIFEST_NAME in names
    world_size, incarnation, is_mixed, has_given_up = None, "", False, False
    if ranks and not is_complete:
        world_size, incarnation = part_facts(folder / part_name(min(ranks)))
        notes = [folder / name for name in names if is_gave_up_name(name)]
        if notes or (world_size is not None and ranks >= set(range(world_size))):
            stamps = {part_facts(folder / part_name(rank))[1] for rank in ranks}
            is_mixed = len(stamps) > 1
            has_given_up = any({_text_of(note)} == stamps for note in notes)
    elif not is_complete:
        has_given_up = any(map(is_gave_up_name, names))
    return Attempt(
        step,
        generation,
        ranks,
        world_size,
        is_complete,
        is_marked=KEEP_NAME in names,
        incarnation=incarnation,
        is_mixed=is_mixed,
        has_given_up=has_given_up,
        is_damaged=any(map(is_damaged_name, names)),
    )


def part_facts(part: Path) -> tuple[int | None, str]:
    """(world size, incarnation) of a part file; (None, "") when it cannot be read."""
    try:
        stat = part.stat()
        if time.time_ns() - stat.st_mtime_ns < _TICK_NS:
            return _read_facts(part)
        return _cached_facts(part, stat.st_mtime_ns, stat.st_ino)
    except (OSError, CorruptError):
        return None, ""


def _text_of(note: Path) -> str | None:
    try:
        return note.read_text()
    except (OSError, UnicodeDecodeError):
        return None


@lru_cache(maxsize=8192)
def _cached_facts(path: Path, _mtime_ns: int, _inode: int) -> tuple[int, str]:
    return _read_facts(path)


def _read_facts(path: Path) -> tuple[int, str]:
    part = decode_part(path.read_bytes(), path)
    return part.mesh.world_size, part.incarnation
