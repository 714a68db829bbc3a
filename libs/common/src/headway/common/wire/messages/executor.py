"""What an executor receives from its workers, the driver and the console.

Workers send over ``ipc``, driver and console over CURVE tcp.
"""

from __future__ import annotations

from typing import Literal

from headway.common.wire.about import note, reply, request
from headway.common.wire.message import Message
from headway.common.wire.messages.worker import Assign, Steer

WorkerState = Literal["idle", "joining", "restored", "running", "left", "finished"]
"""``restored``: the state is in place, and no step was made yet."""
LeaveReason = Literal["aborted", "peer", "transport", "error", "spike"]
"""The driver's order; a peer's failure; an error of NCCL that a peer's death causes, and a fault of
this worker's machine too; the worker's own exception; a spike of loss or gradient norm, from which
the run is to go back."""


class WorkerBeat(Message, tag="executor.worker_beat/1"):
    """The state of a worker: its generation, rank, step and steering commands."""

    about = note(
        "worker -> executor over ipc: 2 Hz and at every change of status",
        "the next beat carries the same",
    )

    worker: str
    pid: int
    start_ticks: int
    status: WorkerState
    generation: int = -1
    rank: int = -1
    step: int = 0
    """Completed optimizer steps."""
    command: int = 0
    """Newest steering command held."""
    applied: int = 0
    """Newest steering command applied by all ranks."""
    paused: bool = False
    restored_bytes: int = 0
    """Bytes of the state that were read or made in this generation. While they grow, the driver
    waits for the rank beyond ``join_timeout_s``."""
    memory_bytes: int = 0
    """Most memory that the rank has used since its first steps, on the device that computes; 0
    before. Reported when it grows by more than 2 %."""
    memory_predicted: int = 0
    """Most memory that the configuration predicts for the rank, in bytes."""
    evaluating: bool = False
    """It computes the validation loss, which may take long."""
    source: str = ""
    """Digest of Headway's source that the process was started from; a worker of another one than
    the run's gets no rank."""


class StoreOpened(Message, tag="executor.store_opened/1"):
    """The address at which the ranks of a generation meet."""

    about = note(
        "worker -> driver via executor over ipc, then tcp: once per generation, by rank 0",
        "`join_timeout_s` ends the generation and a new one begins",
    )

    generation: int
    host: str
    port: int
    secret: str = ""
    """What a client must present to this store."""


class LeftGeneration(Message, tag="executor.left_generation/1"):
    """A worker has left its generation, and why."""

    about = note(
        "worker -> driver via executor over ipc, then tcp: once per generation that it leaves",
        "the next `WorkerBeat` shows that the worker has left",
    )

    worker: str
    generation: int
    rank: int
    reason: LeaveReason
    detail: str = ""
    """The exception, one line; with ``error`` and ``transport`` also the innermost frames of the
    traceback."""
    bad_checkpoint: bool = False
    """A part of the durable checkpoint cannot be read; it is read again before an older one is."""
    bad_part: int = -1
    """For ``bad_checkpoint``, the rank whose part it is; -1 for the reporting rank's own."""
    bad_snapshot: bool = False
    """The rank's snapshot in the arena does not match its digest or layout: it must not be used."""
    is_fatal: bool = False
    """A restart would not help: the run ends with ``detail``."""
    spike_end: int = 0
    """For ``spike``, the position of the data behind the spike's samples."""


class StepMetrics(Message, tag="executor.step_metrics/1"):
    """The results of one optimizer step."""

    about = note(
        "worker -> driver via executor over ipc, then tcp: one per step, by the reporting rank",
        "a gap in the curves; the executor keeps it while no driver answers, other ranks until "
        "it is stored",
    )

    generation: int
    step: int
    """Index of the optimizer step, from 0."""
    loss: float
    """Mean cross-entropy per token of the global batch, nats."""
    grad_norm: float
    lr: float
    tokens: int
    """Tokens of the global batch that counted."""
    duration_s: float
    unix_s: float
    skipped: bool = False
    """Loss or norm was not finite, or a spike, so the parameters were left as they were."""


class Evaluation(Message, tag="executor.evaluation/1"):
    """The result of one evaluation on the validation split."""

    about = note(
        "worker -> driver via executor over ipc, then tcp: one per evaluation, by the reporting"
        " rank",
        "a gap in the curve; the executor keeps it while no driver answers",
    )

    generation: int
    step: int
    loss: float
    """Mean cross-entropy per token of the validation batches, nats."""
    tokens: int
    sequence: int = 0
    """Number of the command that asked for it; 0 for a planned one."""


class Sample(Message, tag="executor.sample/1"):
    """Tokens that the model generated."""

    about = note(
        "worker -> driver via executor over ipc, then tcp: one per `sample` command and one at "
        "the end of a run, by the reporting rank",
        "the sample is missing; the executor keeps it while no driver answers",
    )

    generation: int
    tokens: tuple[int, ...]
    num_prompt_tokens: int
    """How many of ``tokens`` are the prompt."""
    step: int = 0
    """Completed steps of the model that wrote it."""
    sequence: int = 0
    """Number of the command that asked for it; 0 for the one at the end of the run."""


class DriverBeat(Message, tag="executor.driver_beat/1"):
    """What the driver wants of a node, and up to where it has stored the node's reports."""

    about = note(
        "driver -> executor over tcp: one per `NodeBeat`, and when a field changes",
        "the next beat carries the same; long silence makes the executor check the lease",
    )

    epoch: int
    """Epoch of this driver; an executor obeys the highest that it has seen."""
    refill: bool
    """Whether the node may fork standbys; during a rebuild the survivors need the cores."""
    active: bool
    """Whether the node carries ranks; a spare keeps standbys only."""
    monitor_endpoint: str = ""
    monitor_key: str = ""
    acknowledged: int = 0
    """Sequence of the newest report that the driver has stored; the executor discards up to it."""
    known_version: int = -1
    """Version of the newest full ``NodeBeat`` that the driver has; the node sends a full beat if
    its own version differs."""
    run_id: str = ""
    echo_ns: int = 0
    """``NodeBeat.sent_ns`` of the beat that this one answers; 0 if it answers none."""
    run_ns: int = 0
    """The run's clock when it was answered, in ns."""
    measured: tuple[int, int] = (-1, -1)
    """(generation, step) of the run's newest step whose metrics the driver has stored."""


class ToWorker(Message, tag="executor.to_worker/1"):
    """An order for one worker, which the executor passes on."""

    about = note(
        "driver -> executor over tcp: one per order",
        "the driver repeats it until a beat shows its effect",
    )

    epoch: int
    worker: str
    assign: Assign | None = None
    abort_generation: int | None = None
    store_generation: int = -1
    store_host: str = ""
    store_port: int = 0
    store_secret: str = ""
    steer: Steer | None = None
    run_id: str = ""


class KillWorker(Message, tag="executor.kill_worker/1"):
    """Asks the executor to end a worker with SIGKILL."""

    about = note(
        "driver -> executor over tcp: one per worker and recovery",
        "repeated until the worker is gone",
    )

    epoch: int
    worker: str
    run_id: str = ""


class SaveSnapshots(Message, tag="executor.save_snapshots/1"):
    """Has the node's checkpoint store make the newest snapshot in memory durable.

    The ranks are not needed: an end was announced, and they do not step.
    """

    about = note(
        "driver -> executor over tcp: while an announced end waits for ranks that do not step, "
        "and at the driver's end",
        "the driver sends it again; a store that is asked to end does it by itself",
    )

    epoch: int
    run_id: str = ""


class ReadSeals(Message, tag="executor.read_seals/1"):
    """Asks which snapshots the node's arenas hold."""

    about = note("driver -> executor over tcp: once per recovery", "repeated until `Seals` arrives")

    epoch: int
    generation: int
    run_id: str = ""


class RestartService(Message, tag="executor.restart_service/1"):
    """Asks the executor to end a service of the node and to start it again."""

    about = note(
        "driver -> executor over tcp: when a verdict blames a service",
        "the verdict repeats until it is answered",
    )

    run_id: str
    epoch: int
    service: str
    reason: str
    pid: int = 0
    """The process to end; an order that comes late must not end its successor. 0: any."""


class CheckNode(Message, tag="executor.check_node/1"):
    """Asks for a check of the machine: ``headway health check``."""

    about = note(
        "driver -> executor over tcp: before it relies on a machine",
        "the driver sends it again until `NodeBeat` has a result",
    )

    run_id: str
    epoch: int
    number: int
    """Grows with each check of the node; one that has been begun is not begun again, and a later
    one ends it."""


class StopRun(Message, tag="executor.stop_run/1"):
    """The run has ended: stop its processes on the node, save events and clean up."""

    about = note(
        "console or driver -> executor over tcp: once at the end of a run",
        "the driver repeats it while it is running, then the engine stops the node",
    )

    epoch: int
    outcome: str
    run_id: str = ""


class AttachRun(Message, tag="executor.attach_run/1"):
    """Asks a node to carry a run. Refused while the node carries another one."""

    about = request(
        "console -> executor over tcp: once per run and node", "sent again; harmless twice"
    )

    run_dir: str
    is_live: bool = False
    """The run has a driver already: the node joins it and does not begin it."""


class Attached(Message, tag="executor.attached/1"):
    """The node carries the run."""

    about = reply("executor -> console over tcp: one per `AttachRun`")

    node: int


class Inject(Message, tag="executor.inject/1"):
    """Breaks something on purpose, at most once."""

    about = note("driver -> executor over tcp: one per drill", "the drill does not happen")

    epoch: int
    target: str
    """The worker of ``rank``, called ``worker``, or a service by its name."""
    fault: str
    """One of ``headway.controller.faults.faults.FAULTS``."""
    rank: int = -1
    duration_s: float = 0.0
    """How long a temporary fault lasts, 0 for its default."""
    run_id: str = ""
