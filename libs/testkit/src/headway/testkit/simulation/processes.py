"""Simulated processes of a node."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.node.process import ProcessId
from headway.common.wire.messages.executor import WorkerBeat, WorkerState


@dataclass
class Process:
    """One process; a dead one stays in state ``Z`` until somebody has looked at it."""

    name: str
    id: ProcessId
    since: float
    state: str = "S"
    is_hung: bool = False
    """It lives and sends nothing."""
    is_stuck: bool = False
    """SIGKILL waits, as in state D."""
    epoch: int = -1
    """The epoch that a driver was started with; -1 for other processes."""
    code: int = -9
    """How it ends."""
    turns: int = 0
    said_at: float = -1.0

    @property
    def pid(self) -> int:
        return self.id.pid

    def is_up(self, now: float, start_s: float) -> bool:
        """Whether it has started and reacts."""
        return self.state == "S" and not self.is_hung and now - self.since >= start_s

    def kill(self, signum: int = 9) -> None:
        """A signal that ends it; only SIGKILL ends one that hangs."""
        if not self.is_stuck and (signum == 9 or not self.is_hung):
            self.state, self.code = "Z", 0 if signum == 15 else -signum


@dataclass
class Worker(Process):
    """A worker, and what it knows of its run."""

    status: WorkerState = "idle"
    generation: int = -1
    aborted: int = -1
    rank: int = -1
    step: int = 0
    command: int = 0
    applied: int = 0
    store: int = -1
    paused: bool = False
    restored_bytes: int = 0
    restoring_s: float = 0.0
    said: tuple[object, ...] = ()

    @property
    def news(self) -> tuple[object, ...]:
        """What is reported as soon as it changes."""
        return (
            self.status,
            self.generation,
            self.command,
            self.applied,
            self.paused,
            self.restored_bytes,
        )

    def beat(self) -> WorkerBeat:
        """The beat that it sends to its executor."""
        return WorkerBeat(
            worker=self.name,
            pid=self.id.pid,
            start_ticks=self.id.start_ticks,
            status=self.status,
            generation=self.generation,
            rank=self.rank,
            step=self.step,
            command=self.command,
            applied=self.applied,
            paused=self.paused,
            restored_bytes=self.restored_bytes,
        )
