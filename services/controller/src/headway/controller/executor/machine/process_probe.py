"""A look at the node's processes: how each of them is, and how a dead worker has ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from headway.common.node import zygote_beat
from headway.common.node.process import DEAD, GONE, ProcessId
from headway.common.node.run_dir import NodePaths
from headway.controller.executor import node_files
from headway.controller.executor.machine.oom_kills import OomKills
from headway.controller.executor.node_events import Fork, Looked, ZygoteSeen

ZYGOTE_LOOK_S = 0.25


class ProcessLook:
    """``look`` some 20 times a second; it never blocks."""

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths
        self._oom_kills = OomKills()
        self._killed: set[ProcessId] = set()
        self._zygote_read_at = 0.0

    def note_kill(self, process: ProcessId) -> None:
        """Note that a signal is sent to the process."""
        self._killed.add(process)

    def look(self, watched: Collection[ProcessId], workers: Mapping[str, ProcessId]) -> Looked:
        """Look at the processes of ``watched``; ``workers`` names the workers among them."""
        states = {process: self._state(process) for process in watched}
        self._killed &= states.keys()
        words = {
            worker: node_files.exit_record(
                self._paths, worker, is_oom=self._oom_kills.took(process)
            )
            for worker, process in workers.items()
            if states.get(process) in DEAD
        }
        self._oom_kills.look(workers.values(), time.monotonic())
        return Looked(states, words, self._zygote())

    def _state(self, process: ProcessId) -> str:
        try:
            state = process.state()
        except OSError:  # no descriptor is left for /proc: not known, and the others are looked at
            return "S"
        # in a frozen cgroup (state D) SIGKILL only waits: the process will never run again all the
        # same
        is_suspect = state == "D" or process in self._killed
        return GONE if is_suspect and process.is_terminating() else state

    def _zygote(self) -> ZygoteSeen | None:
        now = time.monotonic()
        if now < self._zygote_read_at:
            return None
        self._zygote_read_at = now + ZYGOTE_LOOK_S
        found = zygote_beat.read(self._paths.shm_dir)
        if found is None:
            return None
        process, turns, answers = found
        forks = [
            Fork(worker, ProcessId(pid, ticks) if pid else None, error)
            for worker, pid, ticks, error in answers
        ]
        return ZygoteSeen(process, turns, tuple(forks))
