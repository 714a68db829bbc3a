"""Random histories of a job whose ranks save into one folder on unreliable disks.

A history is a row of starts of the job. Each start restores, then saves step after step until it is
killed: between two ranks' saves, or in the middle of one. Between starts bytes are damaged. A
rank's disk may be full for a while, or fail; its reads may fail.

All ranks must restore the same step of the same start, bit for bit. In addition: the newest
checkpoint known to be intact is restored, ``keep`` of them are kept, unfinished ones do not
accumulate, a full disk does not raise, and a job whose disks work again recovers.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from headway.ckpt_store.client import CheckpointClient, Saved
from headway.ckpt_store.files import TRASH_PREFIX, Files, NewFile
from headway.ckpt_store.folder import complete, is_superseded, look, open_checkpoint
from headway.ckpt_store.upkeep import LATER_WITHOUT_LOCKSTEP
from headway.ckpt_store.verify import verify
from headway.common.errors import CorruptError, HeadwayError

SLACK = LATER_WITHOUT_LOCKSTEP + 2  # attempts besides the kept ones, if a full disk accepts no note


class KilledError(BaseException):
    """The process has died: none of its later changes reaches the disk."""


@dataclass
class Disk:
    """How the disk of one rank behaves."""

    is_full: bool = False
    is_failing: bool = False
    is_unreadable: bool = False
    removes_nothing: bool = False
    """Old checkpoints cannot be removed."""
    dies_after: int = -1
    """Changes until the process is killed."""

    def change(self, takes_room: bool) -> None:
        if self.dies_after >= 0:
            if self.dies_after == 0:
                raise KilledError
            self.dies_after -= 1
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        if self.is_full and takes_room:
            raise OSError(errno.ENOSPC, "No space left on device")


class DiskFiles(Files):
    """``Files`` on such a disk."""

    def __init__(self, owner: str, disk: Disk) -> None:
        super().__init__(owner)
        self.disk = disk

    def create(self, path: Path, nbytes: int) -> NewFile:
        self.disk.change(takes_room=True)
        return _DiskFile(path, nbytes, self.disk)

    def rename(self, source: Path, target: Path) -> None:
        self.disk.change(takes_room=False)
        if self.disk.removes_nothing and target.name.startswith(TRASH_PREFIX):
            raise OSError(errno.EIO, "Input/output error")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.disk.change(takes_room=False)
        super().remove(path)

    def _mkdir(self, path: Path) -> None:
        self.disk.change(takes_room=True)
        super()._mkdir(path)

    def _rmdir(self, path: Path) -> None:
        self.disk.change(takes_room=False)
        super()._rmdir(path)


class _DiskFile(NewFile):
    def __init__(self, path: Path, nbytes: int, disk: Disk) -> None:
        super().__init__(path, nbytes)
        self.disk = disk

    def write(self, data: Any) -> None:
        self.disk.change(takes_room=False)  # allocated before
        super().write(data)


class DiskClient(CheckpointClient):
    """A client that writes on such a disk."""

    def __init__(self, disk: Disk, target: Path, **options: Any) -> None:
        self.disk = disk
        super().__init__(target, **options)

    @property
    def has_joined(self) -> bool:
        """Whether its token is in the folder."""
        return self._incarnation is None or self._incarnation.has_joined

    def _open_files(self, owner: str) -> Files:
        return DiskFiles(owner, self.disk)


def state_of(life: int, step: int, rank: int) -> dict[str, Any]:
    """What ``rank`` of the job's start ``life`` has at ``step``."""
    return {"life": life, "step": step, "w": np.random.default_rng([life, step, rank]).random(300)}


@dataclass
class History:
    """One seeded history in ``folder``; ``run`` checks every step and returns what happened."""

    folder: Path
    seed: int
    reading: list[Disk] = field(default_factory=lambda: [Disk()])
    """The disk of the rank that is reading, for the test's ``os.preadv``."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.world_size = self.random.randint(1, 4)
        self.keep = self.random.randint(1, 3)
        self.life = 0
        self.damaged: set[int] = set()
        self.newest = 0
        """The newest step that is known to be complete and was not damaged since."""
        kinds = ("restored", "refused", "complete", "no_room", "killed")
        self.seen: dict[str, int] = dict.fromkeys(kinds, 0)

    def state(self, step: int, rank: int) -> dict[str, Any]:
        """Half of the jobs repeat themselves bit for bit after a restart."""
        return state_of(self.life if self.seed % 2 else 0, step, rank)

    def run(self) -> dict[str, int]:
        for _ in range(self.random.randint(3, 6)):
            self.one_life()
            if self.random.random() < 0.4:
                self.damage()
        self.end()
        return self.seen

    # ---- one start of the job ------------------------------------------------------------------
    def one_life(self) -> None:
        disks = [self.disk() for _ in range(self.world_size)]
        try:
            clients = self.open(disks)
            step = self.restore(clients, disks)
        except KilledError:
            self.seen["killed"] += 1
            return
        except OSError as error:
            assert error.errno == errno.EIO, "a job starts on a full disk too"
            assert any(disk.is_failing for disk in disks)
            return
        if step is None:
            return
        for disk in disks:
            disk.dies_after = -1
        self.num_complete = 0
        for _ in range(self.random.randint(1, 4)):
            step += 10
            for disk in disks:
                if self.random.random() < 0.15:
                    disk.is_full = not disk.is_full
            if not self.save(clients, step):
                return

    def disk(self) -> Disk:
        return Disk(
            is_full=self.random.random() < 0.08,
            is_failing=self.random.random() < 0.02,
            is_unreadable=self.random.random() < 0.04,
            removes_nothing=self.random.random() < 0.08,
            dies_after=self.random.randint(0, 3) if self.random.random() < 0.04 else -1,
        )

    def open(self, disks: list[Disk]) -> list[DiskClient]:
        self.life += 1
        clients: dict[int, DiskClient] = {}
        for rank in self.order():
            clients[rank] = DiskClient(
                disks[rank], self.folder, rank=rank, world_size=self.world_size, keep=self.keep
            )
        return [clients[rank] for rank in range(self.world_size)]

    def restore(self, clients: list[DiskClient], disks: list[Disk]) -> int | None:
        """The common step, 0 for a start from scratch; None if a rank refused with an error."""
        together = self.random.random() < 0.3
        call = restore_together if together else self.restore_in_turn
        found = call(clients, disks, self.reading)
        if any(isinstance(one, CorruptError) for one in found):
            self.seen["refused"] += 1
            self.newest = 0  # a note may exist from now on
            assert not together or all(isinstance(one, CorruptError) for one in found)
            return None
        is_known = not any(disk.is_unreadable for disk in disks)
        if all(one is None for one in found):
            assert not (self.newest and is_known), f"step {self.newest} is forgotten"
            return 0
        assert all(one is not None for one in found), (
            f"some ranks restored, others did not: {found}"
        )
        origins = {(step, state["life"], state["step"]) for step, state in found}
        assert len(origins) == 1, f"ranks restored {origins}"
        step: int
        step, life, saved_step = origins.pop()
        assert step == saved_step
        for rank, (_, state) in enumerate(found):
            assert state["w"].tobytes() == state_of(life, step, rank)["w"].tobytes()
        assert step >= self.newest or not is_known, f"step {self.newest} is whole, {step} was taken"
        self.seen["restored"] += 1
        self.newest = 0 if step in self.damaged else step
        return step

    def restore_in_turn(
        self, clients: list[DiskClient], disks: list[Disk], reading: list[Disk]
    ) -> list[Any]:
        found: dict[int, Any] = {}
        for rank in self.order():
            reading[0] = disks[rank]
            try:
                found[rank] = clients[rank].restore()
            except CorruptError as error:
                found[rank] = error
        reading[0] = Disk()
        return [found[rank] for rank in range(self.world_size)]

    def save(self, clients: list[DiskClient], step: int) -> bool:
        """Whether the job continues."""
        # A rank that could not write its token before does so now, too late for
        # this step's first parts.
        all_joined = all(client.has_joined for client in clients)
        kill_between = self.random.random() < 0.15
        victim = self.random.randrange(self.world_size) if self.random.random() < 0.15 else -1
        order = self.order()
        stop = self.random.randrange(self.world_size) if kill_between else self.world_size
        saved: list[Saved] = []
        for rank in order[:stop]:
            disk = clients[rank].disk
            if rank == victim:
                disk.dies_after = self.random.randint(0, 12)
            try:
                saved.append(clients[rank].save(step, self.state(step, rank)))
            except KilledError:
                self.seen["killed"] += 1
                return False
            except OSError as error:
                assert error.errno == errno.EIO, "a full disk must not end a job"
                assert disk.is_failing, "old checkpoints that stay must not end a job"
                return False
        if kill_between:
            return False
        if all_joined and all(one.is_stored and not one.problem for one in saved):
            assert saved[-1].is_complete, f"all ranks saved step {step}, it is not complete"
        if saved[-1].is_complete:
            self.seen["complete"] += 1
            self.num_complete += 1
            self.newest = 0 if step in self.damaged else step
            found = [info.step for info in complete(self.folder)]
            assert len(found) >= min(self.keep, self.num_complete), f"only {found} are left"
        self.seen["no_room"] += sum(not one.is_stored for one in saved)
        if any(client.disk.removes_nothing for client in clients):
            return True
        attempts = sorted(path.name for path in self.folder.glob("step-*"))
        assert len(attempts) <= self.keep + len(self.damaged) + SLACK, attempts
        return True

    # ---- between starts ------------------------------------------------------------------------
    def damage(self) -> None:
        """One bit flipped in, or the end cut off, some file."""
        chosen = "step-*" if self.random.random() < 0.8 else ".ranks"
        files = sorted(path for path in self.folder.glob(f"{chosen}/*") if path.stat().st_size)
        if not files:
            return
        path = self.random.choice(files[-12:])
        raw = bytearray(path.read_bytes())
        if self.random.random() < 0.3:
            del raw[len(raw) // 2 :]
        else:
            raw[self.random.randrange(len(raw))] ^= 1 << self.random.randrange(8)
        path.write_bytes(raw)
        if chosen == "step-*":
            step = int(path.parent.name.partition("-")[2].partition(".")[0])
            self.damaged.add(step)
            if step == self.newest:
                self.newest = 0

    def end(self) -> None:
        """All disks work again: the job recovers, unless no intact checkpoint is left."""
        for _ in range(2 * len(self.damaged) + 4):
            disks = [Disk() for _ in range(self.world_size)]
            step = self.restore(self.open(disks), disks)
            if step is not None:
                return
        for attempt in look(self.folder).attempts:  # not by what the client counts
            if not attempt.is_complete or is_superseded(*attempt.key, look(self.folder).marks):
                continue
            try:
                is_whole = not verify(open_checkpoint(self.folder, *attempt.key))
            except CorruptError:
                continue
            assert not is_whole, f"{attempt.key} is whole, and every start is refused"

    def order(self) -> list[int]:
        return self.random.sample(range(self.world_size), self.world_size)


def restore_together(
    clients: list[DiskClient], disks: list[Disk], reading: list[Disk]
) -> list[Any]:
    """Restore on all ranks at once, as threads that agree by a barrier.

    Their reads are not made to fail.
    """
    del disks
    reading[0] = Disk()
    found: list[Any] = [None] * len(clients)
    numbers = [0] * len(clients)
    barrier = threading.Barrier(len(clients))

    def agree_as(rank: int) -> Callable[[int], int]:
        def agree(value: int) -> int:
            numbers[rank] = value
            barrier.wait(30)
            lowest = min(numbers)
            barrier.wait(30)
            return lowest

        return agree

    def restore(rank: int) -> None:
        try:
            found[rank] = clients[rank].restore(agree=agree_as(rank))
        except (HeadwayError, OSError) as error:
            found[rank] = error

    threads = [threading.Thread(target=restore, args=(rank,)) for rank in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed := [one for one in found if isinstance(one, OSError)]:
        raise failed[0]
    return found
