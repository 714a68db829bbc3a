"""The events and actions of the store's decisions, and the slots that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.ckpt_store.attempts import Key
from headway.ckpt_store.folder import FolderView


@dataclass(frozen=True, order=True)
class Slot:
    """A snapshot in an arena that its rank wants durable."""

    step: int
    generation: int
    rank: int
    seal: int
    """The arena's number of this snapshot, never used twice."""

    @property
    def key(self) -> Key:
        return (self.step, self.generation)


# Jobs: one at a time, on the thread that may block.


@dataclass(frozen=True)
class FlushSlot:
    slot: Slot


@dataclass(frozen=True)
class WriteManifest:
    key: Key


@dataclass(frozen=True)
class DropParts:
    """Remove this node's part of an attempt that cannot be completed.

    ``gave_up``: this node is the reason and leaves a note for the others.
    """

    key: Key
    ranks: tuple[int, ...]
    gave_up: bool = False


@dataclass(frozen=True)
class Check:
    key: Key


@dataclass(frozen=True)
class Remove:
    """Remove a step's folder; with ``is_dead`` only if it was not completed meanwhile."""

    key: Key
    is_dead: bool = False


@dataclass(frozen=True)
class EmptyTrash:
    names: tuple[str, ...]


Job = FlushSlot | WriteManifest | DropParts | Check | Remove | EmptyTrash


# Other actions, executed at once.


@dataclass(frozen=True)
class ReleaseSlot:
    slot: Slot


@dataclass(frozen=True)
class Announce:
    """A checkpoint is complete."""

    key: Key


@dataclass(frozen=True)
class Report:
    """A problem, for the log, the counters and the executor; training continues."""

    code: Literal[
        "no_space",
        "flush_failed",
        "manifest_failed",
        "remove_failed",
        "corrupt",
        "folder_unseen",
        "incomplete",
    ]
    message: str
    remedy: str
    key: Key | None = None


Action = Job | ReleaseSlot | Announce | Report


# Events.


@dataclass(frozen=True)
class ArenasSeen:
    """A scan of the node's arenas: ranks, wanted snapshots, and newest generation of any one."""

    ranks: frozenset[int]
    wanted: tuple[Slot, ...]
    generation: int = 0


@dataclass(frozen=True)
class FolderSeen:
    view: FolderView


@dataclass(frozen=True)
class FolderUnseen:
    """The checkpoints folder could not be listed."""

    message: str
    remedy: str = ""


@dataclass(frozen=True)
class JobDone:
    job: Job


@dataclass(frozen=True)
class JobFailed:
    """``is_stale``: the object of the job is gone, which is not an error."""

    job: Job
    message: str
    remedy: str = ""
    is_no_space: bool = False
    is_stale: bool = False


Event = ArenasSeen | FolderSeen | FolderUnseen | JobDone | JobFailed
