"""What the driver receives: reports of executors, verdicts of the monitor, requests of the console."""

from __future__ import annotations

import msgspec
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import (
    Evaluation,
    LeftGeneration,
    Sample,
    StepMetrics,
    StoreOpened,
    WorkerBeat,
)


class NodeBeat(Message, tag="driver.node_beat/1"):
    """Executor -> driver, note, at 2 Hz and at every change. Full (with ``workers``) when the driver's
    ``known_version`` is not the node's, else only that the node lives and its step; so loss is tolerated."""

    node: int
    pid: int
    workers: tuple[WorkerBeat, ...] | None = None
    """None: unchanged since ``version``."""
    services: dict[str, int] | None = None
    """Service name -> pid, of those that are up; None: unchanged since ``version``."""
    version: int = 0
    """Grows with every change of ``workers`` (but for ``step``), ``services`` or ``trouble``."""
    incarnation: int = 0
    """Number of this executor process on its node; a higher one counts ``version`` anew."""
    step: int = 0
    """Completed steps, the least of the node's workers in their newest generation."""
    trouble: str = ""
    """Why the node cannot do what it should, such as fork; empty while it can."""
    run_id: str = ""


class WorkerGone(Message, tag="driver.worker_gone/1"):
    """Executor -> driver, note, once when a worker's process ended or stopped; the next ``NodeBeat`` makes up
    a lost one."""

    node: int
    worker: str
    pid: int
    rank: int
    generation: int
    reason: str
    """``killed``, ``stopped`` or the last words of the process."""


class Seals(Message, tag="driver.seals/1"):
    """Executor -> driver, note in answer to ``ReadSeals``, one each; loss: the driver asks again."""

    node: int
    generation: int
    """Copied from the request."""
    sealed: dict[int, tuple[int, ...]]
    """Rank -> steps of its sealed snapshots."""
    damaged: dict[int, str] = msgspec.field(default_factory=dict)
    """Rank -> why its arena cannot be used, naming the file."""
    run_id: str = ""


class Report(Message, tag="driver.report/1"):
    """Executor -> driver, note, one a step or evaluation: something to be stored; repeated until acknowledged
    by ``DriverBeat``, so a lost one comes again."""

    node: int
    sequence: int
    """Counted from 1 by each executor process."""
    oldest: int = 0
    """Sequence of the oldest report that the executor still holds: none below it will come."""
    incarnation: int = 0
    previous: int = 0
    """Sequence of the report before; the driver takes none before the one that comes first, so none is skipped."""
    metrics: StepMetrics | None = None
    evaluation: Evaluation | None = None
    sample: Sample | None = None


class Relay(Message, tag="driver.relay/1"):
    """Executor -> driver, note, at once when a worker said it; a lost one is made up by a beat or a time
    limit."""

    node: int
    store: StoreOpened | None = None
    left: LeftGeneration | None = None


class Command(Message, tag="driver.command/1"):
    """Console -> driver, request over CURVE tcp, one a wish of the user: steer the run. The same ``id`` twice
    is carried out once, so a lost one is sent again."""

    id: str
    operation: str
    """``pause``, ``resume``, ``stop``, ``checkpoint``, ``set``, ``unset``, ``evict`` or ``inject``."""
    name: str = ""
    """With ``set`` and ``unset`` the setting (``lr``); with ``inject`` the target (``worker`` or a service)."""
    value: float = 0.0
    force: bool = False
    """With ``set``: take a value that looks like a slip of the keyboard."""
    fault: str = ""
    """With ``inject``: one of ``headway.trainer.control.faults.FAULTS``."""
    rank: int = -1
    node: int = -1
    duration_s: float = 0.0
    """With ``inject``: how long a fault that ends by itself lasts, 0 for its default."""


class Accepted(Message, tag="driver.accepted/1"):
    """Driver -> console, reply to ``Command`` once it is in the journal; ``sequence`` is 0 for one that ranks
    do not apply. Loss: sent again under the same ``id``, answered the same."""

    sequence: int


class MonitorBeat(Message, tag="driver.monitor_beat/1"):
    """Monitor -> driver, note over CURVE tcp, at 1 Hz: where agents find it. Loss is tolerated, the next one
    tells all; the driver takes the monitor of its own node and passes it on in ``DriverBeat``."""

    run_id: str
    node: int
    pid: int
    endpoint: str
    server_key: str


class GetStatus(Message, tag="driver.get_status/1"):
    """Console -> driver, request over CURVE tcp, about once a second while watched: where does the run stand;
    loss: asked again."""

    first_rank: int = 0
    num_ranks: int = 1024
    """Which ranks ``Status.ranks`` lists: one answer stays far below a message's limit at any size."""


class RankStatus(Message, tag="driver.rank_status/1"):
    """Part of ``Status``: one rank; never sent alone, so no rate and no loss of its own."""

    rank: int
    node: int
    worker: str
    pid: int
    status: str
    step: int


class Status(Message, tag="driver.status/1"):
    """Driver -> console, reply to ``GetStatus``; loss: asked again."""

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
    """Those that were asked for."""
    nodes: dict[int, str]
    """Node -> ``active``, ``spare``, ``silent`` or ``lost``."""
    services: dict[int, dict[str, int]]
    """Of the nodes that carry the listed ranks, and of the driver's own."""
    detail: str = ""
    waiting: str = ""
    """Why the run does not step now, as a sentence; empty while it steps."""
    num_ranks: int = 0
    """Ranks of the whole run."""
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    """Status of a rank -> number of ranks, over the whole run."""
    skipped: int = 0
    """Steps skipped for a loss or norm that was not finite, since the run began."""
    troubles: dict[int, str] = msgspec.field(default_factory=dict)
    """Node -> what its executor cannot do now, as sentences; only of nodes that have some."""
