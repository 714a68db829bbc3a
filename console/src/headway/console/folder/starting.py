"""The mark in the folder of a run that is being started: who starts it, and what that is doing.

The start makes the mark, replaces it at each of its stages and removes it at its end. The mark of a
start that was killed stays, and names a process that has ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from headway.common.node.files import replace_json
from headway.common.node.machine import machine_uid
from headway.common.node.process import DEAD, ProcessId

STARTING = ".starting.json"
"""File that says which process starts the run; it is there while a start lasts."""
UNKNOWN = "another machine"


@dataclass(frozen=True)
class Starter:
    """The process that starts a run, and its present stage."""

    host: str = UNKNOWN
    machine: str = ""
    pid: int = 0
    start_ticks: int = 0
    unix_s: float = 0.0
    """When the start began."""
    stage: str = ""
    """What it is doing, such as ``preparing corpus stdlib``."""
    stage_unix_s: float = 0.0
    """When that began."""
    is_new: bool = False
    """The run did not exist before."""

    @classmethod
    def here(cls, *, is_new: bool) -> Starter:
        """This process, at the beginning of a start."""
        process, now = ProcessId.current(), time.time()
        place = (socket.gethostname(), machine_uid())
        return cls(*place, process.pid, process.start_ticks, now, "", now, is_new)

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return (self.host, self.machine) == (socket.gethostname(), machine_uid())

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended; of another machine's that is not known."""
        return self.is_here and ProcessId(self.pid, self.start_ticks).state() in DEAD

    def is_same_start(self, other: Starter) -> bool:
        """Whether both are marks of one start, at whatever stages."""
        return replace(self, stage=other.stage, stage_unix_s=other.stage_unix_s) == other

    def doing(self) -> str:
        """``preparing corpus stdlib (12 s)``: the stage, and how long it has lasted."""
        lasted_s = max(0.0, time.time() - (self.stage_unix_s or self.unix_s or time.time()))
        where = "" if self.is_here else f", by {self}"
        return f"{self.stage or 'checking its folder'} ({lasted_s:.0f} s){where}"

    def __str__(self) -> str:
        return f"process {self.pid or 'unknown'} on {self.host}"


def starter_of(path: Path) -> Starter | None:
    """The process that starts the run at ``path``; None without a mark.

    It may have been killed while starting the run. A mark that cannot be read is one of another
    machine.
    """
    try:
        return msgspec.json.decode((path / STARTING).read_bytes(), type=Starter)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        return Starter() if (path / STARTING).exists() else None


def enter_stage(path: Path, stage: str) -> None:
    """Say what this process, which starts the run at ``path``, does from now on.

    A start does not fail because the disk has no room for that.
    """
    mine = starter_of(path)
    if mine is not None and mine.is_here and mine.pid == os.getpid():
        now = replace(mine, stage=stage, stage_unix_s=time.time())
        with contextlib.suppress(OSError):
            replace_json(path / STARTING, asdict(now))
