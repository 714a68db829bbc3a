"""Ends a run for certain: through its driver while that makes progress, then by force.

Force is SIGKILL to every process that was started with the run's id, as the janitor finds them. It
depends on no other process, and all checkpoints stay.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.freezer import frozen_by
from headway.common.node.janitor import end_run, processes_of
from headway.common.node.process import ProcessId
from headway.common.output import counted
from headway.common.wire.messages.driver import Command
from headway.console.folder.outputs import bytes_below, newest_checkpoint
from headway.console.hints import refuse_elsewhere
from headway.console.lifecycle.machines import end_nodes
from headway.console.pods.ending import end_pods
from headway.console.pods.run import PodsRun
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import of_bundle
from headway.launch.engines.local import LocalEngine
from headway.launch.join.bundle import Bundle

KILL_LIMIT_S = 10.0  # as in the janitor: a process with much memory takes seconds to end
LOOK_S = 0.2
SEND_LIMIT_S, STATUS_LIMIT_S = 2.0, 0.5
"""Limits of one question to the driver; a stop asks again."""
MAX_STEPS = 20
"""A stop that was accepted takes effect within so many steps, with a recovery in between."""


@dataclass(frozen=True)
class Ending:
    """How a run came to its end, and what is left of it."""

    run: str
    outcome: str
    """``stopped``, ``finished`` or ``failed``; ``interrupted`` after force."""
    checkpoint: int | None
    """Step of the newest checkpoint, None without one."""
    reason: str = ""
    """Why it was ended by force; empty if it ended by itself."""
    ended: int = 0
    """Processes, or pods, that were ended by force."""
    left: tuple[str, ...] = ()
    """Processes, or nodes on machines, that could not be ended, each with the reason."""
    kept_on: str = ""
    """Where its checkpoints are if this machine does not see them."""

    def line(self) -> str:
        """All of it in one line."""
        kept = "there is no checkpoint"
        if self.checkpoint is not None:
            kept = f"the newest checkpoint is of step {self.checkpoint}"
        elif self.kept_on:
            kept = f"its checkpoints are on {self.kept_on}"
        if not self.reason:
            return f"run {self.run} is {self.outcome}; {kept}"
        pods, processes = ("pod", "pods"), ("process", "processes")
        ended = counted(self.ended, *(pods if self.kept_on else processes))
        line = f"run {self.run}: {self.reason}; ended {ended} by force; {kept}"
        return f"{line}; could not end {', '.join(self.left)}" if self.left else line

    def exit_code(self, *, now: bool = False) -> int:
        """0: by itself, or by force as ``now`` requested; 3: by force; 1: something is left."""
        if self.left:
            return 1
        return 3 if self.reason and not now else 0


def end(
    run: Run,
    *,
    limit_s: float | None = None,
    now: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> Ending:
    """End ``run`` and return when none of its processes is left; its checkpoints stay.

    Args:
        limit_s: longest it may make no progress; None takes ``recovery.stop_timeout_s``.
        now: by force at once, without a clean stop.
        report: called with one line per stage.

    Raises:
        InputError: the run has ended and none of its processes is left.
        RemoteError: the driver refused the stop.
    """
    if isinstance(run, PodsRun):
        return _end_pods(run, limit_s, now, report)
    if now:
        refuse_elsewhere(run.path)
    if not _remains(run):
        raise InputError(
            f"run {run.name} is {run.state}, not live", remedy=f"see {run.hint('status')}"
        )
    limit_s = run.config.recovery.stop_timeout_s if limit_s is None else limit_s
    reason = "killed immediately (--now)" if now else _stop(run, limit_s, report)
    if not reason:
        return Ending(run.name, run.state, newest_checkpoint(run))
    if run.is_elsewhere:
        raise DeadlineError(
            f"run {run.name}: {reason}", remedy="run `headway stop` on the machine of the run"
        )
    if not now:
        report(f"run {run.name}: {reason}; ending its processes by force")
    ended, left = _force(run)
    return Ending(
        run.name, run.outcome or "interrupted", newest_checkpoint(run), reason, ended, left
    )


def _end_pods(
    run: PodsRun, limit_s: float | None, now: bool, report: Callable[[str], None]
) -> Ending:
    limit_s = run.config.recovery.stop_timeout_s if limit_s is None else limit_s
    done = end_pods(run, limit_s=limit_s, now=now, report=report)
    kept_on = f"the claim {run.pods.claim}"
    return Ending(run.name, run.outcome, None, done.reason, done.ended, kept_on=kept_on)


# ---- the clean stop -----------------------------------------------------------------------------
def _stop(run: Run, limit_s: float, report: Callable[[str], None]) -> str:
    """Ask for a stop and wait for the end; returns why that did not work, "" if it did."""
    command = Command(id=uuid.uuid4().hex, operation="stop")
    progress = _Progress(run)
    while _remains(run):
        if not progress.is_accepted and not run.outcome:
            with contextlib.suppress(DeadlineError):
                left_s = limit_s - progress.stale_s
                run.send(command, timeout_s=min(SEND_LIMIT_S, max(LOOK_S, left_s)))
                progress.accept()
                report(f"stopping run {run.name} with a checkpoint")
        progress.look()
        if progress.stale_s > limit_s:
            if run.outcome:
                return f"it is {run.outcome}, but its processes have not ended in {limit_s:g} s"
            if not progress.is_answered:
                return f"no driver has answered for {limit_s:g} s"
            return f"it did not stop: no progress for {limit_s:g} s{progress.waiting}"
        time.sleep(LOOK_S)
    return ""


class _Progress:
    """Whether the stop makes progress: checkpoints grow, processes end, there is an outcome.

    Ranks train on and write checkpoints without a driver, or if they cannot be reached. So all this
    counts only while a driver that accepted the stop answers, and for ``MAX_STEPS`` more steps; or
    when the run has an outcome.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last_step: int | None = None
        self._step, self._processes = -1, 1 << 30
        self._seen: tuple[object, ...] = ()
        self._moved_at = time.monotonic()
        self.is_accepted = False
        self.is_answered = False
        """Whether the driver has answered since the last progress."""
        self.waiting = ""
        """What the driver says that it waits for."""

    def accept(self) -> None:
        """The driver took the stop."""
        self.is_accepted = True
        self._note()

    @property
    def stale_s(self) -> float:
        """Seconds since the last sign of progress."""
        return time.monotonic() - self._moved_at

    def look(self) -> None:
        """Look for a sign of progress."""
        run, step = self._run, None
        with contextlib.suppress(HeadwayError):
            status = run.status(STATUS_LIMIT_S, num_ranks=0)
            step, self.is_answered = status.step, True
            self.waiting = f" ({status.waiting})" if status.waiting else ""
        if not run.outcome and not (self.is_accepted and step is not None):
            return
        if step is not None and self._last_step is None:
            self._last_step = step + MAX_STEPS
        if step is not None and self._last_step is not None and step > self._last_step:
            self.waiting = f" (it trains on, at step {step})"
            return
        processes = len(processes_of(run.folder.run_id))
        seen = (run.outcome, bytes_below(run.folder.checkpoints))
        is_further = (step or 0) > self._step or processes < self._processes
        if is_further or seen != self._seen:
            self._note()
        self._step, self._processes = max(step or 0, self._step), min(processes, self._processes)
        self._seen = seen

    def _note(self) -> None:
        self._moved_at, self.is_answered = time.monotonic(), False


def _remains(run: Run) -> bool:
    """Whether a process of the run is there, or an executor that would start one."""
    return run.live or bool(processes_of(run.folder.run_id))


# ---- force --------------------------------------------------------------------------------------
def _force(run: Run) -> tuple[int, tuple[str, ...]]:
    """End every process of the run; on a cluster that outlives it, give its nodes new executors."""
    if run.folder.bundle.exists():
        left = end_nodes(of_bundle(Bundle.load(run.folder.bundle)), run.folder)
        again = f"(once that has changed, repeat {run.hint('stop')})"
        return 0, tuple(f"{line} {again}" for line in left)
    run_id, cluster = run.folder.run_id, ClusterFolder(run.cluster_folder)
    shared = cluster.exists and cluster.id != run_id
    nodes = [k for k, carried in cluster.runs().items() if carried["run_id"] == run_id]

    def find() -> list[ProcessId]:
        # an executor that lives would start again what is ended here
        executors = [p for k in nodes for p in processes_of(cluster.id, k)] if shared else []
        return [p for p in (*executors, *processes_of(run_id)) if p.pid != os.getpid()]

    ended, left = _kill(find)
    for node in nodes:
        cluster.remove(f"nodes/{node}.json")
        cluster.remove(f"nodes/{node}.run")
    if not left:
        end_run(run_id)
    if shared:
        engine = LocalEngine(cluster)
        for node in nodes:
            if not processes_of(cluster.id, node):
                engine.start_node(node)
    return ended, tuple(left)


def _kill(find: Callable[[], list[ProcessId]]) -> tuple[int, list[str]]:
    """SIGKILL whatever ``find`` finds until nothing is left: how many ended, and what did not."""
    victims: set[ProcessId] = set()
    deadline = time.monotonic() + KILL_LIMIT_S
    while living := find():
        for process in living:
            process.kill()
        victims.update(living)
        if time.monotonic() > deadline or all(frozen_by(process.pid) for process in living):
            return len(victims) - len(living), [_why(process) for process in living]
        time.sleep(0.02)
    return len(victims), []


def _why(process: ProcessId) -> str:
    if cgroup := frozen_by(process.pid):
        return f"pid {process.pid} (frozen by cgroup {cgroup}; it ends when that is thawed)"
    return f"pid {process.pid} (state {process.state()}: it waits in the kernel)"
