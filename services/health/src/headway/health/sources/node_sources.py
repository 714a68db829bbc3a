"""Starts the sources of a node, each on its own thread, and collects what they find."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.common.wire.messages.health import Finding, FindingSource, Machine
from headway.health.config import HealthConfig
from headway.health.rulebook import RuleBook
from headway.health.sources import kernel_log
from headway.health.sources.changes import changed
from headway.health.sources.source_thread import Source, SourceThread
from headway.health.sources.train_log import CURSOR_FILE, LogTail


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where the sources read."""

    logs: Path
    shm_dir: Path
    """The positions in the logs are kept there."""
    log_pattern: str = "*.log"
    kmsg: Path = kernel_log.KMSG


class LogSource:
    """The tail of the training logs, as one of the sources."""

    def __init__(self, tail: LogTail, max_bytes: int) -> None:
        self._tail, self._max_bytes = tail, max_bytes

    def read(self) -> list[Finding]:
        """The findings of about ``max_bytes`` of new text."""
        return self._tail.poll(self._max_bytes)

    def close(self) -> None:
        """Nothing is held."""


class NodeSources:
    """Everything that an agent reads for findings. No method blocks."""

    def __init__(self, options: SourceOptions, config: HealthConfig, rules: RuleBook) -> None:
        self._options, self._config, self._rules = options, config, rules
        logs = self._start("log", "logs", self._make_logs, config.beat_interval_s / 2)
        kernel = self._start("kernel", "kernel", self._make_kernel, config.beat_interval_s)
        self._threads = deque([logs, kernel])
        logs.await_first()

    def take(self, most: int) -> list[Finding]:
        """At most so many findings; another source comes first in each call."""
        found: list[Finding] = []
        for thread in self._threads:
            found += thread.take(most - len(found))
        self._threads.rotate(-1)
        return found

    def machine(self) -> Machine | None:
        """What the machine consists of, None until that is known."""
        return None

    def close(self) -> None:
        """Stop all of them. What hangs is left to itself."""
        for thread in self._threads:
            thread.close()

    def _start(
        self,
        source: FindingSource | str,
        name: str,
        make: Callable[[], Source],
        period_s: float | None = None,
        deadline_s: float | None = None,
    ) -> SourceThread:
        def hung(busy_s: float) -> Finding:
            line = f"reading {name} has not ended for {busy_s:.0f} s"
            return changed("source_hung", "host", "node", line, name=name, detail=str(source))

        return SourceThread(
            name,
            make,
            period_s or self._config.source_interval_s,
            deadline_s or self._config.source_deadline_s,
            hung,
        )

    def _make_logs(self) -> Source:
        options = self._options
        cursors = options.shm_dir / CURSOR_FILE
        tail = LogTail(options.logs, options.log_pattern, cursors, self._rules)
        return LogSource(tail, self._config.log_bytes_per_beat)

    def _make_kernel(self) -> Source:
        cursors = self._options.shm_dir / kernel_log.CURSOR_FILE
        return kernel_log.open_kernel_log(self._options.kmsg, self._rules, cursors)
