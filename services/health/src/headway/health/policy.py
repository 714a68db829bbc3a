"""Which log lines indicate a problem, its kind, and what to do about it, as data.

Order matters: the first rule that matches a line wins, so specific rules come before general ones.
``action`` is for the driver, ``remedy`` for people. A rule whose line only shows that somebody
*else* failed has a low confidence and the action ``observe``: a rank that reports "closed by peer"
is a victim. What the driver does about each kind and action is in ``responses``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for a kind of problem."""

    action: str
    remedy: str
    confidence: float


@dataclass(frozen=True, slots=True)
class LogRule:
    """``contains`` is a cheap lower-case test that runs before ``pattern``; group 1 of
    it becomes the detail."""

    name: str
    kind: str
    contains: tuple[str, ...]
    pattern: re.Pattern[str]
    advice: Advice = field(repr=False)


def _rule(
    name: str, kind: str, contains: str, pattern: str, action: str, confidence: float, remedy: str
) -> LogRule:
    return LogRule(
        name,
        kind,
        tuple(contains.split("|")),
        re.compile(pattern, re.IGNORECASE),
        Advice(action, remedy, confidence),
    )


PROCESS_ADVICE: dict[str, Advice] = {
    "crash": Advice(
        "replace_worker",
        "replace the worker by a standby; its recorded exit reason and the end of its log say why",
        0.99,
    ),
    "stopped": Advice(
        "kill_worker",
        "send SIGKILL and replace the worker by a standby; a stopped process ignores SIGTERM",
        0.95,
    ),
    "silence": Advice(
        "kill_worker",
        "send SIGKILL and replace the worker by a standby; keep its flight ring",
        0.8,
    ),
    "unexplained_hang": Advice(
        "restart_ranks",
        "all ranks start again together where they are, and nobody is blamed; "
        "the flight records of the run show where each of them stood",
        0.5,
    ),
    "node_silent": Advice(
        "replace_node", "ask the executor over tcp; if it is silent too, use the spare node", 0.7
    ),
    "fabric_cut": Advice(
        "replace_node",
        "nodes {pairs} do not reach each other in the ranks' network (launch.fabric): check its "
        "cables, switch and firewall",
        0.9,
    ),
    "fabric_split": Advice(
        "observe",
        "nodes {pairs} do not reach each other in the ranks' network (launch.fabric), and no node "
        "belongs to all of these pairs: no spare helps; check its switches and firewalls",
        0.9,
    ),
}
"""Kinds that come from processes, beats and connections, not from logs."""

DATA_ADVICE = Advice(
    "restart_service",
    "restart the {name}; its ranks wait for data and need no replacement",
    0.9,
)
"""Remedy of the kind ``data_stall``; ``name`` is ``dataloader of node N``."""

XID_ACTIONS: dict[int, str] = {
    **dict.fromkeys(
        (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 94),
        "replace_worker",
    ),
    **dict.fromkeys(
        (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), "replace_node"
    ),
    **dict.fromkeys((48, 74, 79, *range(144, 151), 154), "replace_node"),
    **dict.fromkeys(
        (37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161),
        "observe",
    ),
}
"""Xid number -> action (NVIDIA's Xid catalogue: restart the application, reset the GPU or
the machine, ignore). Application codes do not cost a node at first: 13 and 31 are mostly
a bug of the program."""

LOG_RULES: tuple[LogRule, ...] = (
    _rule(
        "gpu_xid",
        "gpu_fault",
        "xid",
        r"NVRM: Xid \((?:PCI:)?[0-9a-f:.]+\): (\d+)",
        "observe",
        0.9,
        "look the Xid up in NVIDIA's catalogue; reset the GPU or drain the node as it says",
    ),
    _rule(
        "gpu_lost",
        "gpu_fault",
        "fallen off the bus",
        r"GPU (?:at )?.*has fallen off the bus",
        "replace_node",
        0.95,
        "drain the node and power-cycle it",
    ),
    _rule(
        "gpu_ecc",
        "gpu_fault",
        "uncorrectable",
        r"(?:CUDA error: )?uncorrectable (?:NVLink|ECC) error",
        "replace_node",
        0.95,
        "drain the node and run its memory checks",
    ),
    _rule(
        "cuda_oom",
        "out_of_memory",
        "out of memory",
        r"(CUDA out of memory|CUDA error: out of memory|OutOfMemoryError)",
        "stop_run",
        0.9,
        "a restart would fail again: lower train.micro_batch_size or spread the model over more "
        "ranks",
    ),
    _rule(
        "host_oom",
        "out_of_memory",
        "out of memory|oom-kill",
        r"(?:Out of memory: Killed process|oom-kill:.*pid=|"
        r"Memory cgroup out of memory: Killed process)\D*(\d+)",
        "replace_worker",
        0.9,
        "the kernel killed a process to free memory: reduce the load on the host or add memory",
    ),
    _rule(
        "host_alloc",
        "out_of_memory",
        "cannot allocate memory|memoryerror",
        r"(^MemoryError|Cannot allocate memory)",
        "replace_worker",
        0.8,
        "host memory is exhausted: check the node's exporter for the process that grew",
    ),
    _rule(
        "disk_full",
        "disk_full",
        "no space left",
        r"(\[Errno 28\]|No space left on device)",
        "observe",
        0.95,
        "free space on the file system in the line, or lower ckpt.keep; the run continues "
        "meanwhile",
    ),
    _rule(
        "read_only_disk",
        "disk_fault",
        "read-only file system|input/output error",
        r"(Read-only file system|Input/output error)",
        "replace_node",
        0.8,
        "the disk failed: drain the node",
    ),
    _rule(
        "nccl_timeout",
        "collective_timeout",
        "timeout|timed out",
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)",
        "observe",
        0.4,
        "a member never joined this collective: inspect the rank without this line",
    ),
    _rule(
        "gloo_timeout",
        "collective_timeout",
        "timed out waiting",
        r"gloo.*Timed out waiting (\d+)ms",
        "observe",
        0.4,
        "a member never joined this collective: inspect the rank without this line",
    ),
    _rule(
        "nccl_peer",
        "peer_lost",
        "nccl|remote peer",
        r"(ncclRemoteError|NCCL WARN .*(?:Connection (?:closed|reset)|"
        r"remote peer)|Connection closed by remote peer)",
        "observe",
        0.3,
        "a peer failed: its own verdict has the cause",
    ),
    _rule(
        "gloo_peer",
        "peer_lost",
        "peer",
        r"(Connection (?:closed|reset) by peer)",
        "observe",
        0.3,
        "a peer failed: its own verdict has the cause",
    ),
    _rule(
        "nccl_system",
        "network_fault",
        "nccl",
        r"NCCL WARN (?:NET/IB|Call to ibv_\w+).*?(error|failed|timeout)",
        "observe",
        0.7,
        "check the node's InfiniBand port counters and cable",
    ),
    _rule(
        "nan_loss",
        "nan_loss",
        "nan|inf",
        r"(?:\bloss|\bgrad_norm|\bgrad(?:ient)? norm)\"?\s*(?:[:=]|is)?\s*(nan|[-+]?inf)\b",
        "observe",
        0.9,
        "one skipped step does no harm; if they repeat, lower the learning rate or go back to a "
        "checkpoint before them",
    ),
    _rule(
        "cuda_error",
        "gpu_fault",
        "cuda error|cudnn",
        r"(CUDA error: (?!out of memory)[\w ]+|CUDNN_STATUS_(?!SUCCESS)\w+)",
        "replace_worker",
        0.7,
        "restart the rank; if the same GPU repeats it, drain the node",
    ),
    _rule(
        "segfault",
        "crash_report",
        "segmentation fault|segfault|fatal python error",
        r"(Segmentation fault|segfault at|"
        r"Fatal Python error: [\w ]+)",
        "replace_worker",
        0.8,
        "restart the rank; the following lines have the stack",
    ),
    _rule(
        "missing_module",
        "user_error",
        "modulenotfounderror|importerror",
        r"^(?:ModuleNotFoundError|ImportError): (.*)",
        "stop_run",
        0.8,
        "install the missing module: a restart does not help",
    ),
)
"""Line formats as printed by PyTorch 2.x, gloo, NCCL 2.x, CPython and the Linux kernel."""

RULES_BY_NAME: dict[str, LogRule] = {rule.name: rule for rule in LOG_RULES}


def match(line: str) -> tuple[LogRule, str] | None:
    """The first rule that matches a log line and what its pattern captured, or None."""
    lowered = line.lower()
    for rule in LOG_RULES:
        if not any(word in lowered for word in rule.contains):
            continue
        found = rule.pattern.search(line)
        if found is not None:
            return rule, (found.group(1) or "") if found.re.groups else ""
    return None


def advice(rule: LogRule, detail: str) -> Advice:
    """The advice for a matched line; an Xid's depends on its number (unknown
    ones are only observed)."""
    if rule.name != "gpu_xid" or not detail.isdigit():
        return rule.advice
    return Advice(
        XID_ACTIONS.get(int(detail), "observe"), rule.advice.remedy, rule.advice.confidence
    )
