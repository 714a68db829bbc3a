"""The guardian of a node's services: starts what should run, and starts it again when it dies or freezes.

Children outlive their guardian. Who they are is kept in one small file, so that a restarted executor finds
them by pid and start time and starts nothing twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.log import get_logger
from headway.common.node.files import replace_json
from headway.common.node.process import DEAD, ProcessId, spawn

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
HEALTHY_AFTER_S = 10.0  # a child that lived this long starts over with the first pause

log = get_logger("children")


@dataclass(frozen=True)
class Spec:
    """One service: its command line and its environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Child:
    spec: Spec
    process: ProcessId | None = None
    started_at: float = 0.0
    retry_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0


class Children:
    """Call ``poll`` some 20 times a second; it never blocks."""

    def __init__(self, state_file: Path, logs: Path, node: int) -> None:
        self._file, self._logs, self._node = state_file, logs, node
        self._children: dict[str, _Child] = {}
        self._known = self._load()

    def keep(self, spec: Spec) -> None:
        """Keep this service running from now on, adopting the one that already does."""
        if spec.name in self._children:
            return
        child = _Child(spec)
        known = self._known.get(spec.name)
        if known is not None and known.alive():
            child.process = known
            log.info("adopted", child=spec.name, pid=known.pid)
        self._children[spec.name] = child

    def drop(self, name: str) -> ProcessId | None:
        """Keep it no longer; returns its process, which is left as it is."""
        child = self._children.pop(name, None)
        self._save()
        return child.process if child else None

    def was_known(self, name: str) -> bool:
        """Whether the executor before this one kept this service."""
        return name in self._known

    def names(self) -> list[str]:
        """Every service kept."""
        return list(self._children)

    def pids(self) -> dict[str, int]:
        """Service -> pid, of those that run."""
        return {
            name: child.process.pid
            for name, child in self._children.items()
            if child.process is not None
        }

    def process(self, name: str) -> ProcessId | None:
        """The running process of a service."""
        child = self._children.get(name)
        return child.process if child else None

    def poll(self, now: float) -> list[str]:
        """Look after every child; returns the services found dead or frozen in this call."""
        fallen = []
        for name, child in self._children.items():
            if child.process is not None and not self._fit(child):
                fallen.append(name)
                self._fell(child, now)
            if child.process is None and now >= child.retry_at:
                self._start(child, now)
        return fallen

    def _fit(self, child: _Child) -> bool:
        assert child.process is not None
        state = child.process.state()
        if state in DEAD:
            return False
        if state == "T":
            child.process.kill()
            log.warning("ended a stopped service", child=child.spec.name, pid=child.process.pid)
            return False
        return True

    def _fell(self, child: _Child, now: float) -> None:
        if now - child.started_at > HEALTHY_AFTER_S:
            child.pause_s = FIRST_PAUSE_S
        child.process, child.retry_at = None, now + child.pause_s
        child.pause_s = min(2 * child.pause_s, LONGEST_PAUSE_S)
        child.restarts += 1
        log.warning(
            "service is gone",
            child=child.spec.name,
            retry_in_s=child.pause_s,
            restarts=child.restarts,
        )

    def _start(self, child: _Child, now: float) -> None:
        name = child.spec.name
        child.process = spawn(
            child.spec.argv,
            log_path=self._logs / f"n{self._node}-{name}.log",
            env={**os.environ, **child.spec.env, "HEADWAY_ROLE": name},
            cwd=Path.cwd(),
        )
        child.started_at = now
        self._save()

    def _save(self) -> None:
        data = {
            name: [c.process.pid, c.process.start_ticks]
            for name, c in self._children.items()
            if c.process is not None
        }
        replace_json(self._file, data)

    def _load(self) -> dict[str, ProcessId]:
        try:
            data = json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {name: ProcessId(pid, ticks) for name, (pid, ticks) in data.items()}
