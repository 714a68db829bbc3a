"""Named shared memory: one file, one mapping, a checked header.

A segment is a plain file (normally in /dev/shm) that outlives its users until it is
unlinked. Its first 64 bytes are the header: magic (8 bytes), version and length in bytes
(u64 little endian each).

Words (aligned u64) are read and written through ``Segment.words``, a memoryview of native
8-byte items: CPython moves such an item with one 8-byte copy, so a reader never sees half a
word. ``struct.pack_into`` does not guarantee that and is only for data that a word guards.
Order between words relies on the total store order of x86-64: a reader that sees a later store
sees all earlier ones.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.common.errors import CorruptError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

WORD_BYTES = 8
LINE_BYTES = 64
PAGE_BYTES = 4096
HEADER_BYTES = LINE_BYTES
_MAGIC, _VERSION, _LENGTH = range(3)
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT})
_MADV_POPULATE_WRITE = 23  # of <linux/mman.h>; the module mmap does not name it
_STORES_IN_ORDER = re.compile(r"x86_64|amd64|i[3-6]86", re.IGNORECASE)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of ``multiple`` that is >= ``value``."""
    return -(-value // multiple) * multiple


def check_processor() -> None:
    """Raises InputError on a processor whose stores may become visible to others out of order."""
    machine = platform.machine()
    if not _STORES_IN_ORDER.fullmatch(machine):
        raise InputError(
            f"shared memory on {machine} is not supported: readers could see incomplete "
            "snapshots, batches or records",
            remedy="use x86-64 nodes; `python -m headway.trainer train` needs no shared memory",
        )


class Segment:
    """A mapped file, from ``create`` or ``open``; as a context manager it closes, never unlinks."""

    def __init__(
        self, path: Path, mapping: mmap.mmap, *, writable: bool, file_id: tuple[int, int]
    ) -> None:
        self.path = path
        self._file_id = file_id
        self.nbytes = len(mapping)
        self.writable = writable
        self._mapping: mmap.mmap | None = mapping
        self.buffer = memoryview(mapping)
        self.words = self.buffer[: self.nbytes // WORD_BYTES * WORD_BYTES].cast("Q")

    @classmethod
    def create(
        cls,
        path: Path,
        nbytes: int,
        magic: bytes,
        version: int,
        fill: Callable[[Segment], None] | None = None,
        num_backed: int | None = None,
    ) -> Segment:
        """Create a segment of ``nbytes`` zero bytes plus header; ``fill`` writes the first content.

        Only the first ``num_backed`` bytes get memory, by default all; the rest is a hole in the
        file, which must not be touched before ``back`` has given it memory.

        The file appears under ``path`` only when it is complete: it is built without a name and
        then linked, so a process that dies in between leaves nothing behind. (A file system
        without nameless files gets a hidden one, which the next ``create`` of this path removes if
        its creator is dead.) Its memory is allocated and mapped first, so later stores cannot
        fail on a full device.

        Raises:
            InputError: the device is full, the folder is missing or not writable, or the processor
                is not x86-64.
            FileExistsError: ``path`` exists already.
        """
        if nbytes < HEADER_BYTES or len(magic) != WORD_BYTES:
            raise ValueError(f"a segment needs >= {HEADER_BYTES} bytes and a magic of {WORD_BYTES}")
        check_processor()
        with _Draft(path) as draft:
            mapping = _map_new(draft.fd, path, nbytes, nbytes if num_backed is None else num_backed)
            segment = cls(path, mapping, writable=True, file_id=_file_id(os.fstat(draft.fd)))
            try:
                segment.words[_VERSION] = version
                segment.words[_LENGTH] = nbytes
                if fill is not None:
                    fill(segment)
                segment.words[_MAGIC] = int.from_bytes(magic, sys.byteorder)
                draft.link()
            except BaseException:
                segment.close()
                raise
            return segment

    @classmethod
    def create_or_open(
        cls,
        path: Path,
        nbytes: int,
        magic: bytes,
        version: int,
        fill: Callable[[Segment], None] | None = None,
    ) -> Segment:
        """Create a segment, or map the one that is there for writing; raises as those two do."""
        with contextlib.suppress(FileExistsError):
            return cls.create(path, nbytes, magic, version, fill)
        return cls.open(path, magic, version, writable=True)

    @classmethod
    def open(cls, path: Path, magic: bytes, version: int, *, writable: bool = False) -> Segment:
        """Map an existing segment.

        Raises:
            CorruptError: wrong magic or version, a length other than the recorded one,
                or not a regular file.
            FileNotFoundError: there is no such file. InputError: the processor is not x86-64.
        """
        check_processor()
        # Without O_NONBLOCK, opening a named pipe under this name for reading would block.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags | (os.O_RDWR if writable else os.O_RDONLY))
        try:
            found = os.fstat(fd)
            nbytes = found.st_size
            if not stat.S_ISREG(found.st_mode):
                raise CorruptError(f"{path} is not a regular file", remedy="remove it")
            if nbytes < HEADER_BYTES:
                raise CorruptError(
                    f"{path} has {nbytes} bytes, less than a header", remedy="remove the file"
                )
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            mapping = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=prot)
        finally:
            os.close(fd)
        segment = cls(path, mapping, writable=writable, file_id=_file_id(found))
        try:
            segment._check(magic, version)
        except CorruptError:
            segment.close()
            raise
        return segment

    @property
    def is_cut(self) -> bool:
        """Whether the file is now shorter than the mapping.

        If so, touching the missing part kills the process.
        """
        try:
            found = self.path.lstat()
        except OSError:
            return False  # a removed file keeps its length
        return _file_id(found) == self._file_id and found.st_size < self.nbytes

    def check(self, magic: bytes, version: int) -> None:
        """Check that ``path`` still leads to this file, at full length and with a valid header.

        Raises:
            CorruptError: it was removed, replaced, cut or overwritten since it was mapped.
        """
        try:
            found = self.path.lstat()
        except OSError as error:
            raise CorruptError(f"{self.path} was removed: {error.strerror}") from error
        if _file_id(found) != self._file_id:
            raise CorruptError(f"{self.path} was replaced by another file")
        if found.st_size != self.nbytes:
            raise CorruptError(
                f"{self.path} has {found.st_size} bytes, it had {self.nbytes}",
                remedy="remove the file",
            )
        self._check(magic, version)

    def _check(self, magic: bytes, version: int) -> None:
        found = self.words[_MAGIC].to_bytes(WORD_BYTES, sys.byteorder)
        if found != magic:
            raise CorruptError(
                f"{self.path} starts with {found!r}, not {magic!r}", remedy="remove the file"
            )
        if self.words[_VERSION] != version:
            raise CorruptError(
                f"{self.path} has layout version {self.words[_VERSION]}, this program writes "
                f"{version}",
                remedy="run every process of the run from one installation",
            )
        if self.words[_LENGTH] != self.nbytes:
            raise CorruptError(
                f"{self.path} has {self.nbytes} bytes, its header says {self.words[_LENGTH]}",
                remedy="remove the file",
            )

    def array(self, dtype: npt.DTypeLike, offset: int, count: int) -> npt.NDArray[Any]:
        """View ``count`` items of ``dtype`` from byte ``offset`` as an array.

        It is read-only if the segment is.
        """
        import numpy as np  # a quarter of the time in which a driver starts, which needs no array

        return np.frombuffer(self.buffer, dtype, count, offset)

    def back(self, start: int, nbytes: int) -> None:
        """Give a part of the file memory, unless it has it; what was a hole reads as zeros.

        Raises:
            InputError: the device is full; nothing has changed. CorruptError: the file was removed
                or replaced.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise CorruptError(f"{self.path} was removed: {error.strerror}") from error
        try:
            if _file_id(os.fstat(fd)) != self._file_id:
                raise CorruptError(f"{self.path} was replaced by another file")
            _allocate(fd, self.path, start, nbytes)
        finally:
            os.close(fd)
        assert self._mapping is not None
        _populate(self._mapping, start, nbytes)

    def punch(self, start: int, nbytes: int) -> bool:
        """Give the memory of whole pages back; False if the file system has no holes.

        The file has a hole there afterwards. No process may touch the pages before ``back``.
        """
        assert self._mapping is not None
        try:
            self._mapping.madvise(mmap.MADV_REMOVE, start, nbytes)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Release this mapping.

        Existing views stay valid; the memory is unmapped with the last of them.
        """
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        self.words.release()
        # With views outstanding neither can be released now; dropping the references is enough.
        with contextlib.suppress(BufferError):
            self.buffer.release()
            mapping.close()
        self.words = self.buffer = memoryview(b"")

    @property
    def closed(self) -> bool:
        return self._mapping is None

    def unlink(self) -> None:
        """Remove the file; mappings of it stay usable. A missing file is not an error."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Draft:
    """A nameless file in the folder of ``path``.

    It is removed with the block unless ``link`` named it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden: Path | None = None
        try:
            try:
                self.fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
                self.fd = self._open_hidden()
        except OSError as error:
            raise InputError(
                f"cannot create {path}: {error.strerror}",
                remedy="check that its folder exists and is yours",
            ) from error

    def _open_hidden(self) -> int:
        # Not ``.bin``, so that a search for segments by pattern does not find an unfinished one.
        for left in self._path.parent.glob(f".{self._path.name}.*"):
            maker = left.name.rpartition(".")[2]
            if maker == str(os.getpid()) or not Path("/proc", maker).exists():
                left.unlink(missing_ok=True)
        self._hidden = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        return os.open(self._hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def link(self) -> None:
        """Raises FileExistsError if the name is taken."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With the folder's descriptor Python calls linkat, which follows /proc/self/fd.
            os.link(f"/proc/self/fd/{self.fd}", self._path.name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def __enter__(self) -> _Draft:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)


def _file_id(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _map_new(fd: int, path: Path, nbytes: int, num_backed: int) -> mmap.mmap:
    with _room_for(path, nbytes):
        os.ftruncate(fd, nbytes)
    _allocate(fd, path, 0, num_backed)
    mapping = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    _populate(mapping, 0, num_backed)
    return mapping


def _allocate(fd: int, path: Path, start: int, nbytes: int) -> None:
    # ftruncate succeeds on a full tmpfs; the first store would then kill the process (SIGBUS).
    with _room_for(path, nbytes):
        os.posix_fallocate(fd, start, nbytes)


@contextlib.contextmanager
def _room_for(path: Path, nbytes: int) -> Iterator[None]:
    """Raises InputError when the block finds the device full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        free = os.statvfs(path.parent)
        raise InputError(
            f"no room for {path}: {nbytes / 2**20:.1f} MiB wanted, "
            f"{free.f_bavail * free.f_frsize / 2**20:.1f} MiB free",
            remedy="enlarge or empty the file system of shared memory (containers: --shm-size)",
        ) from error


def _populate(mapping: mmap.mmap, start: int, nbytes: int) -> None:
    """Map the pages now rather than at the first store to each."""
    first = start // PAGE_BYTES * PAGE_BYTES
    with contextlib.suppress(OSError):  # before Linux 5.14: they are mapped one by one
        mapping.madvise(_MADV_POPULATE_WRITE, first, start + nbytes - first)
