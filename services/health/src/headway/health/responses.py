"""What the driver does about a verdict: one table from kind, action and confidence.

The monitor only advises. Its advice is followed if it is at least as certain as the table requires;
otherwise the verdict is only observed, which is an answer too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway.common.wire.messages.health import Verdict, VerdictAction, VerdictKind

OBSERVE: Final = "observe"
STOP_RUN: Final = "stop_run"


@dataclass(frozen=True, slots=True)
class Response:
    """One row: an action that is taken about a kind of problem if the monitor advises it."""

    kind: VerdictKind
    action: VerdictAction
    min_confidence: float
    """Below it the verdict is only observed."""
    why: str


RESPONSES: tuple[Response, ...] = (
    Response("crash", "replace_worker", 0.9, "the process is gone"),
    Response("crash", "replace_node", 0.9, "its machine has failed and would kill the next one"),
    Response("crash", "observe", 0.0, "the rank reported its error and joins the next generation"),
    Response("stopped", "kill_worker", 0.9, "it cannot leave on its own"),
    Response("silence", "kill_worker", 0.8, "it is the only rank not waiting for another"),
    Response("unexplained_hang", "restart_ranks", 0.5, "nobody is to blame"),
    Response("data_stall", "restart_service", 0.8, "the ranks only wait for it"),
    Response("node_silent", "replace_node", 0.8, "its confidence is always 0.7"),
    Response("fabric_cut", "replace_node", 0.8, "ranks there reach nobody"),
    Response("fabric_split", "observe", 0.0, "no single node is to blame"),
    Response("slow_rank", "observe", 0.0, "the run trains on, as slowly as this rank"),
    Response("link_flapping", "replace_node", 0.8, "it recurs on this link only"),
    Response("common_fault", "observe", 0.0, "many nodes share it: replacing one does not help"),
    Response("user_error", "stop_run", 0.8, "where the process has ended with it"),
    Response("gpu_fault", "observe", 0.0, "a log line; a rank that fails reports that itself"),
    Response("network_fault", "observe", 0.0, "a hang that follows has its own verdict"),
    Response("pcie_error", "observe", 0.0, "mostly corrected by the hardware"),
    Response("out_of_memory", "observe", 0.0, "a log line; a rank that fails reports that itself"),
    Response("disk_full", "observe", 0.0, "a full disk does not end a process"),
    Response("disk_fault", "observe", 0.0, "a shared mount fails on every node"),
    Response("memory_error", "observe", 0.0, "mostly corrected by the hardware"),
    Response("kernel_stall", "observe", 0.0, "a hang that follows has its own verdict"),
    Response("crash_report", "observe", 0.0, "a dead process is a crash"),
    Response("collective_timeout", "observe", 0.0, "the rank that logs it is a victim"),
    Response("peer_lost", "observe", 0.0, "the rank that logs it is a victim"),
    Response("nan_loss", "observe", 0.0, "the ranks count skipped steps themselves"),
    Response("not_finite", "observe", 0.0, "the step was skipped, and the weights are as before"),
    Response("silent_corruption", "observe", 0.0, "copies and gradients are made anew"),
    Response("clock_error", "observe", 0.0, "intervals are measured by another clock"),
    Response("host_pressure", "observe", 0.0, "a rank that slows down has its own verdict"),
    Response("unobserved", "observe", 0.0, "it shows nothing about the machine"),
)
"""Every kind and action that the monitor issues (compared by a test). A log line alone never ends a
worker, a node or a run: the processes show whether they live. What the kernel or NVML says of a
machine costs the node if it explains the end of a process for certain, and so do the counters of a
link that is lost repeatedly. A missing module ends a run that has not begun, if the driver
knows from the executor that the process of that log has ended."""

_ROWS = {(row.kind, row.action): row for row in RESPONSES}


def response(verdict: Verdict) -> VerdictAction:
    """What to do about an open verdict.

    It is the action in the verdict's row, and ``observe`` if the verdict is not certain enough.
    """
    row = _ROWS.get((verdict.kind, verdict.action))
    if row is None or verdict.confidence < row.min_confidence:
        return OBSERVE
    return row.action


def reason(verdict: Verdict) -> str:
    """The reason of ``response``, in one sentence without a full stop."""
    row = _ROWS.get((verdict.kind, verdict.action))
    if row is None:
        return f"there is no rule for {verdict.kind} with {verdict.action!r}"
    if verdict.confidence < row.min_confidence:
        least = f"{row.min_confidence:.2f}, from which on the response is {row.action}"
        return f"its confidence {verdict.confidence:.2f} is below {least}"
    return row.why
