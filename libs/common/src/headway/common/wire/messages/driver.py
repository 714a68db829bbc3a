"""What the driver receives: beats and reports of executors, requests of the console."""

from __future__ import annotations

from typing import Literal

import msgspec
from headway.common.wire.about import PartOf, note, reply, request
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import (
    Evaluation,
    LeftGeneration,
    Sample,
    StepMetrics,
    StoreOpened,
    WorkerBeat,
    WorkerState,
)
from headway.common.wire.messages.worker import SteerOperation

RankState = Literal[WorkerState, "missing"]
"""``missing``: the rank has no worker now."""
NodeState = Literal["active", "spare", "silent", "lost"]
CommandOperation = Literal[SteerOperation, "evict", "drain", "check", "inject"]


class NodeCheck(Message, tag="driver.node_check/1"):
    """The newest check of a machine."""

    about = PartOf("NodeBeat")

    number: int
    """Copied from `CheckNode`."""
    is_done: bool = False
    failed: tuple[str, ...] = ()
    """Names of the checks that failed."""
    reason: str = ""
    """What they found, as one sentence; or why nothing could be checked."""


class NodeBeat(Message, tag="driver.node_beat/1"):
    """The state of a node: that it is alive, its step, its workers and services.

    A full beat, with ``workers``, is sent while the driver's ``known_version`` differs from the
    node's; otherwise only the step travels.
    """

    about = note(
        "executor -> driver over tcp: 2 Hz and at every change", "the next beat carries the same"
    )

    node: int
    pid: int
    workers: tuple[WorkerBeat, ...] | None = None
    """None: unchanged since ``version``."""
    services: dict[str, int] | None = None
    """Name -> pid of the services that are running; None: unchanged since ``version``."""
    version: int = 0
    """Grows with every change of ``services``, ``trouble`` or ``workers`` other
    than their ``step``."""
    incarnation: int = 0
    """Number of this executor process on its node; each one counts ``version`` from the start."""
    step: int = 0
    """Completed steps: the minimum over the node's workers in their newest generation."""
    trouble: str = ""
    """Why the node cannot work, such as a failed fork; empty while it can."""
    run_id: str = ""
    sent_ns: int = 0
    """When it was sent, by the node's monotonic clock; 0 where one machine carries the run."""
    clock_offset_ns: int | None = None
    """What to add to the node's monotonic clock for the run's clock; None: not known, or one
    machine carries the run."""
    clock_uncertainty_ns: int | None = None
    """How far ``clock_offset_ns`` may be off, either way."""
    is_ending: bool = False
    """The executor was asked to end: all stores are to write what memory holds."""
    loading_s: float | None = None
    """How long the zygote has been loading torch; None: it can fork workers, or is not up."""
    restarted_for: str = ""
    """How the executor before this one ended, as the init of the node saw it; empty if there was
    none, or another init."""
    check: NodeCheck | None = None
    """None: this executor has not checked its machine."""


class WorkerGone(Message, tag="driver.worker_gone/1"):
    """A worker's process has ended or was stopped."""

    about = note(
        "executor -> driver over tcp: once per worker",
        "the next `NodeBeat` no longer lists the worker",
    )

    node: int
    worker: str
    pid: int
    rank: int
    generation: int
    reason: str
    """What the process recorded; without a record, that it was killed, or stopped."""


class Seals(Message, tag="driver.seals/1"):
    """The snapshots that a node's arenas hold."""

    about = note(
        "executor -> driver over tcp: one per `ReadSeals`", "the driver sends `ReadSeals` again"
    )

    node: int
    generation: int
    """Copied from the request."""
    sealed: dict[int, tuple[int, ...]]
    """Rank -> steps of its sealed snapshots."""
    damaged: dict[int, str] = msgspec.field(default_factory=dict)
    """Rank -> why its arena cannot be used, naming the file."""
    run_id: str = ""


class Report(Message, tag="driver.report/1"):
    """A result of the run that the driver writes to the journal."""

    about = note(
        "executor -> driver over tcp: one per step, evaluation or sample",
        "repeated until `DriverBeat` acknowledges it",
    )

    node: int
    sequence: int
    """Counted from 1 by each executor process."""
    oldest: int = 0
    """Sequence of the oldest report that the executor still holds; lower ones will not be sent."""
    incarnation: int = 0
    metrics: StepMetrics | None = None
    evaluation: Evaluation | None = None
    sample: Sample | None = None


class Relay(Message, tag="driver.relay/1"):
    """Passes on what a worker reported about its generation."""

    about = note(
        "executor -> driver over tcp: on each event of a worker",
        "a later beat shows it, or a time limit starts a new generation",
    )

    node: int
    store: StoreOpened | None = None
    left: LeftGeneration | None = None


ANNOUNCED = "announced"
"""In ``Command.name``: the owner of the machine takes it away, and it is not to be replaced."""


class Command(Message, tag="driver.command/1"):
    """A user's command that steers the run."""

    about = request(
        "console -> driver over tcp: one per user command",
        "sent again; the same `id` is carried out once",
    )

    id: str
    operation: CommandOperation
    name: str = ""
    """The setting (``lr``) with ``set`` and ``unset``; the target (``worker`` or a
    service) with ``inject``; ``ANNOUNCED`` with ``drain`` if the node itself says that it will
    end."""
    value: float = 0.0
    """For ``set``, the setting's value; for ``sample``, the temperature."""
    count: int = 0
    """For ``extend``, additional steps; for ``sample``, tokens to write."""
    tokens: tuple[int, ...] = ()
    """For ``sample``, the prompt."""
    step: int = -1
    """For ``rollback``, the checkpoint's step."""
    force: bool = False
    """For ``set``, whether to accept a value that looks like a typing error."""
    fault: str = ""
    """For ``inject``, one of ``headway.controller.faults.faults.FAULTS``."""
    rank: int = -1
    node: int = -1
    duration_s: float = 0.0
    """For ``inject``, how long the fault lasts; for ``drain``, how long the node may wait.

    ``inject``: only for a fault that ends by itself; 0 means its default. ``drain``: the node waits
    for its checkpoint.
    """


class Accepted(Message, tag="driver.accepted/1"):
    """The command is in the journal; ``sequence`` is 0 for commands that ranks do not apply."""

    about = reply(
        "driver -> console over tcp: one per `Command`",
        "the command is sent again with the same `id` and answered the same",
    )

    sequence: int


class MonitorBeat(Message, tag="driver.monitor_beat/1"):
    """Where agents find the monitor.

    The driver accepts only the monitor of its own node and passes the address on in ``DriverBeat``.
    """

    about = note("monitor -> driver over tcp: 1 Hz", "the next beat carries the same")

    run_id: str
    node: int
    pid: int
    endpoint: str
    server_key: str


class GetStatus(Message, tag="driver.get_status/1"):
    """Asks for the state of the run."""

    about = request("console -> driver over tcp: about 1 Hz while the run is watched")

    first_rank: int = 0
    num_ranks: int = 1024
    """Which ranks ``Status.ranks`` lists, so that a reply stays below the
    message limit at any size."""


class RankStatus(Message, tag="driver.rank_status/1"):
    """The state of one rank."""

    about = PartOf("Status")

    rank: int
    node: int
    worker: str
    pid: int
    status: RankState
    step: int
    memory_bytes: int = 0
    """Most memory that the rank has used; 0 before its first steps."""
    memory_predicted: int = 0
    """Most memory that the configuration predicts for the rank, in bytes."""


class Status(Message, tag="driver.status/1"):
    """The state of the run, with the ranks that were asked for."""

    about = reply("driver -> console over tcp: one per `GetStatus`")

    name: str
    phase: str
    epoch: int
    generation: int
    step: int
    steps: int
    paused: bool
    commands: int
    applied: int
    ranks: tuple[RankStatus, ...]
    """The ranks that were asked for."""
    nodes: dict[int, NodeState]
    services: dict[int, dict[str, int]]
    """Node -> service -> pid, for the nodes that carry the listed ranks and the driver's own."""
    detail: str = ""
    waiting: str = ""
    """Why the run makes no steps at the moment, as a sentence; empty while it does."""
    is_starting: bool = False
    """It waits for torch to be loaded on a node, as ``waiting`` says."""
    num_ranks: int = 0
    """Ranks of the whole run."""
    statuses: dict[RankState, int] = msgspec.field(default_factory=dict)
    """Status of a rank -> number of ranks, over the whole run."""
    skipped: int = 0
    """Steps skipped since the run began: their loss or norm was not finite, or a spike."""
    troubles: dict[int, str] = msgspec.field(default_factory=dict)
    """Node -> what its executor cannot do now, as sentences; only of nodes that have some."""
    unused: dict[int, str] = msgspec.field(default_factory=dict)
    """Node -> why it is not used: it is being checked, or its check has failed."""
    checking: tuple[int, ...] = ()
    """Those of ``unused`` whose check is under way."""
    dp_pairs: int = 0
    """Neighbours in the rings of data parallelism; 0 also where the switches are not known."""
    dp_crossing: int = 0
    """Those of ``dp_pairs`` whose nodes are below different leaf switches."""
    machines: dict[int, str] = msgspec.field(default_factory=dict)
    """Node -> which other machine is on order for it and since when, why none is, or what remains
    to be said of the one before."""


class Join(Message, tag="driver.join/1"):
    """Asks to be a node of the run; the token, not the client's key, admits it."""

    about = request(
        "node -> driver over tcp: once per node and boot",
        "sent again; the same node gets the same answer",
    )

    node: int
    token: str
    """From the engine, see ``headway.launch.join.tokens``."""
    uid: str
    """The machine's id, the same at each boot."""
    boot_id: str
    host: str
    """Its host name, for people."""
    public_key: str
    """The node's own key, Z85; the driver admits it from now on."""
    version: str
    """Headway's version."""
    num_gpus: int = 0
    num_cpus: int = 0
    memory_bytes: int = 0
    shm_bytes: int = 0
    """Size of /dev/shm."""
    unix_s: float = 0.0
    source: str = ""
    """Digest of Headway's installed source: commits of one version differ in it."""
    torch: str = ""
    """The version that is installed."""
    address: str = ""
    """The machine's address, on the way to the driver."""


class Joined(Message, tag="driver.joined/1"):
    """The machine is a node of the run."""

    about = reply("driver -> node over tcp: one per `Join`")

    node: int
    epoch: int
    bundle: str
    """What the node needs to carry the run: ``headway.launch.join.bundle``, as JSON."""
