"""Starts the sources of a node, each on its own thread, and collects what they find."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from headway.common.wire.messages.health import (
    Finding,
    FindingSource,
    Machine,
    WorkerSignals,
)
from headway.common.wire.side_thread import SideThread
from headway.health.config import HealthConfig
from headway.health.rulebook import RuleBook
from headway.health.sources import kernel_log, mounts
from headway.health.sources.changes import again_s, changed
from headway.health.sources.clock import ClockSource
from headway.health.sources.fabric_links import FabricLinks
from headway.health.sources.gpu_probe import GpuProbe
from headway.health.sources.gpus import GpuSource, has_gpus
from headway.health.sources.host_limits import HostLimits
from headway.health.sources.identity import read_machine
from headway.health.sources.kernel_journal import JournalSource
from headway.health.sources.kernel_log import KernelFile, KmsgSource
from headway.health.sources.net_devices import NetSource
from headway.health.sources.nics import NicSource
from headway.health.sources.nvml import LIBRARY
from headway.health.sources.slow_steps import SlowStepSource
from headway.health.sources.source_thread import Source, SourceThread
from headway.health.sources.train_log import CURSOR_FILE, LogTail

IDENTITY_S = 60.0
"""Interval of reading what the machine consists of."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where the sources read."""

    logs: Path
    shm_dir: Path
    """The positions in the logs are kept there."""
    log_pattern: str = "*.log"
    sysfs: Path = field(default=Path("/sys"))
    kmsg: Path = kernel_log.KMSG
    nvml: str = ""
    """Library to use instead of the driver's."""
    mounts: tuple[Path, ...] = ()
    """Folders whose file systems the run needs."""
    fabric_address: str = ""
    """This node's in the ranks' network; empty if that is the loopback."""


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
        self._kernel: KmsgSource | KernelFile | JournalSource | None = None
        self._gpus: GpuSource | None = None
        self._ranks: tuple[int, ...] = ()
        """Processes of the ranks at the last beat."""
        self._machine: Machine | None = None
        sysfs = options.sysfs
        library = options.nvml or (LIBRARY if has_gpus(sysfs) else "")
        self._slow_steps = slow_steps = SlowStepSource(sysfs, library)
        self._links = self._start("nic", "links", lambda: slow_steps, math.inf)
        logs = self._start("log", "logs", self._make_logs, config.beat_interval_s / 2)
        self._threads = deque(
            [
                logs,
                self._start("kernel", "kernel", self._make_kernel, config.beat_interval_s),
                self._start("nic", "nics", lambda: NicSource(sysfs, config)),
                self._start("net", "net", lambda: NetSource(sysfs, config)),
                self._start("host", "limits", lambda: HostLimits(sysfs, config)),
                self._start("clock", "clock", lambda: ClockSource(config)),
                self._links,
                *[self._start_mount(path) for path in sorted(set(options.mounts))],
            ]
        )
        if own := options.fabric_address:
            self._threads.append(
                self._start("net", "fabric", lambda: FabricLinks(own, lambda: self._ranks, config))
            )
        if library:
            self._threads.append(self._start_gpus(library))
        self._identity = SideThread("identity", self._identify)
        logs.await_first()

    def look(self, workers: Sequence[WorkerSignals]) -> None:
        """Note the ranks as they are now; a slow step has the links watched closely."""
        self._ranks = tuple(worker.pid for worker in workers)
        if self._slow_steps.look(workers):
            self._links.wake()

    def take(self, most: int) -> list[Finding]:
        """At most so many findings; another source comes first in each call."""
        found: list[Finding] = []
        for thread in self._threads:
            found += thread.take(most - len(found))
        self._threads.rotate(-1)
        return [self._with_uuid(one) for one in found]

    def machine(self) -> Machine | None:
        """What the machine consists of, None until that is known."""
        if self._machine is None or self._gpus is None:
            return self._machine
        return msgspec.structs.replace(  # type: ignore[type-var]
            self._machine, gpus=self._gpus.identity, driver=self._gpus.driver
        )

    def close(self) -> None:
        """Stop all of them. What hangs is left to itself."""
        for thread in self._threads:
            thread.close()
        self._identity.close()

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
            again_s(self._config),
        )

    def _start_mount(self, path: Path) -> SourceThread:
        def hung(busy_s: float) -> Finding:
            return mounts.finding("mount_hung", path, f"has not answered for {busy_s:.0f} s")

        config = self._config
        return SourceThread(
            "mount",
            lambda: mounts.MountSource(path, config, sysfs=self._options.sysfs),
            config.source_interval_s,
            config.source_deadline_s,
            hung,
            again_s(config),
        )

    def _start_gpus(self, library: str) -> SourceThread:
        limit_s = self._config.gpu_deadline_s

        def make() -> GpuSource:
            probe = GpuProbe(library, limit_s)
            self._gpus = GpuSource(
                probe, self._config, wants_xids=self._lacks_kernel_log, sysfs=self._options.sysfs
            )
            return self._gpus

        # the probe has its own deadline, and reports it
        return self._start("gpu", "gpus", make, deadline_s=2 * limit_s)

    def _lacks_kernel_log(self) -> bool:
        return self._kernel is None or not self._kernel.is_open

    def _make_logs(self) -> Source:
        options = self._options
        cursors = options.shm_dir / CURSOR_FILE
        tail = LogTail(options.logs, options.log_pattern, cursors, self._rules)
        return LogSource(tail, self._config.log_bytes_per_beat)

    def _make_kernel(self) -> Source:
        options = self._options
        self._kernel = kernel_log.open_kernel_log(options.kmsg, self._rules, options.shm_dir)
        return self._kernel

    def _identify(self) -> float:
        self._machine = read_machine(self._options.sysfs)
        return IDENTITY_S

    def _with_uuid(self, found: Finding) -> Finding:
        if found.subject != "gpu" or found.uuid or self._gpus is None:
            return found
        uuid = next((one.uuid for one in self._gpus.identity if one.pci == found.name), "")
        return msgspec.structs.replace(found, uuid=uuid)  # type: ignore[type-var]
