"""Reads data files by ``preadv``, so that a failure is an error with file and position.

With a mapped file, a truncated file or an unreadable sector would kill the process by SIGBUS. Other
storage (objects, a cache) can replace ``BlockReader``.
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
    """The disk or the network failed while data were read; the data may be intact.

    ``errno``, ``path`` and ``offset`` (bytes) describe the call that failed.
    """

    def __init__(self, path: Path, offset: int, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        super().__init__(
            f"cannot read {path} at byte {offset}: {error.strerror} ({name})",
            remedy="check the disk or the network mount; reading may be tried again",
        )
        self.errno, self.path, self.offset = error.errno or 0, path, offset


class ChangedDataError(CorruptError):
    """Intact data whose fingerprint is not the requested one."""


def trouble_with(path: Path, offset: int, error: OSError) -> HeadwayError:
    """InputError for a missing file or missing permission, ReadError for anything else."""
    if error.errno in _NOT_THERE:
        return InputError(f"cannot read {path}: {error.strerror}", remedy=_PREPARE)
    return ReadError(path, offset, error)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of the system about files of ``path`` within the block."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else str(path)
        raise trouble_with(Path(name), 0, error) from error


def read_whole(path: Path) -> bytes:
    """The whole content of a small file next to the ``.bin``. Raises InputError or ReadError."""
    with reading(path):
        return path.read_bytes()


class BlockReader:
    """One open file with random access. Used by one thread at a time.

    With ``digests`` (xxh3-64 of every 128 KiB) each block is checked at its first use only; after
    that the kernel's cache is trusted.
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
        """From now on, check every block at its first use."""
        self._digests = digests
        self._unchecked = bytearray(b"\1") * digests.size
        self._num_unchecked = digests.size
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def read(self, start: int, out: memoryview) -> None:
        """Fill ``out`` (bytes, writable) from byte ``start``.

        Raises:
            ReadError: the disk or the network failed. CorruptError: the file was truncated, or a
                block does not match its digest; names file and bytes.
        """
        if self._num_unchecked:
            self._check(start, start + len(out))
        self._fill(start, out)

    def pieces(self) -> Iterator[memoryview]:
        """The whole content, in pieces of 2 MiB that are valid until the next.

        Raises:
            CorruptError: a block that differs from its digest. ReadError: the read failed.
        """
        buffer = memoryview(bytearray(16 * BLOCK_BYTES))
        for start in range(0, self.num_bytes, len(buffer)):
            piece = buffer[: min(len(buffer), self.num_bytes - start)]
            self.read(start, piece)
            yield piece

    def identity(self) -> tuple[int, int, int, int]:
        """Size, modification time, inode and device of the open file, whatever has its name now."""
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
    """Raise that bytes ``start`` to ``stop`` of ``path`` do not match their digest."""
    return CorruptError(
        f"{path}: bytes {start}..{stop - 1} do not match their recorded digest",
        remedy="restore the file, or prepare the data again with --force; a pair that was "
        "rewritten on purpose needs `headway data digest`",
    )
