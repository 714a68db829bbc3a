"""What the health monitor receives, and what it concludes from it.

It receives beats of the agents, and concludes verdicts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from headway.common.wire.about import PartOf, note
from headway.common.wire.message import Message

RankPhase = Literal["step", "join", "restore", "eval", "sample"]
DataWait = Literal["daemon", "readers", "ready", ""]
Waits = Literal["others", "device", ""]
EvidenceSource = Literal["proc", "flight", "stack", "log", "beat", "host", "kernel"]
FindingSource = Literal[
    "kernel", "rank", "nccl", "service", "gpu", "nic", "net", "host", "clock", "mount"
]
FindingSubject = Literal["rank", "gpu", "nic", "node", "service", "mount", "peer"]
"""``peer``: an address in the ranks' network, as seen from the node."""
FindingKind = Literal[
    "user_error", "gpu_fault", "network_fault", "pcie_error", "out_of_memory", "disk_full",
    "disk_fault", "memory_error", "kernel_stall", "crash_report", "collective_timeout",
    "peer_lost", "nan_loss", "not_finite", "silent_corruption", "clock_error", "host_pressure",
    "unobserved",
]  # fmt: skip
"""What a line or a counter can show. ``unobserved``: something cannot be read, which proves
nothing about the machine."""
VerdictKind = Literal[
    "crash", "stopped", "silence", "unexplained_hang", "data_stall", "node_silent", "fabric_cut",
    "fabric_split", "slow_rank", "link_flapping", "common_fault", FindingKind,
]  # fmt: skip
"""``link_flapping``: one link alone was lost several times within minutes. ``common_fault``: many
nodes have the same trouble at once, and none of them is at fault."""
VerdictSubject = Literal[FindingSubject, "pair", "domain", "program", "data"]
"""``pair``: what is between two nodes or ranks. ``domain``: what several share, such as a switch or
a group, or all ranks. ``program``: the user's own code. ``data``: samples, or their storage."""
Cause = Literal[
    "data_stall", "checkpoint_write", "host_stall", "device_hang", "collective_mismatch",
    "deadlock", "network", "link_flap", "link_fault", "gpu_lost", "gpu_fault", "memory_fault",
    "out_of_memory", "disk_fault", "machine_fault", "program_error", "ended_early", "unreported",
    "compute", "data", "garbage_collection", "stage_imbalance", "sequence_imbalance", "host_noise",
    "launch_skew", "unknown", "none",
]  # fmt: skip
"""Why something is wrong, in verdicts and in diagnoses of folders."""
VerdictAction = Literal[
    "replace_worker", "kill_worker", "restart_ranks", "restart_service", "replace_node",
    "stop_run", "observe",
]  # fmt: skip


EndKind = Literal["killed", "out_of_memory", "stopped", "exited", "raised", "ordered"]
"""How a rank's process ended; ``raised``: it lives, and left its generation by an error."""


class DevicePlace(NamedTuple):
    """The newest flight record that a rank's device has passed."""

    action: str
    """Name of its action; empty before the first one, or if the ring no longer has it."""
    step: int
    micro_batch: int
    is_end: bool
    """Whether the device has passed its end, else its beginning."""
    age_s: float
    """Since the device was first seen there."""
    asked_ago_s: float
    """Since the device last answered at all."""


class WorkerSignals(Message, tag="health.worker_signals/1"):
    """What an agent observes of one rank's process and flight ring."""

    about = PartOf("AgentBeat")

    rank: int
    pid: int
    start_ticks: int
    state: str
    """The kernel's letter in /proc, whose set is the kernel's; ``gone`` without such a process,
    ``done`` if it exited with code 0."""
    generation: int
    head: int
    """Flight records begun so far, which grows while the rank works."""
    step: int
    """Index of the last finished optimizer step, -1 before the first."""
    step_s: float
    """Duration of that step, 0.0 before the first."""
    num_steps: int
    """Steps finished in this generation, by this process or an earlier one of the rank."""
    median_step_s: float
    """Median duration of the last ``HealthConfig.median_window_steps`` steps."""
    age_s: float
    """Time since the flight ring last changed, on the node's own monotonic clock."""
    open_kind: str = ""
    """Name of the newest action that has begun and not ended; empty between actions."""
    open_micro_batch: int = -1
    phase: RankPhase = "step"
    """The action that may take long while one is open, else ``step``."""
    rss_bytes: int = 0
    pss_bytes: int = 0
    """Proportional share, refreshed every ``HealthConfig.pss_interval_s``; 0 if unknown."""
    num_threads: int = 0
    num_fds: int = 0
    cpu_fraction: float = 0.0
    """Cores in use since the previous beat."""
    exit_code: int | None = None
    """From the last words of a process that has ended; None when it left none."""
    reason: str = ""
    """From the last words."""
    data_wait: DataWait = ""
    """What the rank waits for in its data ring: for its daemon, which has no data for it; for
    another reader, which keeps the ring full; for nothing. Empty while its ring is unknown."""
    data_age_s: float = -1.0
    """Time since data last arrived in that ring, -1 while the ring is unknown."""
    data_pid: int = 0
    """The process that fills the ring, 0 while there is none."""
    alive_age_s: float = -1.0
    """Time since a thread of the process that waits for no other rank last showed that it runs;
    -1 without such a thread."""
    waits: Waits = ""
    """For others: its main thread waits for other ranks, or for the driver between generations.
    For the device: it only launches work, so that where it stands proves nothing."""
    step_age_s: float = -1.0
    """How long the step under way has lasted, -1 outside of one."""
    packed_groups: bytes = b""
    """Its group table, by ``headway.common.wire.group_table``: of most beats nobody reads it."""
    device: DevicePlace | None = None
    """None on a CPU."""
    place: str = ""
    """Where its main thread is in the program, innermost call first, while a rank of its node may
    hang: ``shards.py:88 read < loader.py:121 load``; empty until it has answered."""


class HostSignals(Message, tag="health.host_signals/1"):
    """What an agent observes of the node as a whole."""

    about = PartOf("AgentBeat")

    load_1m: float = 0.0
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    pressure: dict[str, float] = msgspec.field(default_factory=dict)
    """Pressure stall information: ``cpu.some``, ``memory.full``... -> share of
    the last 10 s, 0..1."""
    disk_free_bytes: int = -1
    """Free space of the log's file system; -1 if unknown, or while that file
    system does not answer."""
    shm_free_bytes: int = -1


class Finding(Message, tag="health.finding/1"):
    """A line or a counter of the node that matched a rule.

    It is included in several beats, so that losing one beat does not lose it.
    """

    about = PartOf("AgentBeat")

    rule: str
    """Name of the rule, shipped in ``headway.health.rules`` or the run's own."""
    source: FindingSource
    """Where it was read."""
    subject: FindingSubject = "node"
    """What it is about."""
    name: str = ""
    """Which one: the PCI address of a GPU, ``mlx5_0/1``, ``eth0``, a path, an address;
    empty if unknown."""
    uuid: str = ""
    """The GPU's, if it is known."""
    file: str = ""
    """The log, ``/dev/kmsg``, or the file of the counter in sysfs."""
    inode: int = 0
    """Inode of the log file; for the kernel's files, a number of this boot."""
    offset: int = 0
    """Grows in each file: a line's byte offset, the kernel's sequence number, or the time of the
    change. (file, inode, offset) identifies a repetition."""
    line: str = ""
    """The matched line, or a sentence about the counter."""
    rank: int = -1
    """From the line or the file's name; -1 if neither has it."""
    detail: str = ""
    """What else the rule's pattern captured: an error number, a device, a path."""
    count: int = 1
    """How many lines or events it stands for."""
    age_s: float = 0.0
    """Since it happened, when the beat was made."""


class Gpu(Message, tag="health.gpu/1"):
    """A GPU of a node, as NVML names it."""

    about = PartOf("Machine")

    index: int
    pci: str
    """PCI address, such as ``0000:3b:00.0``."""
    uuid: str = ""
    name: str = ""
    """The product, such as ``NVIDIA H100 80GB HBM3``."""


class NicPort(Message, tag="health.nic_port/1"):
    """A port of an InfiniBand or RoCE adapter."""

    about = PartOf("Machine")

    name: str
    """The adapter, such as ``mlx5_0``."""
    port: int
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet``."""
    rate: str = ""
    """Rate as the kernel prints it: ``400 Gb/sec (4X NDR)``."""
    firmware: str = ""


class Machine(Message, tag="health.machine/1"):
    """What a node consists of. Fields are empty where the node does not show them."""

    about = PartOf("AgentBeat")

    host_type: str = ""
    """The product name of the machine or of the cloud's instance type (SMBIOS)."""
    kernel: str = ""
    driver: str = ""
    """Version of the GPUs' driver."""
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[NicPort, ...] = ()


class WorkerEnd(Message, tag="health.worker_end/1"):
    """How a process that had a rank ended, or left its generation by an error.

    Its executor notes it in shared memory before it acts on it; the agent repeats it for a minute.
    """

    about = PartOf("AgentBeat")

    worker: str
    rank: int
    generation: int
    pid: int
    start_ticks: int
    how: EndKind
    exit_code: int | None = None
    reason: str = ""
    """Both from its last words; or the error by which it left its generation."""
    at_ns: int = 0
    age_s: float = 0.0
    """From ``at_ns``, when its executor saw it by the node's monotonic clock, to the beat."""


class SilentPeer(Message, tag="health.silent_peer/1"):
    """An address that does not acknowledge what the ranks of a node have sent to it."""

    about = PartOf("AgentBeat")

    address: str
    """The peer's address in the ranks' network."""
    num_repeats: int
    """How often the oldest segment was sent again, at growing intervals."""
    age_s: float
    """Since the agent first saw it."""


class AgentBeat(Message, tag="health.agent_beat/1"):
    """The complete state of a node, as its agent sees it."""

    about = note("agent -> monitor over tcp: 2 Hz", "the next beat carries the whole state again")

    run_id: str
    node: int
    pid: int
    start_ticks: int
    sequence: int
    workers: tuple[WorkerSignals, ...] = ()
    host: HostSignals = HostSignals()
    findings: tuple[Finding, ...] = ()
    fabric_address: str = ""
    """Where the ranks of the node are reached by others; empty on loopback."""
    silent_peers: tuple[SilentPeer, ...] = ()
    """Looked for while a rank makes no progress, as the next one."""
    reached: tuple[str, ...] = ()
    """Addresses of the ranks' peers that answer."""
    num_asked: int = 0
    """Number of peers of which it is known whether they answer."""
    machine: Machine | None = None
    """In the first beat of an agent, once a minute, and when it has changed."""
    ends: tuple[WorkerEnd, ...] = ()
    """Newest ends of processes that had a rank."""


class Evidence(Message, tag="health.evidence/1"):
    """One observed fact that supports a verdict."""

    about = PartOf("Verdict")

    source: EvidenceSource
    name: str
    value: str
    unix_s: float = 0.0
    """When it was observed, by the monitor's clock."""


class Verdict(Message, tag="health.verdict/2"):
    """One fault that the monitor found, and what became of it; also a line of ``verdicts.jsonl``.

    A higher ``revision`` of the same ``id`` replaces the earlier one: more is known, or the driver
    has answered. ``is_open = False`` closes the episode; after that the same trouble opens a new
    one. An open verdict is repeated until ``VerdictTaken`` says what the driver did.
    """

    about = note(
        "monitor -> driver over tcp: once a second while open and unanswered",
        "it arrives with the next repetition",
    )

    id: str
    revision: int
    kind: VerdictKind
    """What was observed."""
    cause: Cause = "unknown"
    """Why, as far as that is known."""
    is_open: bool
    run_id: str
    subject: VerdictSubject = "domain"
    """What is at fault."""
    name: str = ""
    """Which one, such as ``mlx5_0/1``, the PCI address of a GPU, or the members of a pair; empty if
    rank or node say it."""
    node: int
    """-1 if no node is meant."""
    rank: int = -1
    pid: int = 0
    generation: int = -1
    confidence: float = 0.0
    """0..1."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """What it may be instead, each with its probability."""
    action: VerdictAction = "observe"
    taken: str = ""
    """What the driver did about it; empty until it has answered."""
    remedy: str = ""
    """The action for people: one sentence."""
    evidence: tuple[Evidence, ...] = ()
    since_unix_s: float = 0.0
    """When the trouble began, by the monitor's clock; 0 if unknown."""
    since_error_s: float = 0.0
    """It began at most this much earlier or later."""
    unix_s: float = 0.0
    """Wall time of this revision."""
    silence_s: float = 0.0
    """For a hang that may still pass, how long nothing had moved when it was named.

    The driver waits for ``recovery.hang_act_s`` before it acts; 0 asks it to act at once.
    """

    @property
    def service(self) -> str:
        """The faulty service, empty if something else is at fault."""
        return self.name if self.subject == "service" else ""


class VerdictTaken(Message, tag="health.verdict_taken/1"):
    """What the driver did about a verdict."""

    about = note(
        "driver -> monitor over tcp: one per open `Verdict` received",
        "sent again when the verdict repeats",
    )

    id: str
    revision: int
    taken: str
    """For example ``replaced the worker`` or ``none: the run is paused``; empty while undecided."""
