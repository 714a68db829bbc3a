"""What happens on a node, as its guardian sees it, and what the guardian wants done about it.

Every action that can fail comes back as ``Done``, ``Started``, ``Claimed`` or ``Failed``; until
then its effect counts as not there. ``Send``, ``Log``, ``NoteEnd`` and ``EndRun`` do not come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.common.decide import Action, Event
from headway.common.node.process import ProcessId
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import DriverBeat, LeftGeneration, WorkerBeat
from headway.common.wire.messages.health import WorkerEnd
from headway.common.wire.messages.service import ServiceBeat
from headway.launch.lease.base import LeaseView


@dataclass(frozen=True)
class Fork:
    """How the zygote answered one request.

    It has a process, or the error that kept the zygote from forking.
    """

    worker: str
    process: ProcessId | None
    error: str = ""


@dataclass(frozen=True)
class ZygoteSeen:
    """The zygote's own record.

    ``turns`` grows while it serves; ``forks`` are its newest answers.
    """

    process: ProcessId
    turns: int
    forks: tuple[Fork, ...] = ()


@dataclass(frozen=True)
class Exit:
    """How a process ended, by its own account; without one it was killed, and has no code."""

    reason: str = "killed"
    code: int | None = None
    is_out_of_memory: bool = False
    """The kernel killed it, or another process of its control group, as memory ran out."""

    def __str__(self) -> str:
        return self.reason if self.code is None else f"{self.reason} (code {self.code})"


# ---- what happens -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Looked(Event):
    """A look at the node's processes, some 20 times a second.

    Args:
        states: state letter of each process in ``Guardian.watched``, as in proc_pid_stat(5); one
            that will never run again because SIGKILL waits for it counts as gone.
        words: worker -> how it ended, for those found dead.
        zygote: the zygote's record, None when it was not read this time.
    """

    states: Mapping[ProcessId, str]
    words: Mapping[str, Exit] = field(default_factory=dict)
    zygote: ZygoteSeen | None = None


@dataclass(frozen=True)
class WorkerReported(Event):
    """A worker's beat."""

    beat: WorkerBeat


@dataclass(frozen=True)
class ServiceReported(Event):
    """A service's beat."""

    beat: ServiceBeat


@dataclass(frozen=True)
class DriverReported(Event):
    """A beat of the driver, checked by ``Guardian.obeys``."""

    beat: DriverBeat


@dataclass(frozen=True)
class FolderSeen(Event):
    """A look at the run's folder and at the lease in it.

    ``gone`` means that the folder was removed for certain; everything else that is not ``there`` is
    ``unknown``, with the reason in ``detail``. ``there`` without ``lease``: the lease could not be
    read, for the reason in ``detail``.
    """

    state: Literal["there", "gone", "unknown"]
    lease: LeaseView | None = None
    detail: str = ""


@dataclass(frozen=True)
class WorkerLeft(Event):
    """A worker has left its generation."""

    left: LeftGeneration


@dataclass(frozen=True)
class WorkerUnwanted(Event):
    """The driver wants a worker to be ended."""

    worker: str


@dataclass(frozen=True)
class ServiceBlamed(Event):
    """The driver wants a service to be ended and started again."""

    service: str
    reason: str
    pid: int = 0
    """The pid of the process that is meant, 0 for any that runs."""


@dataclass(frozen=True)
class Trouble(Event):
    """The shell met something a person should know; an empty ``text`` takes it back."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Started(Event):
    """``StartService`` took effect."""

    action: StartService
    process: ProcessId


@dataclass(frozen=True)
class Claimed(Event):
    """The answer to ``ClaimLease``: the epoch that was won, or None when another was faster."""

    action: ClaimLease
    epoch: int | None


# ---- what to do -------------------------------------------------------------------------------
@dataclass(frozen=True)
class StartService(Action):
    """Start the process of a service; ``epoch`` is for the driver alone."""

    name: str
    epoch: int = -1


@dataclass(frozen=True)
class Kill(Action):
    """Send a signal to a process of the node."""

    process: ProcessId
    signum: int
    why: str


@dataclass(frozen=True)
class NoteEnd(Action):
    """Write down for the node's agent how a process with a rank ended; the time is added."""

    end: WorkerEnd


@dataclass(frozen=True)
class AskForFork(Action):
    """Ask the zygote for a worker of this name; its ``Fork`` or the worker's beat is the answer."""

    worker: str


@dataclass(frozen=True)
class ClearAway(Action):
    """Remove what dead workers left behind, but for the newest of it.

    ``living`` are the workers to be spared.
    """

    living: frozenset[str]


@dataclass(frozen=True)
class ClaimLease(Action):
    """Claim the driver's lease after epoch ``after``."""

    after: int


@dataclass(frozen=True)
class Remember(Action):
    """Write down what a successor of this executor needs."""

    memory: Memory


@dataclass(frozen=True)
class ForgetArenas(Action):
    """Remove the node's arenas, since it no longer carries a rank.

    It must not offer what it once held.
    """


@dataclass(frozen=True)
class PassOnMonitor(Action):
    """Write down for the node's agent where the monitor listens."""

    endpoint: str
    server_key: str


@dataclass(frozen=True)
class Send(Action):
    """Send a note to the driver, if one is connected; a beat makes up for a lost one."""

    message: Message


@dataclass(frozen=True)
class EndRun(Action):
    """End the run on this node. Nothing follows it."""

    outcome: str


@dataclass(frozen=True)
class Memory:
    """What an executor leaves to its successor."""

    epoch: int = 0
    """The newest driver's; older ones are not obeyed."""
    leading: int = 0
    """The epoch that this node claimed for its own driver, 0 for none."""
    reported: tuple[tuple[str, ProcessId], ...] = ()
    """Services whose process has sent a beat."""
    slow_starts: tuple[tuple[str, int], ...] = ()
    """Service -> its starts in a row that were too slow, each of which doubles its next limit."""
    services: tuple[tuple[str, ProcessId], ...] = ()
    workers: tuple[tuple[str, ProcessId], ...] = ()
    next_worker: int = 0
    incarnation: int = 0
    """Number of the executor that has written it."""
