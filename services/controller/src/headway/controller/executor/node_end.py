"""The end of a run on a node.

Everything is stopped, what must survive is saved, the rest is removed.

Whatever fails on the way is logged, and the next step is taken: an end that stops half-way would
leave processes behind.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.ckpt_store import StoreWatch
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.arena import Arena
from headway.common.node.janitor import end_node, leave_run
from headway.common.node.process import DEAD, ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, RunLock
from headway.common.polling import wait_until
from headway.health.client import Saving

DRAIN_LIMIT_S = 8.0
WORKERS_LIMIT_S = 2.0  # of it: SIGTERM ends a worker at once, unless it is frozen
KILL_LIMIT_S = 1.0
SAVE_LIMIT_S = 20.0  # for 0.5 s of work, where the disk is well

log = get_logger("node")


class NodeEnd:
    """Ends a run on a node; ``run`` may be called on any thread, once.

    It blocks some seconds, or for as long as the checkpoint store makes progress with what is still
    to be made durable. It never raises.
    """

    def __init__(
        self,
        run: RunDir,
        paths: NodePaths,
        lock: RunLock,
        services: Mapping[str, ProcessId],
        workers: Sequence[ProcessId],
        spare: ProcessId | None = None,
    ) -> None:
        self._run, self._paths, self._lock = run, paths, lock
        self._services, self._workers = dict(services), list(workers)
        self._spare = spare
        self._unreadable: set[Path] = set()

    def run(self) -> None:
        """End everything."""
        deadline = time.monotonic() + DRAIN_LIMIT_S
        driver = self._services.pop("driver", None)  # it ends by itself
        store = self._services.pop("ckpt_store", None)
        agent = self._services.get("agent")
        services = list(self._services.values())
        # All at once, so that each has the whole time; and services first: an agent that was asked
        # sends no beat any more, which would report ranks that end in order as crashed.
        for process in [*services, *self._workers]:
            _attempt(lambda p=process: p.kill(signal.SIGTERM))  # type: ignore[misc]
        if not _wait_for(self._workers, WORKERS_LIMIT_S):
            _kill(self._workers)  # a frozen rank takes no SIGTERM
        if store is not None:
            _attempt(lambda: self._finish_store(store))
            _kill([store])
            services.append(store)
        everybody = [*self._workers, *services, *([driver] if driver is not None else [])]
        if not _wait_for(everybody, max(0.0, deadline - time.monotonic())):
            _kill(everybody)
            if not _wait_for(everybody, KILL_LIMIT_S):
                _attempt(lambda: _name_survivors(everybody))
        _attempt(lambda: self._save_last_records(agent))
        _attempt(self._remove)
        _attempt(self._lock.release)
        _attempt(lambda: leave_run(self._paths.run_id))

    def _remove(self) -> None:
        try:
            for line in end_node(self._paths.run_id, self._paths.node, spare=self._spare):
                log.info(line)
        except Exception:
            # a process that is stuck must not keep memory and sockets of all others
            for folder in (self._paths.shm_dir, self._paths.sock_dir):
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _finish_store(self, store: ProcessId) -> None:
        """Let the store write what ranks want durable, then end it; each while it moves."""
        watch = StoreWatch(self._paths.endpoint("ckpt_store"))
        try:
            is_done = watch.wait(lambda: not self._wanted() or not _can_run(store))
            if not watch.end():  # not by a signal, which announces the end of the machine
                store.kill(signal.SIGTERM)
            is_done = watch.wait(lambda: not _can_run(store)) and is_done
            if self._wanted() or not is_done:
                durable = watch.status.complete_step if watch.status is not None else None
                log.warning(
                    "the checkpoint store is ended before its work is done",
                    undurable_steps=self._wanted(),
                    durable_step=durable,
                    checkpoints=str(self._run.checkpoints),
                )
        finally:
            watch.close()

    def _wanted(self) -> list[int]:
        """Return the steps that ranks of this node still want durable.

        Arenas that cannot be read are left out.
        """
        steps: set[int] = set()
        for path in set(self._paths.segments("arena")) - self._unreadable:
            try:
                with Arena.open(path, writable=False) as arena:
                    steps.update(info.step for info in arena.wanted())
            except FileNotFoundError:
                continue
            except (CorruptError, OSError, ValueError) as error:
                self._unreadable.add(path)
                log.warning("an arena is not looked at", arena=str(path), reason=str(error))
        return sorted(steps)

    def _save_last_records(self, agent: ProcessId | None) -> None:
        """Save what the agent did not: what its ranks had open, or all if it was dead or frozen."""
        if agent is not None and not agent.is_terminating():  # stuck; two would save records twice
            log.warning("the agent does not end: the last flight records may not be saved")
            return
        saving = Saving(self._paths.shm_dir, self._run.events, self._paths.node)
        saving.run(final=True, limit_s=SAVE_LIMIT_S)


def _attempt(step: Callable[[], object]) -> None:
    """Do one step of the end, whatever happens to it.

    A failure is logged if that is possible, and never keeps the next step from its turn.
    """
    try:
        step()
    except Exception as error:
        with contextlib.suppress(Exception):
            log.error("a step of the run's end failed", reason=f"{type(error).__name__}: {error}")


def _name_survivors(processes: Sequence[ProcessId]) -> None:
    left = {process.pid: process.state() for process in processes if not process.is_terminating()}
    if left:
        log.error(
            "processes do not end: they are stuck in the kernel",
            processes={str(pid): state for pid, state in left.items()},
            remedy="look at what they wait for in /proc/PID/stack, or restart the machine",
        )


def _can_run(process: ProcessId) -> bool:
    return process.state() not in {*DEAD, "T"} and not process.is_terminating()


def _kill(processes: Sequence[ProcessId]) -> None:
    for process in processes:
        _attempt(process.kill)


def _wait_for(processes: Sequence[ProcessId], limit_s: float) -> bool:
    """Whether all of them ended in time; one that is frozen ends once SIGKILL waits for it."""
    return wait_until(lambda: all(process.is_terminating() for process in processes), limit_s)
