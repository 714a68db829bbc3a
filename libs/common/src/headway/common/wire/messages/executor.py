"""What an executor receives: from its own workers over ``ipc``, from the driver and the engine over CURVE tcp."""

from __future__ import annotations

from headway.common.wire.message import Message
from headway.common.wire.messages.worker import Assign, Steer


class WorkerBeat(Message, tag="executor.worker_beat/1"):
    """Worker -> executor, note on ipc, at 2 Hz and at every change of status; loss is tolerated, the next one
    tells all."""

    worker: str
    pid: int
    start_ticks: int
    status: str
    """``idle``, ``joining``, ``restored`` (state in place, no step yet), ``running``, ``out``, ``finished``."""
    generation: int = -1
    rank: int = -1
    step: int = 0
    """Completed optimizer steps."""
    command: int = 0
    """Newest steering command held."""
    applied: int = 0
    """Newest steering command applied by all ranks."""
    paused: bool = False


class StoreOpened(Message, tag="executor.store_opened/1"):
    """Worker of rank 0 -> executor -> driver, note, once a generation; loss ends in ``join_timeout_s`` and a
    new one."""

    generation: int
    host: str
    port: int
    secret: str = ""
    """What a client of this store must show."""


class LeftGeneration(Message, tag="executor.left_generation/1"):
    """Worker -> executor -> driver, note, once when it left a generation; a lost one is made up by the next
    beat."""

    worker: str
    generation: int
    rank: int
    reason: str
    """``aborted``, ``peer`` (a peer's failure) or ``error`` (the worker's own exception)."""
    detail: str = ""
    """The exception, one line; with ``error`` the innermost frames of the traceback."""
    bad_checkpoint: bool = False
    """The durable checkpoint that was to be restored cannot be read: an older one may be good."""
    bad_snapshot: bool = False
    """The rank's snapshot in the arena does not match its digest or layout: it must not be used."""
    is_fatal: bool = False
    """No restart mends it: the run ends with ``detail``."""


class StepMetrics(Message, tag="executor.step_metrics/1"):
    """Worker of the reporting rank -> executor -> driver, note, one a step; kept by the executor while no
    driver listens. A lost one is a gap in the curves."""

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
    """The loss or the gradient norm was not finite, so the parameters were left as they were."""


class Evaluation(Message, tag="executor.evaluation/1"):
    """Worker of the reporting rank -> executor -> driver, note, one an evaluation; kept and lost like
    ``StepMetrics``."""

    generation: int
    step: int
    loss: float
    """Mean cross-entropy per token of the validation batches, nats."""
    tokens: int


class Sample(Message, tag="executor.sample/1"):
    """Worker of the reporting rank -> executor -> driver, note, once at the end of a run; kept and lost like
    ``StepMetrics``."""

    generation: int
    tokens: tuple[int, ...]
    num_prompt_tokens: int


class DriverBeat(Message, tag="executor.driver_beat/1"):
    """Driver -> executor, note over CURVE tcp, in answer to each ``NodeBeat`` and at once when a field changes;
    loss is tolerated, the next one tells all. Silence makes an executor look at the lease."""

    epoch: int
    """Number of this driver; an executor obeys the highest it has seen."""
    host_node: int
    """The node whose executor runs driver and monitor."""
    refill: bool
    """Whether the node may fork standbys now; during a rebuild the cores belong to the survivors."""
    active: bool
    """Whether the node carries ranks; a spare keeps standbys only."""
    monitor_endpoint: str = ""
    monitor_key: str = ""
    acknowledged: int = 0
    """Newest report sequence number the driver has stored; the executor forgets up to it."""
    known_version: int = -1
    """Version of the newest full ``NodeBeat`` that the driver holds; another one than the node's own asks for
    a full beat."""
    run_id: str = ""


class ToWorker(Message, tag="executor.to_worker/1"):
    """Driver -> executor, note, one an order: pass this on; the driver repeats it until a beat shows its
    effect, so loss delays it."""

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
    """Driver -> executor, note, one a recovery and worker: SIGKILL it; repeated until it is gone, so loss
    delays it."""

    epoch: int
    worker: str
    run_id: str = ""


class ReadSeals(Message, tag="executor.read_seals/1"):
    """Driver -> executor, note, once a recovery: which snapshots do the node's arenas hold; repeated until
    ``Seals`` comes, so loss delays it."""

    epoch: int
    generation: int
    run_id: str = ""


class RestartService(Message, tag="executor.restart_service/1"):
    """Driver -> executor, note, when a verdict blames a service of the node: end it and start it again;
    the verdict repeats until it was answered, so loss delays it."""

    run_id: str
    epoch: int
    service: str
    reason: str
    pid: int = 0
    """The process to end; an order that comes late must not end its successor. 0: whichever runs."""


class StopRun(Message, tag="executor.stop_run/1"):
    """Driver or console -> executor, note, once: the run has ended; stop what runs on the node, save events,
    clean up. The driver repeats it while it lives; a lost one leaves the node up until its engine stops it."""

    epoch: int
    outcome: str
    run_id: str = ""


class AttachRun(Message, tag="executor.attach_run/1"):
    """Console -> executor, request over CURVE tcp, once a run and node: carry this run. Refused while another
    one lives on the node; loss: asked again, harmless twice."""

    run_dir: str


class Attached(Message, tag="executor.attached/1"):
    """Executor -> console, reply to ``AttachRun``; loss: asked again."""

    node: int


class Inject(Message, tag="executor.inject/1"):
    """Driver -> executor, note, one a drill: break something on purpose; carried out at most once, and not
    repeated when lost."""

    epoch: int
    target: str
    """``worker`` (with ``rank``) or the name of a service."""
    fault: str
    """One of ``headway.trainer.control.faults.FAULTS``."""
    rank: int = -1
    duration_s: float = 0.0
    """How long a fault that ends by itself lasts, 0 for its default."""
    run_id: str = ""
