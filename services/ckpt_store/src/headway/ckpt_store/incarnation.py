"""Ties a part to one start of the job, which the ranks identify through the checkpoints folder.

A job killed between two ranks' saves leaves a part that the next start must not complete with
its own. Each rank writes a random token into ``<checkpoints>/.ranks/rank-<r>`` when it opens
the folder, and stamps every part with a digest over the tokens of all ranks as it finds them. A
step is committed only when all stamps are equal. Equal stamps mean that each rank had seen the
tokens of all others, so that all of them belong to one start: this needs no clock, message or
launcher, only that every rank opens its client before the first step is saved. A step saved
before that stays incomplete.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from pathlib import Path

import msgspec
from headway.ckpt_store.files import Files
from headway.ckpt_store.manifest import digest
from headway.common.errors import HeadwayError, InputError
from headway.common.node.process import ProcessId

FOLDER = ".ranks"
_SETTLED_NS = 5_000_000_000
"""A folder that changed so recently may change again within the resolution of its time stamp."""


class Holder(msgspec.Struct, frozen=True):
    """Content of ``rank-<r>``: the process that saves as this rank."""

    token: str
    host: str
    """Host and boot, since a pid is meaningless elsewhere."""
    pid: int
    start_ticks: int

    def is_process_of(self, other: Holder) -> bool:
        """Whether both are of one process."""
        mine = (self.host, self.pid, self.start_ticks)
        return mine == (other.host, other.pid, other.start_ticks)

    def may_be_alive(self) -> bool:
        """False only if it ran on this host and has ended."""
        return self.host != _host() or ProcessId(self.pid, self.start_ticks).alive()


class Incarnation:
    """The stamp for the parts of one rank. ``join`` before the first ``stamp``."""

    def __init__(self, files: Files, checkpoints: Path, rank: int, world_size: int) -> None:
        self._files = files
        self._folder = checkpoints / FOLDER
        self._rank, self._world_size = rank, world_size
        process = ProcessId.current()
        self._own = Holder(secrets.token_hex(8), _host(), process.pid, process.start_ticks)
        self.has_joined = False
        self._read_at = 0, ""  # when the folder had last changed, and the stamp at that time

    def join(self) -> None:
        """Record this process as the one that saves as this rank.

        Raises:
            InputError: another live process of this host saves as this rank.
            OSError: from the disk, missing space included; ``stamp`` tries again.
        """
        holder = self._read(self._rank)
        if holder is not None and self._is_another_here(holder):
            raise InputError(
                f"process {holder.pid} saves rank {self._rank} of {self._folder.parent}",
                remedy="end it first, or open the folder with read_only=True",
            )
        self._files.make_dir(self._folder)
        path = self._path(self._rank)
        self._files.rename(self._files.write_whole(path, msgspec.json.encode(self._own)), path)
        self.has_joined = True

    def may_be_held(self) -> bool:
        """Whether a process may be saving as this rank.

        False only if none is recorded, or one of this host that has ended. This process counts, and
        so does any of another host or container.
        """
        holder = self._read(self._rank)
        return holder is not None and holder.may_be_alive()

    def leave(self) -> None:
        """Release the rank if it is still ours, so that its earlier process may continue."""
        if self.has_joined and self.is_current():
            self._files.discard(self._path(self._rank))
        self.has_joined = False

    def is_current(self) -> bool:
        """Whether no other process has taken over this rank."""
        holder = self._read(self._rank)
        return holder is None or self._is_ours(holder)

    def _is_ours(self, holder: Holder) -> bool:
        """Whether ``holder`` is this client or, with one rank, any client of this process.

        With one rank, several clients of one process may coexist.
        """
        if holder.token == self._own.token:
            return True
        return self._world_size == 1 and holder.is_process_of(self._own)

    def stamp(self) -> str:
        """The digest over the current tokens of all ranks.

        Raises:
            HeadwayError: another process that may be alive saves as this rank.
                OSError: from the disk.
        """
        holder = self._read(self._rank)
        if self.has_joined and holder is not None and not self._is_ours(holder):
            if holder.may_be_alive():
                raise HeadwayError(
                    f"rank {self._rank} of {self._folder.parent} was opened by another process "
                    "since: pid "
                    f"{holder.pid} on {holder.host.partition(' ')[0]}",
                    remedy="end one of the two; use read_only=True for reading",
                )
            self.has_joined = False  # created and removed meanwhile
        if not self.has_joined or holder is None:
            self.join()
        # Use our token from memory: the file may belong to another process by now.
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns != self._read_at[0] or time.time_ns() - changed_ns < _SETTLED_NS:
            tokens = [
                self._own.token if rank == self._rank else self._token(rank)
                for rank in range(self._world_size)
            ]
            self._read_at = changed_ns, digest(" ".join(tokens).encode())
        return self._read_at[1]

    def _token(self, rank: int) -> str:
        holder = self._read(rank)
        return holder.token if holder else "-"

    def _is_another_here(self, holder: Holder) -> bool:
        is_here = holder.host == self._own.host
        return is_here and not holder.is_process_of(self._own) and holder.may_be_alive()

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}"

    def _read(self, rank: int) -> Holder | None:
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(self._path(rank).read_bytes(), type=Holder)
        return None


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
