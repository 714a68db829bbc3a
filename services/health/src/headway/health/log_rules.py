"""Which log lines indicate a problem, its kind, and what a person should do about it, as data.

Order matters: the first rule that matches a line wins, so specific rules come before general ones.
A line is what some program has printed, at some time, about some machine: it never ends a worker, a
node or a run, and every rule's action is ``observe``. The one exception is a missing module, on
which a process that has ended ends the run's start (see ``responses``). A rule whose line only
shows that somebody *else* failed has a low confidence: a rank that reports "closed by peer" is a
victim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headway.common.wire.messages.health import LogKind, VerdictAction


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for a kind of problem."""

    action: VerdictAction
    remedy: str
    confidence: float


@dataclass(frozen=True, slots=True)
class LogRule:
    """A rule that finds a kind of fault in log lines.

    ``contains`` is a cheap lower-case test that runs before ``pattern``, whose groups become the
    detail. A group ``device`` names what the line is about: each device has its own verdict.
    """

    name: str
    kind: LogKind
    contains: tuple[str, ...]
    pattern: re.Pattern[str]
    advice: Advice = field(repr=False)

    @property
    def names_device(self) -> bool:
        """Whether its lines are about a device that they name."""
        return "device" in self.pattern.groupindex


def _rule(
    name: str,
    kind: LogKind,
    contains: str,
    pattern: str,
    confidence: float,
    remedy: str,
    action: VerdictAction = "observe",
) -> LogRule:
    return LogRule(
        name,
        kind,
        tuple(contains.split("|")),
        re.compile(pattern, re.IGNORECASE),
        Advice(action, remedy, confidence),
    )


_XIDS_OF_PROGRAMS = frozenset(
    (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 94)
)
_XIDS_OF_GPUS = frozenset(
    (46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 152), 154, 155, 156,
     158)
)  # fmt: skip


def xid_remedy(number: str) -> str:
    """What NVIDIA's Xid catalogue advises for an Xid.

    It is to restart the program, or reset the GPU or the machine; or nothing, for numbers that only
    follow another error and for unknown ones.
    """
    xid = int(number) if number.isdigit() else -1
    if xid in _XIDS_OF_PROGRAMS:
        return "mostly a fault of the program; if it repeats on the same GPU, check that GPU"
    if xid in _XIDS_OF_GPUS:
        return "reset this GPU, or drain its node and power-cycle it"
    return "look it up in NVIDIA's Xid catalogue; by itself it calls for nothing"


_PCI = r"(?:PCI:)?(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)"

LOG_RULES: tuple[LogRule, ...] = (
    _rule(
        "gpu_xid",
        "gpu_fault",
        "xid",
        rf"NVRM: Xid \({_PCI}\): (\d+)",
        0.9,
        "look the Xid up in NVIDIA's catalogue",  # replaced by ``xid_remedy``
    ),
    _rule(
        "switch_xid",
        "network_fault",
        "sxid",
        rf"\bSXid \({_PCI}\): (\d+)",
        0.8,
        "an NVSwitch reports this SXid: look it up in the fabric manager's guide; a fatal one "
        "needs a reset of all GPUs and switches of the node",
    ),
    _rule(
        "gpu_lost",
        "gpu_fault",
        "fallen off the bus",
        rf"(?:(?:GPU )?(?:at )?{_PCI}.*has fallen off the bus|fallen off the bus)",
        0.95,
        "the GPU has fallen off the bus: drain its node and power-cycle it",
    ),
    _rule(
        "gpu_ecc",
        "gpu_fault",
        "uncorrectable",
        r"(?:CUDA error: )?uncorrectable (?:NVLink|ECC) error",
        0.95,
        "if the rank's own end confirms it, drain the node and run its memory checks",
    ),
    _rule(
        "pcie_error",
        "pcie_error",
        "aer:",
        r"(?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): AER: "
        r"(?:Multiple )?(?:Corrected|Uncorrect\w+|can't recover)",
        0.5,
        "corrected errors only slow the device down; others, or very many, call for a look at its "
        "slot and riser",
    ),
    _rule(
        "cuda_oom",
        "out_of_memory",
        "out of memory|outofmemoryerror",
        r"(CUDA out of memory|CUDA error: out of memory|Cuda failure (?:\d+ )?'out of memory'|"
        r"OutOfMemoryError)",
        0.9,
        "if a rank ends by it: lower train.micro_batch_size or spread the model over more ranks",
    ),
    _rule(
        "host_oom",
        "out_of_memory",
        "out of memory|oom-kill",
        r"(?:Out of memory: Killed process|oom-kill:.*pid=|"
        r"Memory cgroup out of memory: Killed process)\D*(\d+)",
        0.9,
        "the kernel killed a process to free memory: reduce the load on the host or add memory",
    ),
    _rule(
        "host_alloc",
        "out_of_memory",
        "cannot allocate memory|memoryerror",
        r"(^MemoryError|Cannot allocate memory)",
        0.8,
        "host memory is exhausted: check the node's exporter for the process that grew",
    ),
    _rule(
        "disk_full",
        "disk_full",
        "no space left",
        r"(\[Errno 28\]|No space left on device)",
        0.95,
        "free space on the file system in the line, or lower ckpt.keep; the run continues "
        "meanwhile",
    ),
    _rule(
        "read_only_disk",
        "disk_fault",
        "read-only file system|input/output error",
        r"(Read-only file system|Input/output error)",
        0.6,
        "check the disk or mount in the line",
    ),
    _rule(
        "mount_silent",
        "disk_fault",
        "not responding",
        r"\bnfs4?: server (\S+) not responding",
        0.8,
        "check this file server and the network to it; whatever reads from it waits",
    ),
    _rule(
        "nccl_timeout",
        "collective_timeout",
        "timeout|timed out",
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)",
        0.4,
        "a member never joined this collective: inspect the rank without this line",
    ),
    _rule(
        "nccl_stuck",
        "collective_timeout",
        "watchdog",
        r"ProcessGroupNCCL's watchdog got stuck for (\d+) seconds",
        0.4,
        "the process could not watch its collectives: another rank, its GPU or its interpreter "
        "may hang",
    ),
    _rule(
        "gloo_timeout",
        "collective_timeout",
        "timed out waiting",
        r"gloo.*Timed out waiting (\d+)ms",
        0.4,
        "a member never joined this collective: inspect the rank without this line",
    ),
    _rule(
        "nccl_completion",
        "network_fault",
        "got completion",
        r"NCCL WARN NET/IB ?: ?Got completion from peer (\S+) with (?:status|error)[ =]*(\d+)",
        0.5,
        "an InfiniBand transfer to or from the peer in the line failed (12: no answer): check the "
        "ports of both nodes",
    ),
    _rule(
        "nccl_peer",
        "peer_lost",
        "nccl|remote peer|remote process",
        r"(ncclRemoteError|NCCL WARN .*(?:Connection (?:closed|reset)|"
        r"remote peer)|Connection closed by remote peer|remote process exited)",
        0.3,
        "another rank ended or left first; by itself this calls for nothing",
    ),
    _rule(
        "gloo_peer",
        "peer_lost",
        "peer",
        r"(Connection (?:closed|reset) by peer)",
        0.3,
        "another rank ended or left first; by itself this calls for nothing",
    ),
    _rule(
        "nccl_system",
        "network_fault",
        "nccl",
        r"NCCL WARN (?:NET/IB|Call to ibv_\w+).*?(error|failed|timeout)",
        0.7,
        "check the node's InfiniBand port counters and cable",
    ),
    _rule(
        "link_down",
        "network_fault",
        "link down|link is down|definitely down",
        r"\b(?:mlx\d_core|bnxt_en|ixgbe|i40e|ice|e1000e|igb|tg3|hfi1)\b.*?"
        r"(?P<device>[\w.-]+): (?:NIC )?Link (?:is )?down|"
        r"\bbond\w*: .*?link status definitely down",
        0.7,
        "check the cable, the transceiver and the switch port of this interface",
    ),
    _rule(
        "soft_lockup",
        "kernel_stall",
        "lockup",
        r"(?:soft|hard) lockup.*?CPU#?\s?(\d+)",
        0.7,
        "the kernel of this node made no progress: look at its load, drivers and hypervisor",
    ),
    _rule(
        "hung_task",
        "kernel_stall",
        "blocked for more than",
        r"INFO: task (\S+) blocked for more than \d+ seconds",
        0.7,
        "a process waits in the kernel, mostly for a disk or a mount: check those of this node",
    ),
    _rule(
        "machine_check",
        "memory_error",
        "hardware error|edac",
        r"(mce: \[Hardware Error\]|EDAC \S+: \d+ [CU]E)",
        0.6,
        "corrected errors do no harm; if they grow, or are not corrected, test the node's memory",
    ),
    _rule(
        "nan_loss",
        "nan_loss",
        "nan|inf",
        r"(?:\bloss|\bgrad_norm|\bgrad(?:ient)? norm)\"?\s*(?:[:=]|is)?\s*(nan|[-+]?inf)\b",
        0.9,
        "one skipped step does no harm; if they repeat, lower the learning rate or go back to a "
        "checkpoint before them",
    ),
    _rule(
        "cuda_error",
        "gpu_fault",
        "cuda error|cuda failure|cudnn",
        r"(CUDA error: (?!out of memory)[\w ]+|CUDNN_STATUS_(?!SUCCESS)\w+|"
        r"Cuda failure (?:\d+ )?'[^']+')",
        0.7,
        "the rank that printed it ends by itself; if the same GPU repeats it, drain the node",
    ),
    _rule(
        "segfault",
        "crash_report",
        "segmentation fault|segfault|fatal python error",
        r"(Segmentation fault|segfault at|"
        r"Fatal Python error: [\w ]+)",
        0.8,
        "the following lines have the stack of the process",
    ),
    _rule(
        "bus_error",
        "crash_report",
        "bus error",
        r"(\bBus error\b)",
        0.8,
        "the process used memory whose file was cut short: check the free space of /dev/shm",
    ),
    _rule(
        "missing_module",
        "user_error",
        "modulenotfounderror|importerror",
        r"^(?:ModuleNotFoundError|ImportError): (.*)",
        0.8,
        "install the missing module: a restart does not help",
        "stop_run",
    ),
)
"""Line formats as printed by PyTorch 2.x, gloo, NCCL 2.x, CPython and the Linux kernel."""

RULES_BY_NAME: dict[str, LogRule] = {rule.name: rule for rule in LOG_RULES}
