"""Bytes of a data file reach memory by ``preadv``, so that trouble is an error with a place.

A mapped file answers a cut or an unreadable sector with SIGBUS, which ends the process without a
word. Whatever else may hold data one day (objects, a cache) takes ``BlockReader``'s place.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from headway.common.errors import CorruptError, HeadwayError, InputError

BLOCK_BYTES = 1 << 17
Digests = npt.NDArray[np.uint64]

_PREPARE = "run `headway data prepare`, or give the right path"
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES,
     errno.EPERM}
)  # fmt: skip


class ReadError(HeadwayError):
    """The disk or the network failed while data were read; the data themselves may be sound.

    ``errno``, ``path`` and ``offset`` (bytes) are of the call that failed.
    """

    def __init__(self, path: Path, offset: int, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        super().__init__(
            f"cannot read {path} at byte {offset}: {error.strerror} ({name})",
            remedy="look at the disk or the network mount; reading may be tried again",
        )
        self.errno, self.path, self.offset = error.errno or 0, path, offset


class ChangedDataError(CorruptError):
    """Sound data, but others than those that were asked for by their fingerprint."""


def trouble_with(path: Path, offset: int, error: OSError) -> HeadwayError:
    """InputError for a file that is not there or not ours, ReadError for all else."""
    if error.errno in _NOT_THERE:
        return InputError(f"cannot read {path}: {error.strerror}", remedy=_PREPARE)
    return ReadError(path, offset, error)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system says about the files of ``path`` meanwhile is raised as our own error."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else str(path)
        raise trouble_with(Path(name), 0, error) from error


def read_whole(path: Path) -> bytes:
    """All of a file that is small beside its ``.bin``. Raises InputError or ReadError."""
    with reading(path):
        return path.read_bytes()


class BlockReader:
    """One open file, read at any place. Used by one thread at a time.

    With ``digests`` (xxh3-64 of every 128 KiB) each block is checked the first time that it is
    touched, and not again: what the kernel's cache holds after that is taken as it is.
    """

    def __init__(self, path: Path, digests: Digests | None = None) -> None:
        """Open ``path``. Raises InputError: it is missing. ReadError: it cannot be opened now."""
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.num_bytes = os.fstat(self._fd).st_size
        except OSError as error:
            self.close()
            raise trouble_with(path, 0, error) from error
        self._unchecked = bytearray()
        self._num_unchecked = 0
        self._block = memoryview(b"")
        if digests is not None:
            self.check_with(digests)

    def check_with(self, digests: Digests) -> None:
        """Check every block from now on, once."""
        self._digests = digests
        self._unchecked = bytearray(b"\1") * digests.size
        self._num_unchecked = digests.size
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def read(self, start: int, out: memoryview) -> None:
        """Fill ``out`` (bytes, writable) from byte ``start``.

        Raises:
            ReadError: the disk or the network failed. CorruptError: the file has become shorter, or
                a block has other content than its digest says; file and bytes are named.
        """
        if self._num_unchecked:
            self._check(start, start + len(out))
        self._fill(start, out)

    def identity(self) -> tuple[int, int, int, int]:
        """Size, time of change, inode and device of the file that is open, whatever has its name now."""
        facts = os.fstat(self._fd)
        return facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_dev

    def close(self) -> None:
        """Close the file. May be repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _fill(self, start: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._fd, (out[done:] if done else out,), start + done)
            except OSError as error:
                raise ReadError(self.path, start + done, error) from error
            if count == 0:
                raise CorruptError(
                    f"{self.path} ends at byte {start + done}, it had {self.num_bytes} bytes when "
                    "it was opened",
                    remedy="prepare the data again with --force, or restore the file",
                )
            done += count

    def _check(self, start: int, stop: int) -> None:
        for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            if block < len(self._unchecked) and self._unchecked[block]:
                self._check_block(block)
                self._unchecked[block] = 0
                self._num_unchecked -= 1

    def _check_block(self, block: int) -> None:
        start = block * BLOCK_BYTES
        content = self._block[: min(BLOCK_BYTES, self.num_bytes - start)]
        self._fill(start, content)
        if xxhash.xxh3_64_intdigest(content) != int(self._digests[block]):
            raise wrong_block(self.path, start, start + len(content))


def wrong_block(path: Path, start: int, stop: int) -> CorruptError:
    """Bytes ``start`` to ``stop`` of ``path`` are not those that were digested."""
    return CorruptError(
        f"{path}: bytes {start}..{stop - 1} do not match their recorded digest",
        remedy="restore the file, or prepare the data again with --force; a pair that was "
        "rewritten on purpose needs `headway data digest`",
    )
