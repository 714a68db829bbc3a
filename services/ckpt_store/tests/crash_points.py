"""A recording file system for crash-point tests: what a power failure may leave on disk.

``RecordingFiles`` makes real changes and records each one. ``replay`` builds what a crash may
leave: the first ``num_ops`` changes happened; a file keeps the bytes of its last fsync, later ones
are kept, dropped or torn; a folder keeps the names of its last fsync, later changes of names are
kept or dropped one by one. That is less than any journaling file system promises (the model of
ALICE, OSDI 2014, section 3, without its file-system specific reorderings).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.ckpt_store.files import Files, NewFile

Kind = Literal["mkdir", "create", "write", "sync", "rename", "sync_dir", "unlink", "rmdir"]
Fate = Literal["keep", "drop", "tear"]


@dataclass(frozen=True)
class Op:
    """One change, with paths relative to the recorded root."""

    kind: Kind
    path: str
    target: str = ""
    data: bytes = b""


class RecordingFiles(Files):
    """``Files`` below ``root`` that appends every change to ``ops``."""

    def __init__(self, root: Path, owner: str = "0") -> None:
        super().__init__(owner)
        self.root = root
        self.ops: list[Op] = []

    def create(self, path: Path, nbytes: int) -> NewFile:
        return _RecordingFile(path, nbytes, self)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.note("rename", source, target)

    def sync_dir(self, path: Path) -> None:
        super().sync_dir(path)
        if path.is_relative_to(self.root):
            self.note("sync_dir", path)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.note("unlink", path)

    def note(self, kind: Kind, path: Path, target: Path | None = None, data: bytes = b"") -> None:
        """Append an operation."""
        relative = str(target.relative_to(self.root)) if target is not None else ""
        self.ops.append(Op(kind, str(path.relative_to(self.root)), relative, data))

    def _mkdir(self, path: Path) -> None:
        super()._mkdir(path)
        self.note("mkdir", path)

    def _rmdir(self, path: Path) -> None:
        super()._rmdir(path)
        self.note("rmdir", path)


class _RecordingFile(NewFile):
    def __init__(self, path: Path, nbytes: int, files: RecordingFiles) -> None:
        super().__init__(path, nbytes)
        self._files = files
        files.note("create", path)

    def write(self, data: Any) -> None:
        super().write(data)
        self._files.note("write", self.path, data=bytes(data))

    def sync(self) -> None:
        super().sync()
        self._files.note("sync", self.path)


@dataclass
class _File:
    """An inode: what was synced, and what was written since."""

    synced: bytes = b""
    written: bytes = b""

    def content(self, fate: Fate) -> bytes:
        if fate == "keep":
            return self.written
        if fate == "drop":
            # The length may be the allocated one while the data is not there: zeros.
            return self.synced.ljust(len(self.written), b"\0")
        cut = (len(self.synced) + len(self.written)) // 2
        return self.written[:cut]


@dataclass
class _Names:
    """The names of one folder: durable ones, and changes since its last sync.

    The changes are groups of (name, inode or None).
    """

    durable: dict[str, Any] = field(default_factory=dict)
    pending: list[list[tuple[str, Any]]] = field(default_factory=list)


def replay(
    ops: Iterable[Op],
    num_ops: int,
    into: Path,
    *,
    fate: Fate = "keep",
    kept_names: float = 1.0,
    seed: int = 0,
) -> None:
    """Build in the empty folder ``into`` what a crash after ``num_ops`` changes may leave.

    ``fate`` befalls data that was not synced; each change of a name that was not synced is kept
    with probability ``kept_names`` (0 and 1 are the extremes, ``seed`` draws between).
    """
    disk = _Disk()
    for op in list(ops)[:num_ops]:
        disk.apply(op)
    disk.write_out(into, fate, kept_names, random.Random(seed))


class _Disk:
    def __init__(self) -> None:
        self.folders: dict[str, _Names] = {".": _Names()}
        self.current: dict[str, Any] = {".": "."}

    def apply(self, op: Op) -> None:
        """Apply an operation to the files and folders.

        A folder's identity is the path it was made under; only its name in the parent changes.
        """
        match op.kind:
            case "mkdir":
                self.folders[op.path] = _Names()
                self.current[op.path] = op.path
                self._change(op.path, op.path)
            case "create":
                self.current[op.path] = _File()
                self._change(op.path, self.current[op.path])
            case "write":
                self.current[op.path].written += op.data
            case "sync":
                self.current[op.path].synced = self.current[op.path].written
            case "rename":
                self._rename(op.path, op.target)
            case "sync_dir":
                self._sync(self.folders[self.current[op.path]])
            case "unlink" | "rmdir":
                self.current.pop(op.path)
                self._change(op.path, None)

    def _rename(self, source: str, target: str) -> None:
        inode = self.current.pop(source)
        for path in [path for path in self.current if path.startswith(source + "/")]:
            self.current[target + path[len(source) :]] = self.current.pop(path)
        self.current[target] = inode
        # Within one folder a rename is one change: both names, or neither.
        parent = self._parent(source)
        parent.pending.append([(Path(source).name, None), (Path(target).name, inode)])

    def _change(self, path: str, inode: Any) -> None:
        self._parent(path).pending.append([(Path(path).name, inode)])

    def _parent(self, path: str) -> _Names:
        return self.folders[self.current[str(Path(path).parent)]]

    @staticmethod
    def _sync(names: _Names) -> None:
        for name, inode in (change for group in names.pending for change in group):
            names.durable[name] = inode
        names.pending.clear()

    def write_out(
        self, into: Path, fate: Fate, kept_names: float, chance: random.Random, at: str = "."
    ) -> None:
        names = dict(self.folders[at].durable)
        for group in self.folders[at].pending:
            if chance.random() < kept_names:
                names.update(group)
        for name, inode in names.items():
            if isinstance(inode, _File):
                (into / name).write_bytes(inode.content(fate))
            elif inode is not None:
                (into / name).mkdir()
                self.write_out(into / name, fate, kept_names, chance, inode)
