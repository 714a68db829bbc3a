"""What the driver receives: reports of executors, verdicts of the monitor, requests of the console."""

from __future__ import annotations

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
    """Executor -> driver, note, at 4 Hz and at every change; the whole truth of a node, so loss is tolerated."""

    node: int
    pid: int
    workers: tuple[WorkerBeat, ...]
    services: dict[str, int]
    """Service name -> pid, of those that are up."""


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


class Report(Message, tag="driver.report/1"):
    """Executor -> driver, note, one a step or evaluation: something to be stored; repeated until acknowledged
    by ``DriverBeat``, so a lost one comes again."""

    node: int
    sequence: int
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
    """``pause``, ``resume``, ``stop``, ``checkpoint``, ``set``, ``evict`` or ``inject``."""
    name: str = ""
    """With ``set`` the setting (``lr``); with ``inject`` the target (``worker`` or a service)."""
    value: float = 0.0
    fault: str = ""
    """With ``inject``: ``kill`` or ``stop``."""
    rank: int = -1
    node: int = -1


class Accepted(Message, tag="driver.accepted/1"):
    """Driver -> console, reply to ``Command`` once it is in the journal; ``sequence`` is 0 for one that ranks
    do not apply. Loss: sent again under the same ``id``, answered the same."""

    sequence: int


class GetStatus(Message, tag="driver.get_status/1"):
    """Console -> driver, request over CURVE tcp, about once a second while watched: where does the run stand;
    loss: asked again."""


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
    nodes: dict[int, str]
    """Node -> ``active``, ``spare``, ``silent`` or ``lost``."""
    services: dict[int, dict[str, int]]
    detail: str = ""
