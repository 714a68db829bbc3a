"""What is in a checkpoints folder: attempts, complete checkpoints, and which one to go back to."""

from __future__ import annotations

from collections.abc import Mapping
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
    mark_bytes,
    mark_name,
    parse_mark_name,
    parse_part_name,
    parse_step_dir,
    part_name,
)
from headway.common.errors import CorruptError, HeadwayError, InputError


@dataclass(frozen=True)
class Attempt:
    """One step folder, complete or not."""

    step: int
    generation: int
    ranks: frozenset[int]
    """Ranks whose part file is there."""
    world_size: int | None
    """From a part file; None while there is none that can be read."""
    is_complete: bool
    is_marked: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """(step, generation)"""
        return (self.step, self.generation)

    @property
    def has_all_parts(self) -> bool:
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
    """Whether a newer generation went on from a step before this one, so that this one leads nowhere."""
    return any(newer > generation and restart < step for newer, restart in marks.items())


def look(checkpoints: Path) -> FolderView:
    """List a checkpoints folder (which need not exist). Reads names, and one part file of an incomplete
    step."""
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


def complete(checkpoints: Path) -> list[CheckpointInfo]:
    """All complete checkpoints that are not superseded, newest first; unreadable manifests are left out.

    Raises:
        CorruptError: there are manifests, and not one of them can be read. Then starting from nothing would
            silently throw away a run.
    """
    view = look(checkpoints)
    candidates = [
        a for a in view.attempts if a.is_complete and not is_superseded(*a.key, view.marks)
    ]
    found, problem = [], None
    for attempt in sorted(candidates, key=lambda a: a.key, reverse=True):
        try:
            found.append(open_checkpoint(checkpoints, attempt.step, attempt.generation))
        except CorruptError as error:
            problem = problem or error
        except FileNotFoundError:  # retention was faster
            continue
    if problem is not None and not found:
        raise problem
    return found


def newest(
    checkpoints: Path, world_size: int | None = None, max_step: int | None = None
) -> CheckpointInfo | None:
    """The complete checkpoint to go back to: the newest step, and of two with that step the newest
    generation.

    What a newer generation has left behind (``mark_generation``) does not count. ``world_size`` and
    ``max_step`` narrow the choice; to pass over one that turned out corrupt ask with ``max_step = step - 1``.

    Raises:
        CorruptError: there are manifests, and not one of them can be read.
    """
    for info in complete(Path(checkpoints)):
        if world_size in (None, info.world_size) and (max_step is None or info.step <= max_step):
            return info
    return None


def open_checkpoint(checkpoints: Path, step: int, generation: int) -> CheckpointInfo:
    """One complete checkpoint by name.

    Raises:
        FileNotFoundError: it is not there, or not complete. CorruptError: its manifest cannot be read or is
        of
            another step.
    """
    for entry in _entries(checkpoints):
        if parse_step_dir(entry.name) == (step, generation):
            path = entry / MANIFEST_NAME
            manifest = decode_manifest(path.read_bytes(), path)
            if (manifest.step, manifest.generation) != (step, generation):
                raise CorruptError(
                    f"{path} is of step {manifest.step}", remedy="use an older checkpoint"
                )
            return CheckpointInfo(entry, manifest, (entry / KEEP_NAME).exists())
    raise FileNotFoundError(checkpoints)


def find(checkpoints: Path, step: int | None = None) -> CheckpointInfo:
    """The newest checkpoint, or the newest of ``step``, for people: bad input is told in one line.

    Raises:
        InputError: no such folder or checkpoint. CorruptError: as ``newest``.
    """
    if not checkpoints.is_dir():
        raise InputError(
            f"{checkpoints} is no folder", remedy="give a run folder or its checkpoints folder"
        )
    infos = [info for info in complete(checkpoints) if step in (None, info.step)]
    if not infos:
        wanted = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        raise InputError(
            f"{checkpoints} holds no {wanted}", remedy="list what is there with `headway ckpt ls`"
        )
    return infos[0]


def mark_generation(checkpoints: Path, generation: int, restart_step: int) -> None:
    """Record durably that ``generation`` goes on from ``restart_step`` (-1: from the beginning).

    What older generations saved after that step does not count any more. Idempotent; any node may do it.

    Raises:
        HeadwayError: the generation is recorded with another restart step: numbers were used twice.
    """
    files = Files("mark")
    path = Path(checkpoints) / mark_name(generation)
    content = mark_bytes(generation, restart_step)
    files.make_dir(path.parent)
    if path.exists() and (old := path.read_bytes()) != content:
        before = decode_mark(old, path)
        raise HeadwayError(
            f"generation {generation} is recorded to restart from step {before}, not {restart_step}",
            remedy="give every recovery a new generation number",
        )
    if not path.exists():
        files.rename(files.write_whole(path, content), path)
        files.sync_dir(path.parent)


def _entries(checkpoints: Path) -> list[Path]:
    try:
        return list(Path(checkpoints).iterdir())
    except FileNotFoundError:
        return []


def _attempt(folder: Path, step: int, generation: int) -> Attempt:
    names = {entry.name for entry in _entries(folder)}
    ranks = frozenset(rank for name in names if (rank := parse_part_name(name)) is not None)
    is_complete = MANIFEST_NAME in names
    world_size = None
    if ranks and not is_complete:
        world_size = _world_size(folder / part_name(min(ranks)))
    return Attempt(step, generation, ranks, world_size, is_complete, KEEP_NAME in names)


def _world_size(path: Path) -> int | None:
    try:
        stat = path.stat()
        return _cached_world_size(path, stat.st_mtime_ns, stat.st_ino)
    except (OSError, CorruptError):
        return None


@lru_cache(maxsize=64)
def _cached_world_size(path: Path, _mtime_ns: int, _inode: int) -> int:
    return decode_part(path.read_bytes(), path).mesh.world_size


def _restart_step(path: Path) -> int:
    # An unreadable mark supersedes nothing: then a checkpoint too many counts, never one too few.
    try:
        return decode_mark(path.read_bytes(), path)
    except (OSError, CorruptError):
        return 1 << 62
