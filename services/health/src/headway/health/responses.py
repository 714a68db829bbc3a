"""What the driver does about a verdict: one table from kind, action and confidence.

The monitor only advises. Its advice is followed when it is at least as certain as the table asks;
otherwise the verdict is observed, which is an answer too.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.wire.messages.health import Verdict

REPLACE_WORKER = "replace_worker"
KILL_WORKER = "kill_worker"
RESTART_SERVICE = "restart_service"
REPLACE_NODE = "replace_node"
STOP_RUN = "stop_run"
OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class Response:
    """One row: what is done about a kind of trouble when the monitor advises an action."""

    kind: str
    action: str
    does: str
    min_confidence: float
    """Below it the verdict is only observed."""
    why: str


RESPONSES: tuple[Response, ...] = (
    Response("crash", "replace_worker", REPLACE_WORKER, 0.9, "the process is gone"),
    Response("stopped", "kill_worker", KILL_WORKER, 0.9, "it cannot leave by itself"),
    Response("silence", "kill_worker", KILL_WORKER, 0.8, "a guess (0.5) gets there when repeated"),
    Response("data_stall", "restart_service", RESTART_SERVICE, 0.8, "the ranks only wait for it"),
    Response("node_silent", "replace_node", REPLACE_NODE, 0.8, "always given with 0.7"),
    Response("gpu_fault", "replace_node", REPLACE_NODE, 0.8, "the hardware needs a person"),
    Response("disk_fault", "replace_node", REPLACE_NODE, 0.8, "the disk takes no more writes"),
    Response("out_of_memory", "stop_run", STOP_RUN, 0.9, "a restart meets the same limit"),
    Response("user_error", "stop_run", STOP_RUN, 0.8, "a restart cannot help"),
    Response("gpu_fault", "replace_worker", OBSERVE, 0.0, "the worker ends by its own error"),
    Response("out_of_memory", "replace_worker", OBSERVE, 0.0, "a killed process is a crash"),
    Response("crash_report", "replace_worker", OBSERVE, 0.0, "a dead process is a crash"),
    Response("gpu_fault", "observe", OBSERVE, 0.0, "an Xid that costs nothing"),
    Response("disk_full", "observe", OBSERVE, 0.0, "a full disk ends no process"),
    Response("collective_timeout", "observe", OBSERVE, 0.0, "whoever writes it is a victim"),
    Response("peer_lost", "observe", OBSERVE, 0.0, "whoever writes it is a victim"),
    Response("network_fault", "observe", OBSERVE, 0.0, "a hang that follows has its own verdict"),
    Response("nan_loss", "observe", OBSERVE, 0.0, "the ranks count skipped steps themselves"),
)
"""Every kind and action that the monitor gives (a test holds them together). A log line alone never costs a
worker: the process itself shows whether it lives."""

_ROWS = {(row.kind, row.action): row for row in RESPONSES}


def response(verdict: Verdict) -> str:
    """What to do about an open verdict: the action in its row, ``observe`` if it is not certain enough."""
    row = _ROWS.get((verdict.kind, verdict.action))
    if row is None or verdict.confidence < row.min_confidence:
        return OBSERVE
    return row.does


def reason(verdict: Verdict) -> str:
    """Why ``response`` says what it says, in one sentence without a full stop."""
    row = _ROWS.get((verdict.kind, verdict.action))
    if row is None:
        return f"nothing is laid down for {verdict.kind} with {verdict.action!r}"
    if verdict.confidence < row.min_confidence:
        least = f"{row.min_confidence:.2f}, from which on the response is {row.does}"
        return f"its confidence {verdict.confidence:.2f} is below {least}"
    return row.why
