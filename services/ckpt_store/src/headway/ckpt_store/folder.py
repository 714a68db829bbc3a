"""The content of a checkpoints folder: attempts, complete checkpoints, and the one to restore."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.ckpt_store.attempts import Attempt, Key, read_attempt
from headway.ckpt_store.files import TRASH_PREFIX, Files
from headway.ckpt_store.manifest import (
    KEEP_NAME,
    MANIFEST_NAME,
    Manifest,
    decode_manifest,
    decode_mark,
    is_damaged_name,
    mark_bytes,
    mark_name,
    parse_mark_name,
    parse_step_dir,
    step_dir_name,
)
from headway.ckpt_store.reading import UnreadableError, corrupt, read_file
from headway.common.errors import CorruptError, HeadwayError, InputError

LISTINGS = 100
"""How often a folder is listed again because something in it was removed meanwhile."""
_EMPTY_LISTINGS = 3
"""So many listings without a checkpoint count as none: one that is made while a checkpoint is
removed and a newer one is added may miss both."""


@dataclass(frozen=True)
class FolderView:
    """A listing: attempts oldest first, restart step by generation, and leftovers of removals."""

    attempts: tuple[Attempt, ...] = ()
    marks: Mapping[int, int] = field(default_factory=dict)
    trash: tuple[str, ...] = ()
    pending: frozenset[int] = frozenset()
    """Generations that began from scratch and have no complete checkpoint yet; not in ``marks``,
    because they make nothing obsolete before that."""

    def find(self, key: Key) -> Attempt | None:
        return next((a for a in self.attempts if a.key == key), None)


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
        return sum(file.bytes for file in self.manifest.files)


def is_superseded(step: int, generation: int, marks: Mapping[int, int]) -> bool:
    """Whether a newer generation continued from an earlier step, so that this step is obsolete."""
    return any(newer > generation and restart < step for newer, restart in marks.items())


def look(checkpoints: Path) -> FolderView:
    """List a checkpoints folder, which need not exist; repeat it if a step is removed meanwhile.

    It reads names, and one part file per incomplete step, or all of them once they exist.
    """
    for _ in range(LISTINGS):
        view, is_changed = _listing(checkpoints)
        if not is_changed:
            break
    return view


def _listing(checkpoints: Path) -> tuple[FolderView, bool]:
    """One listing, and whether a step in it was removed while it was made."""
    attempts: list[Attempt] = []
    marks, trash, is_changed = {}, [], False
    for entry in sorted(_entries(checkpoints)):
        key = parse_step_dir(entry.name)
        generation = parse_mark_name(entry.name)
        if key is not None:
            attempt = read_attempt(entry, *key)
            attempts += [attempt] if attempt else []
            is_changed = is_changed or attempt is None
        elif generation is not None:
            marks[generation] = _restart_step(entry)
        elif entry.name.startswith(TRASH_PREFIX):
            trash.append(entry.name)
    newest = max((a.generation for a in attempts if a.is_complete), default=-1)
    pending = frozenset(g for g, restart in marks.items() if restart < 0 and g > newest)
    marks = {g: restart for g, restart in marks.items() if g not in pending}
    ordered = tuple(sorted(attempts, key=lambda a: a.key))
    return FolderView(ordered, marks, tuple(trash), pending), is_changed


def complete(
    checkpoints: Path,
    *,
    with_damaged: bool = False,
    with_superseded: bool = False,
    all_readable: bool = False,
) -> list[CheckpointInfo]:
    """All complete checkpoints that are not superseded, newest first.

    Checkpoints whose manifest cannot be read are left out and, unless ``with_damaged``, also those
    in which a rank found its shard damaged. One that is removed meanwhile makes room for a newer
    one, so the folder is listed again.

    Raises:
        UnreadableError: with ``all_readable``, the disk cannot read a manifest.
        CorruptError: there are checkpoints, but none can be read. Starting from scratch would then
            silently discard a run.
    """
    num_empty = 0
    for _ in range(LISTINGS):
        view = look(checkpoints)
        candidates = [
            a
            for a in view.attempts
            if a.is_complete and (with_superseded or not is_superseded(*a.key, view.marks))
        ]
        num_empty = 0 if candidates else num_empty + 1
        found, is_changed = _open_all(checkpoints, candidates, with_damaged, all_readable)
        if not is_changed and (candidates or num_empty == _EMPTY_LISTINGS):
            break
    return found


def _open_all(
    checkpoints: Path, candidates: list[Attempt], with_damaged: bool, all_readable: bool
) -> tuple[list[CheckpointInfo], bool]:
    """Open ``candidates``, newest first, as ``complete`` does.

    Also returns whether one was removed meanwhile, so that newer ones may exist.
    """
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
            return found, True
    if problem is not None and not found:
        raise problem
    return found, False


def newest(
    checkpoints: Path,
    world_size: int | None = None,
    max_step: int | None = None,
    without: Collection[int] = (),
) -> CheckpointInfo | None:
    """Return the complete checkpoint to restore, or None.

    It has the newest step, and for equal steps the newest generation. Checkpoints made obsolete by
    a newer generation (``mark_generation``) do not count. ``world_size`` and ``max_step`` narrow
    the choice; ``without`` names steps that proved corrupt.

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
    folder = Path(checkpoints).absolute() / step_dir_name(step, generation)
    path = folder / MANIFEST_NAME
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        raw = read_file(path)
    except CorruptError:
        if path.exists():
            raise
        raise FileNotFoundError(path) from None  # removed by retention meanwhile
    manifest = decode_manifest(raw, path)
    if (manifest.step, manifest.generation) != (step, generation):
        raise CorruptError(f"{path} is of step {manifest.step}", remedy="use an older checkpoint")
    return CheckpointInfo(folder, manifest, (folder / KEEP_NAME).exists())


def has_vanished(info: CheckpointInfo) -> bool:
    """Whether the checkpoint was removed, or replaced by another of its name, since it was listed.

    If so, an error of reading it is not a sign of damage.
    """
    path = info.path / MANIFEST_NAME
    try:
        return decode_manifest(path.read_bytes(), path) != info.manifest
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, CorruptError):
        return False


def find(checkpoints: Path, step: int | None = None) -> CheckpointInfo:
    """Return the newest checkpoint, or the newest of ``step``.

    The newest of ``step`` may be of a superseded generation. Commands call this, so bad input is an
    InputError.

    Raises:
        InputError: no such folder or checkpoint. CorruptError: as ``newest``.
    """
    if not checkpoints.is_dir():
        raise InputError(
            f"{checkpoints} is not a folder", remedy="give a run folder or its checkpoints folder"
        )
    infos = complete(checkpoints, with_damaged=step is not None)
    infos = [info for info in infos if step in (None, info.step)]
    if not infos and step is not None:
        infos = complete(checkpoints, with_damaged=True, with_superseded=True)
        infos = [info for info in infos if info.step == step]
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

    Later steps of older generations no longer count; those before a beginning count until the new
    generation has a complete checkpoint. Idempotent; any node may do it.

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


def _restart_step(path: Path) -> int:
    # An unreadable mark is ignored: then a checkpoint too many counts, never one too few.
    try:
        return decode_mark(path.read_bytes(), path)
    except (OSError, CorruptError):
        return 1 << 62
