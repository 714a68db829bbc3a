"""The content of a checkpoints folder: attempts, complete checkpoints, and the one to restore."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from headway.ckpt_store.files import TRASH_PREFIX, Files
from headway.ckpt_store.manifest import (
    KEEP_NAME,
    MANIFEST_NAME,
    Manifest,
    decode_manifest,
    decode_mark,
    decode_part,
    is_damaged_name,
    is_gave_up_name,
    mark_bytes,
    mark_name,
    parse_mark_name,
    parse_part_name,
    parse_step_dir,
    part_name,
    step_dir_name,
)
from headway.ckpt_store.reading import UnreadableError, corrupt, read_file
from headway.common.errors import CorruptError, HeadwayError, InputError

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
    def key(self) -> tuple[int, int]:
        """(step, generation)"""
        return (self.step, self.generation)

    @property
    def has_all_parts(self) -> bool:
        """Whether the step may be committed."""
        return self._names_all_parts and not self.is_mixed

    @property
    def _names_all_parts(self) -> bool:
        return self.world_size is not None and self.ranks >= set(range(self.world_size))


@dataclass(frozen=True)
class FolderView:
    """A listing: attempts oldest first, restart step by generation, and leftovers of removals."""

    attempts: tuple[Attempt, ...] = ()
    marks: Mapping[int, int] = field(default_factory=dict)
    trash: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint. ``world_size`` ranks wrote it; ``total_bytes`` on disk."""

    path: Path
    manifest: Manifest
    is_marked: bool = False

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def world_size(self) -> int:
        return self.manifest.world_size

    @property
    def total_bytes(self) -> int:
        return sum(self.manifest.file_bytes)


def is_superseded(step: int, generation: int, marks: Mapping[int, int]) -> bool:
    """Whether a newer generation continued from an earlier step, so that this step is obsolete."""
    return any(newer > generation and restart < step for newer, restart in marks.items())


def look(checkpoints: Path) -> FolderView:
    """List a checkpoints folder (which need not exist). Reads names, and one part file per
    incomplete step, or all of them once they exist."""
    attempts, marks, trash = [], {}, []
    for entry in sorted(_entries(checkpoints)):
        key = parse_step_dir(entry.name)
        generation = parse_mark_name(entry.name)
        if key is not None:
            attempts.append(_attempt(entry, *key))
        elif generation is not None:
            marks[generation] = _restart_step(entry)
        elif entry.name.startswith(TRASH_PREFIX):
            trash.append(entry.name)
    return FolderView(tuple(sorted(attempts, key=lambda a: a.key)), marks, tuple(trash))


def complete(
    checkpoints: Path, *, with_damaged: bool = False, all_readable: bool = False
) -> list[CheckpointInfo]:
    """All complete checkpoints that are not superseded, newest first.

    Checkpoints whose manifest cannot be read are left out and, unless ``with_damaged``, also those
    in which a rank found its shard damaged.

    Raises:
        UnreadableError: with ``all_readable``, the disk cannot read a manifest.
        CorruptError: there are checkpoints, but none can be read. Starting from scratch would then
            silently discard a run.
    """
    view = look(checkpoints)
    candidates = [
        a for a in view.attempts if a.is_complete and not is_superseded(*a.key, view.marks)
    ]
    found, problem = [], None
    for attempt in sorted(candidates, key=lambda a: a.key, reverse=True):
        if attempt.is_damaged and not with_damaged:
            problem = problem or corrupt(
                checkpoints / step_dir_name(*attempt.key), "a rank found its shard damaged"
            )
            continue
        try:
            found.append(open_checkpoint(checkpoints, attempt.step, attempt.generation))
        except CorruptError as error:
            if all_readable and isinstance(error, UnreadableError):
                raise
            problem = problem or error
        except FileNotFoundError:  # removed by retention meanwhile
            continue
    if problem is not None and not found:
        raise problem
    return found


def newest(
    checkpoints: Path,
    world_size: int | None = None,
    max_step: int | None = None,
    without: Collection[int] = (),
) -> CheckpointInfo | None:
    """The complete checkpoint to restore: the newest step, and for equal steps
    the newest generation.

    Checkpoints made obsolete by a newer generation (``mark_generation``) do not count.
    ``world_size`` and ``max_step`` narrow the choice; ``without`` names steps that proved corrupt.

    Raises:
        CorruptError: there are manifests, but none can be read.
    """
    for info in complete(Path(checkpoints)):
        if world_size not in (None, info.world_size) or info.step in without:
            continue
        if max_step is None or info.step <= max_step:
            return info
    return None


def open_checkpoint(checkpoints: Path, step: int, generation: int) -> CheckpointInfo:
    """One complete checkpoint by name.

    Raises:
        FileNotFoundError: it does not exist or is not complete. CorruptError: its manifest cannot
        be read or is of another step.
    """
    for entry in _entries(checkpoints):
        if parse_step_dir(entry.name) == (step, generation):
            path = entry / MANIFEST_NAME
            if not path.exists():
                break
            try:
                raw = read_file(path)
            except CorruptError:
                if path.exists():
                    raise
                break  # removed by retention meanwhile
            manifest = decode_manifest(raw, path)
            if (manifest.step, manifest.generation) != (step, generation):
                raise CorruptError(
                    f"{path} is of step {manifest.step}", remedy="use an older checkpoint"
                )
            return CheckpointInfo(entry, manifest, (entry / KEEP_NAME).exists())
    raise FileNotFoundError(checkpoints)


def find(checkpoints: Path, step: int | None = None) -> CheckpointInfo:
    """The newest checkpoint, or the newest of ``step``, for commands: bad input is an InputError.

    Raises:
        InputError: no such folder or checkpoint. CorruptError: as ``newest``.
    """
    if not checkpoints.is_dir():
        raise InputError(
            f"{checkpoints} is not a folder", remedy="give a run folder or its checkpoints folder"
        )
    infos = complete(checkpoints, with_damaged=step is not None)
    infos = [info for info in infos if step in (None, info.step)]
    if not infos:
        wanted = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        raise InputError(
            f"{checkpoints} holds no {wanted}", remedy="list the checkpoints with `headway ckpt ls`"
        )
    return infos[0]


def forget_damage(info: CheckpointInfo) -> None:
    """Remove the notes of ranks that could not read their shard, because it was found intact."""
    for entry in _entries(info.path):
        if is_damaged_name(entry.name):
            entry.unlink(missing_ok=True)


def keep(info: CheckpointInfo) -> None:
    """Pin a checkpoint: retention neither removes nor counts it.

    Raises:
        OSError: the folder cannot be written, or the checkpoint is gone.
    """
    (info.path / KEEP_NAME).touch()


def mark_generation(
    checkpoints: Path, generation: int, restart_step: int, files: Files | None = None
) -> None:
    """Record durably that ``generation`` continues from ``restart_step`` (-1: from the beginning).

    Later steps of older generations no longer count. Idempotent; any node may do it.

    Raises:
        HeadwayError: the generation is recorded with another restart step: numbers were used twice.
    """
    files = files or Files("mark")
    path = Path(checkpoints) / mark_name(generation)
    content = mark_bytes(generation, restart_step)
    files.make_dir(path.parent)
    if path.exists() and (old := path.read_bytes()) != content:
        before = decode_mark(old, path)
        raise HeadwayError(
            f"generation {generation} is recorded to restart from step {before}, not "
            f"{restart_step}",
            remedy="give every recovery a new generation number",
        )
    if not path.exists():
        files.rename(files.write_whole(path, content), path)
        files.sync_dir(path.parent)


def has_mark(checkpoints: Path, generation: int) -> bool:
    """Whether ``mark_generation`` has recorded the generation in this folder."""
    return (Path(checkpoints) / mark_name(generation)).exists()


def _entries(checkpoints: Path) -> list[Path]:
    try:
        return list(Path(checkpoints).iterdir())
    except FileNotFoundError:
        return []


def _attempt(folder: Path, step: int, generation: int) -> Attempt:
    names = {entry.name for entry in _entries(folder)}
    ranks = frozenset(rank for name in names if (rank := parse_part_name(name)) is not None)
    is_complete = MANIFEST_NAME in names
    world_size, incarnation, is_mixed, has_given_up = None, "", False, False
    if ranks and not is_complete:
        world_size, incarnation = _facts(folder / part_name(min(ranks)))
        notes = [folder / name for name in names if is_gave_up_name(name)]
        if notes or (world_size is not None and ranks >= set(range(world_size))):
            stamps = {_facts(folder / part_name(rank))[1] for rank in ranks}
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


def _facts(part: Path) -> tuple[int | None, str]:
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


def _restart_step(path: Path) -> int:
    # An unreadable mark is ignored: then a checkpoint too many counts, never one too few.
    try:
        return decode_mark(path.read_bytes(), path)
    except (OSError, CorruptError):
        return 1 << 62
