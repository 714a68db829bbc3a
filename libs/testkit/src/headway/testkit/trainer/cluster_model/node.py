"""A node of the model: its executor and its workers, as seen by the driver."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from headway.common.wire.messages.driver import NodeBeat, Seals
from headway.common.wire.messages.executor import WorkerBeat, WorkerState

PULSE_S = 0.5


@dataclass
class FakeWorker:
    """A worker process."""

    name: str
    status: WorkerState = "idle"
    generation: int = -1
    aborted: int = -1
    rank: int = -1
    step: int = 0
    command: int = 0
    applied: int = 0
    store: int = -1
    frozen: bool = False
    paused: bool = False
    restored_bytes: int = 0
    restoring_s: float = 0.0

    @property
    def pid(self) -> int:
        return zlib.crc32(self.name.encode())

    def beat(self) -> WorkerBeat:
        """What its executor knows of it."""
        return WorkerBeat(
            worker=self.name,
            pid=self.pid,
            start_ticks=1,
            status=self.status,
            generation=self.generation,
            rank=self.rank,
            step=self.step,
            command=self.command,
            applied=self.applied,
            paused=self.paused,
            restored_bytes=self.restored_bytes,
        )


@dataclass
class FakeNode:
    """A machine, which may be gone, with an executor, which may be dead."""

    number: int
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    arenas: dict[int, set[int]] = field(default_factory=dict)
    flipped: set[tuple[int, int]] = field(default_factory=set)
    """(rank, step) of snapshots with a flipped bit."""
    damaged: set[int] = field(default_factory=set)
    """Ranks whose arena cannot be read."""
    executor: bool = True
    starts_at: float | None = None
    lost: bool = False
    """The machine is lost permanently."""
    can_fork: bool = True
    epoch: int = 0
    """Newest driver epoch that the executor has seen."""
    incarnation: int = 1
    pid: int = 1
    version: int = 0
    known: int = -1
    """The driver's known version, from its newest beat."""
    services: dict[str, int] = field(default_factory=lambda: {"dataloader": 1})
    _last: tuple[Any, ...] = ()
    _sent_at: float = -1.0

    @property
    def is_up(self) -> bool:
        return self.executor and not self.lost

    def wipe(self) -> None:
        """Restart the machine: memory is empty, and processes are gone.

        Its executor is not started.
        """
        self.workers, self.arenas, self.flipped, self.damaged = {}, {}, set(), set()
        self.executor, self.starts_at, self.incarnation, self.epoch = False, None, 0, 0

    def restart(self, now: float) -> None:
        """The engine ends the executor and starts it again."""
        self.executor, self.starts_at = False, now + 0.7

    def wake(self, now: float) -> None:
        """A started executor is running and counts its versions from the start."""
        if self.starts_at is not None and self.starts_at <= now and not self.lost:
            self.executor, self.starts_at = True, None
            self.incarnation, self.pid = self.incarnation + 1, self.pid + 1
            self.version, self.known, self._last = 0, -1, ()

    def beat(self, now: float) -> NodeBeat | None:
        """Send a beat at every change, else periodically; full only while the driver lacks it."""
        facts = tuple(
            (
                w.name,
                w.status,
                w.generation,
                w.command,
                w.applied,
                w.paused,
                w.restored_bytes,
            )
            for w in self.workers.values()
        )
        state = (facts, self.can_fork, tuple(self.services.items()))
        if state != self._last:
            self._last, self.version = state, self.version + 1
        elif now - self._sent_at < PULSE_S:
            return None
        self._sent_at = now
        newest = max((w.generation for w in self.workers.values()), default=-1)
        steps = (w.step for w in self.workers.values() if w.generation == newest)
        beat = NodeBeat(
            node=self.number,
            pid=self.pid,
            version=self.version,
            incarnation=self.incarnation,
            step=min(steps, default=0),
            run_id="r",
        )
        if self.known == self.version:
            return beat
        return NodeBeat(
            node=self.number,
            pid=self.pid,
            version=self.version,
            incarnation=self.incarnation,
            workers=tuple(w.beat() for w in self.workers.values()),
            services=dict(self.services),
            trouble="" if self.can_fork else "it cannot fork (the zygote restarts)",
            run_id="r",
        )

    def seals(self, generation: int) -> Seals:
        """Which snapshots the arenas hold."""
        return Seals(
            node=self.number,
            generation=generation,
            sealed={r: tuple(sorted(s)) for r, s in self.arenas.items() if r not in self.damaged},
            damaged={r: f"arena-{r}.bin: its header is damaged" for r in sorted(self.damaged)},
            run_id="r",
        )
