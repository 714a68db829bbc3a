"""A simulated cluster: nodes, drivers and the network between them."""

from __future__ import annotations

import random
from functools import partial

from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat
from headway.common.wire.messages.executor import DriverBeat, ToWorker
from headway.common.wire.messages.worker import Steer, SteerOperation
from headway.controller.decisions.events import (
    BeginGeneration,
    CommandQueued,
    Finish,
    VerdictReceived,
)
from headway.controller.decisions.state import RunState
from headway.launch.engine import Replaces
from headway.testkit.simulation.driver import LIMITS, STEPS, Disk, Driver
from headway.testkit.simulation.lease import Lease
from headway.testkit.simulation.network import Network
from headway.testkit.simulation.node import RUN_ID, Node
from headway.testkit.simulation.processes import Process, Worker
from headway.testkit.simulation.ranks import Ranks
from headway.trainer.config import LaunchConfig, ParallelConfig, RecoveryConfig, RunConfig

TICK_S = 0.1
IMPORT_S = 0.3
"""Until a process of a node reports."""
WATCH_S = 0.5
"""Between two looks of a node at its processes: each costs as much as a tick of the driver."""
FROZEN_S = 2.0
"""Time that the monitor takes to blame a frozen worker."""


class Cluster:
    """Nodes 0 and 1 carry two ranks each, the others are spares. Made, it has its first driver."""

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        nodes: int = 3,
        limits: RecoveryConfig = LIMITS,
        steps: int = STEPS,
        replaces: Replaces = "nothing",
    ) -> None:
        self._replaces = replaces
        self.now = 0.0
        self.random = random.Random(seed)
        self.network = Network(self.random)
        self.disk, self.limits, self.steps = Disk(), limits, steps
        launch = LaunchConfig(nodes=2, ranks_per_node=2, spares=nodes - 2)
        config = RunConfig(parallel=ParallelConfig(dp=4), launch=launch, recovery=limits)
        self.lease = Lease()
        self.nodes = {number: self._node(number, config) for number in range(nodes)}
        self.ranks = Ranks(self.nodes, self.disk, self.random, steps, self._to_driver)
        self.frozen_at: dict[str, float] = {}
        self.verdicts: list[VerdictReceived] = []
        self.drivers: list[Driver] = []
        """Those that are running."""
        self._hosts: dict[int, int] = {}
        """Epoch of a driver -> its node."""
        self._starting: list[tuple[int, Process]] = []
        while not self.drivers:
            self.tick()
        self.network.loss = loss

    def _node(self, number: int, config: RunConfig) -> Node:
        made = Node(
            number,
            config,
            self.lease,
            self.random,
            is_fresh=True,
            import_s=IMPORT_S,
            watch_s=WATCH_S,
        )

        def on_start(process: Process) -> None:
            if process.name == "driver":
                self._starting.append((number, process))

        made.send, made.on_start = lambda message: self._to_driver(made, message), on_start
        return made

    # ---- what tests look at ---------------------------------------------------------------------
    @property
    def driver(self) -> Driver:
        """The newest driver, which may have ended."""
        return self._newest

    @property
    def state(self) -> RunState:
        return self.driver.state

    @property
    def finished(self) -> Finish | None:
        return self.disk.finished

    @property
    def journal(self) -> list[BeginGeneration]:
        return self.disk.journal

    @property
    def total(self) -> int:
        """Steps of the whole run, with every extension that was accepted."""
        return self.ranks.total(len(self.disk.commands))

    def members(self) -> list[Worker]:
        """Workers that were given a rank."""
        return [worker for _, worker in self.ranks.members()]

    def run(self, ticks: int) -> None:
        """Let time pass, at most until the run is over."""
        for _ in range(ticks):
            if self.finished is None:
                self.tick()

    # ---- disturbances ---------------------------------------------------------------------------
    def lose_node(self, number: int) -> None:
        """The machine is lost permanently."""
        self.nodes[number].wipe()
        self.nodes[number].is_lost = True

    def command(self, operation: SteerOperation, count: int = 0) -> None:
        """A command of the user."""
        steer = Steer(sequence=len(self.disk.commands) + 1, operation=operation, count=count)
        self.disk.commands.append(steer)
        self.driver.inbox.append(CommandQueued(steer))

    def judge(self, response: str, node: int, **about: object) -> None:
        """A verdict of the monitor, repeated until it is answered."""
        verdict = VerdictReceived(
            id=f"v{len(self.verdicts)}", revision=1, kind="test", response=response, node=node
        )
        for name, value in about.items():
            object.__setattr__(verdict, name, value)
        self.verdicts.append(verdict)

    # ---- one tick of everything -----------------------------------------------------------------
    def tick(self) -> None:
        """A tenth of a second."""
        self.now = round(self.now + TICK_S, 1)
        for node in self.nodes.values():
            node.tick(self.now)
        self.ranks.tick(TICK_S)
        self._watch_frozen()
        for number, to_driver, message in self.network.arrived(self.now):
            if not to_driver:
                self._to_node(self.nodes[number], message)
            elif (driver := self._driver_of(message[0])) is not None:
                driver.inbox.append(message[1])
                if isinstance(message[1], NodeBeat):
                    self._greet(driver, number)
        self._start_drivers()
        for driver in self.drivers:
            driver.tick(self.now, TICK_S)
        self.drivers = [d for d in self.drivers if d.process.state != "Z"]

    def _watch_frozen(self) -> None:
        for node, worker in self.ranks.members():
            if worker.is_hung and worker.status != "idle":
                at = self.frozen_at.setdefault(worker.name, self.now)
                if self.now - at > FROZEN_S:
                    self.judge("kill_worker", node.number, pid=worker.pid)
                    self.frozen_at[worker.name] = self.now + 5.0
        if round(self.now * 10) % 10 == 0 and self.drivers:
            self.verdicts = [v for v in self.verdicts if not self.driver.answers.get(v.id)]
            self.driver.inbox += self.verdicts

    def _start_drivers(self) -> None:
        for number, process in [s for s in self._starting if s[1].is_up(self.now, IMPORT_S)]:
            for former in self.drivers:
                if former.host == number:
                    former.process.kill()  # a driver ends its predecessor on its own machine
            if self.lease.renew(process.epoch, number, process.id):
                self._newest = Driver(
                    self.disk,
                    self.nodes,
                    process,
                    number,
                    self.now,
                    partial(self._order, number),
                    limits=self.limits,
                    steps=self.steps,
                    replaces=self._replaces,
                )
                self.drivers.append(self._newest)
                self._hosts[process.epoch] = number
            else:
                process.kill()
        self._starting = [
            s for s in self._starting if s[1].state == "S" and not s[1].is_up(self.now, IMPORT_S)
        ]

    # ---- the network ----------------------------------------------------------------------------
    def _driver_of(self, epoch: int) -> Driver | None:
        return next((d for d in self.drivers if d.start.epoch == epoch), None)

    def _to_driver(self, node: Node, message: Message) -> None:
        if node.is_up and node.follows:
            host, sent = self._hosts[node.follows], (node.follows, message)
            self.network.send(self.now, node.number, host, sent, to_driver=True)

    def _order(self, host: int, number: int, message: object) -> None:
        self.network.send(self.now, number, host, message, to_driver=False)

    def _greet(self, driver: Driver, number: int) -> None:
        """The answer to a beat. The version is read as the shell reads it: after earlier beats."""
        beat = DriverBeat(
            epoch=driver.start.epoch,
            refill=driver.state.refill,
            active=driver.state.is_active(number),
            known_version=driver.state.known_version(number),
            run_id=RUN_ID,
        )
        self._order(driver.host, number, beat)

    def _to_node(self, node: Node, message: Message) -> None:
        if node.on_order(message) and isinstance(message, ToWorker):
            self.ranks.order(node, message)
