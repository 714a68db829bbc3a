"""Ends a run on Kubernetes: asks it to stop, waits for its Job, and deletes its objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headway.common.errors import InputError
from headway.console.pods.kinds import of_run
from headway.console.pods.run import PodsRun

LOOK_S = 1.0


@dataclass(frozen=True)
class PodsEnding:
    """How a run came to its end."""

    reason: str
    """Why it was ended by force; empty if its Job ended by itself."""
    ended: int
    """Pods that were deleted while the Job ran."""


def end_pods(
    run: PodsRun, *, limit_s: float, now: bool, report: Callable[[str], None]
) -> PodsEnding:
    """End the run and delete its objects; return when none is left.

    Args:
        run: the run.
        limit_s: longest time for its stop.
        now: delete everything at once. The pods make a checkpoint if they can, within the 30 s that
            Kubernetes leaves them.
        report: called with one line per stage.

    Raises:
        InputError: nothing of it is left. ApiError: the API server does not answer. HeadwayError:
            an object cannot be deleted.
    """
    if not run.objects.find(of_run(run.folder.run_id)):
        raise InputError(
            f"run {run.name} is {run.outcome or 'gone'}: it has no objects on Kubernetes",
            remedy="start it with `headway run --engine kubernetes`",
        )
    reason = "its objects are deleted immediately (--now)" if now else ""
    if not now and run.live:
        reason = ask_to_stop(run)
        report(f"stopping run {run.name} {'' if reason else 'with a checkpoint'}".rstrip())
        reason = reason or _wait(run, limit_s)
    ended = run.look().num_up if reason else 0
    conclude(run, report, "interrupted" if reason else "stopped")
    return PodsEnding(reason, ended)


def ask_to_stop(run: PodsRun) -> str:
    """Ask a live run for a stop; returns why it cannot carry it out, "" if it can.

    Raises:
        HeadwayError: the API server refuses, or does not answer.
    """
    if not run.look().num_up:
        return "it cannot make a checkpoint: none of its pods runs"
    run.command("stop")
    return ""


def _wait(run: PodsRun, limit_s: float) -> str:
    """Wait for the end of the Job; returns why that did not come, "" if it did."""
    until = time.monotonic() + limit_s
    while run.live:
        if time.monotonic() > until:
            return late(limit_s)
        time.sleep(min(LOOK_S, limit_s))
    return ""


def late(limit_s: float) -> str:
    """Why a run is ended by force that has been asked to stop; its pods do not show progress."""
    return f"it did not stop within {limit_s:g} s"


def conclude(run: PodsRun, report: Callable[[str], None], otherwise: str) -> None:
    """Keep the run's outcome and the logs of its pods, and delete its objects.

    Args:
        run: the run.
        report: called with one line per stage.
        otherwise: the outcome if neither its lease nor its Job shows one.

    Raises:
        ApiError: the API server does not answer. HeadwayError: an object cannot be deleted.
    """
    run.objects.be_patient()
    for trouble in run.fetch_records():
        report(trouble)
    run.note(outcome=run.outcome or otherwise)
    report(f"deleting the objects of run {run.name}")
    run.objects.delete(run.folder.run_id, report)
