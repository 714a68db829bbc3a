"""States of pods and Jobs in words. Pure: takes objects as the API server sends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""
JobState = Literal["absent", "running", "complete", "failed"]
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_SHOWN = 200
_NAME = re.compile(r".*-(\d+)-[a-z0-9]+")


def node_of(pod: Mapping[str, Any]) -> int:
    """The number of the node that a pod is, -1 if it cannot be seen."""
    metadata = pod["metadata"]
    text = (metadata.get("annotations") or {}).get(INDEX, "")
    if not text and (found := _NAME.fullmatch(metadata.get("name", ""))):
        text = found[1]
    return int(text) if text.isascii() and text.isdecimal() else -1


def is_up(pod: Mapping[str, Any]) -> bool:
    """Whether its containers run and nobody has asked it to end."""
    is_ending = pod["metadata"].get("deletionTimestamp")
    return not is_ending and _status(pod).get("phase") == "Running"


def of_pod(pod: Mapping[str, Any]) -> str:
    """What a pod is doing, or what it waits for."""
    status = _status(pod)
    phase = status.get("phase", "")
    if phase == "Succeeded":
        return "has ended"
    if phase == "Failed":
        return _failed(status)
    if pod["metadata"].get("deletionTimestamp"):
        return "is ending"
    if phase == "Running":
        is_ready = _condition(status, "Ready").get("status") != "False"
        return "runs" if is_ready else "runs, but its machine may be lost"
    if phase == "Unknown":
        return "is unknown: its machine does not answer"
    return _pending(status)


def _pending(status: Mapping[str, Any]) -> str:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"waits for a machine: {_line(scheduled, 'none fits')}"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _IMAGE:
            image = container.get("image", "")
            return f"cannot pull its image {image}: {_line(waiting, reason)}"
        if waiting.get("message"):
            return f"waits: {reason}: {_line(waiting, '')}"
    return "is starting" if scheduled else "waits for a machine"


def _failed(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended:
            reason = ended.get("reason", "")
            why = f" ({reason})" if reason not in ("", "Error") else ""
            return f"failed with exit code {ended.get('exitCode')}{why}"
    reason = status.get("reason") or "unknown reason"
    return f"failed: {reason}: {_line(status, '')}".rstrip(": ")


def of_job(job: Mapping[str, Any] | None) -> JobState:
    """Where a Job stands."""
    if job is None:
        return "absent"
    if _condition(_status(job), "Complete").get("status") == "True":
        return "complete"
    if _condition(_status(job), "Failed").get("status") == "True":
        return "failed"
    return "running"


def why_failed(job: Mapping[str, Any] | None) -> str:
    """The reason that a failed Job gives; empty for any other."""
    if job is None or of_job(job) != "failed":
        return ""
    condition = _condition(_status(job), "Failed")
    return f"{condition.get('reason', 'unknown reason')}: {_line(condition, '')}".rstrip(": ")


def of_nodes(pods: Iterable[Mapping[str, Any]], nodes: int) -> dict[int, str]:
    """What each node's newest pod does."""
    found = dict.fromkeys(range(nodes), "has no pod yet")
    for pod in sorted(pods, key=lambda one: one["metadata"].get("creationTimestamp") or ""):
        if (node := node_of(pod)) in found:
            found[node] = of_pod(pod)
    return found


def lines(states: Mapping[int, str]) -> list[str]:
    """One line for all nodes of which the same can be said.

    >>> lines({0: "runs", 1: "runs", 2: "is starting", 3: "runs"})
    ['nodes 0-1, 3: runs', 'node 2: is starting']
    """
    nodes_by_words: dict[str, list[int]] = {}
    for node, words in sorted(states.items()):
        nodes_by_words.setdefault(words, []).append(node)
    return [f"node{'s'[: len(n) > 1]} {_ranges(n)}: {words}" for words, n in nodes_by_words.items()]


def _ranges(nodes: list[int]) -> str:
    """``0-1, 3`` of ascending numbers."""
    found: list[list[int]] = []
    for node in nodes:
        if found and node == found[-1][-1] + 1:
            found[-1].append(node)
        else:
            found.append([node])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in found)


def _status(of: Mapping[str, Any]) -> dict[str, Any]:
    return of.get("status") or {}


def _condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = [one for one in status.get("conditions") or () if one.get("type") == kind]
    return found[0] if found else {}


def _line(of: Mapping[str, Any], otherwise: str) -> str:
    return " ".join(str(of.get("message") or otherwise).split())[:_SHOWN]
