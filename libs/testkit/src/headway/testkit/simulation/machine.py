"""A simulated machine: its processes, and a real init that keeps an executor."""

from __future__ import annotations

import signal
from collections.abc import Callable

from headway.common.decide import Event
from headway.common.node.process import ProcessId
from headway.launch.init import core as init
from headway.testkit.simulation.processes import Process, Worker

EXECUTOR_S = 0.2  # until a new executor serves
BOOT_S = 0.7  # until an engine has started an init


class Machine:
    """``number`` is that of its node. Its init runs; the public switches are disturbances."""

    spawn_fails = False
    asleep_until = 0.0
    """Until then its init and executor do not run; a driver on it and its ranks do."""
    is_lost = False
    """The machine is lost permanently."""

    def __init__(self, number: int) -> None:
        self.number, self.now = number, 0.0
        self.on_start: Callable[[Process], None] = lambda _: None
        self.init: init.Core | None = init.Core()
        self.executor: Process | None = None
        self.processes: dict[ProcessId, Process] = {}
        """All but init and executor."""
        self._boots_at: float | None = None
        self._is_released = False
        self._pid = 100

    @property
    def is_up(self) -> bool:
        """Whether its executor serves."""
        return self.executor is not None and self.executor.is_up(self.now, EXECUTOR_S)

    @property
    def is_tended(self) -> bool:
        """Whether it has an executor, or something that will start one."""
        keepers = (self.executor, self.init, self._boots_at)
        return not self.is_lost and any(keeper is not None for keeper in keepers)

    def living(self) -> dict[ProcessId, Process]:
        """Its processes that have not ended."""
        return {who: p for who, p in self.processes.items() if p.state != "Z"}

    def start(self, name: str, epoch: int = -1) -> ProcessId:
        """A process of this name appears."""
        self._pid += 1
        who = ProcessId(self._pid, self._pid)
        kind = Worker if name.startswith(f"n{self.number}w") else Process
        self.processes[who] = kind(name, who, self.now, epoch=epoch)
        self.on_start(self.processes[who])
        return who

    # ---- what its engine does -----------------------------------------------------------------
    def wipe(self) -> None:
        """The machine restarts: memory is empty, processes are gone, no init is started."""
        for process in self.processes.values():
            process.state = "Z"
        self.processes, self.executor, self.init, self._boots_at = {}, None, None, None

    def restart(self) -> None:
        """End init and executor, and start an init."""
        if self.executor is not None:
            self.executor.kill()
        self.init, self._boots_at = None, self.now + BOOT_S

    def release(self) -> None:
        """Ask the init to end, then give the machine back."""
        self._is_released = True
        if self.init is None:
            self.wipe()
        else:
            self._tell_init(init.StopRequested("SIGTERM"))

    # ---- its init -----------------------------------------------------------------------------
    def watch_executor(self) -> None:
        """A turn of the init: beats first."""
        if self._boots_at is not None and self._boots_at <= self.now:
            self.init, self._boots_at, self._is_released = init.Core(), None, False
        executor = self.executor
        if executor is None:
            self._tell_init(init.Looked())
        elif executor.state == "Z":
            self.executor = None
            self._tell_init(init.Ended(executor.code))
        else:
            if self.is_up:
                self._tell_init(init.BeatReceived())
            self._tell_init(init.Looked(executor.state))

    def _tell_init(self, event: Event) -> None:
        if self.init is None:
            return
        for action in self.init.handle(event, self.now):
            match action:
                case init.Start():
                    self._tell_init(self._start_executor())
                case init.Kill() if self.executor is not None:
                    assert not self.is_up, "the init has ended a sound executor"
                    self.executor.kill()
                case init.ForwardSigterm() if self.executor is not None:
                    self.executor.kill(signal.SIGTERM)
                case init.Exit():
                    self.init = None
                    if self._is_released:
                        self.wipe()

    def _start_executor(self) -> init.Started | init.NotStarted:
        if self.spawn_fails:
            return init.NotStarted("no space left on device")
        found = self.executor
        if found is not None and found.state != "Z":
            return init.Started(found.id, is_adopted=True, age_s=self.now - found.since)
        self._pid += 1
        self.executor = Process("executor", ProcessId(self._pid, self._pid), self.now)
        self.begin_executor()
        return init.Started(self.executor.id)

    def begin_executor(self) -> None:
        """A new executor process begins; ``Node`` says what it does."""
