"""A simulated driver process around the real ``RunState``, and a disk that may fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.common.decide import Action, Done, Failed, Log
from headway.common.paces import LEASE_RENEW_S
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import (
    Answer,
    AwaitCheckpoint,
    BeginGeneration,
    CheckCheckpoint,
    DurableFound,
    FindDurable,
    Finish,
    Input,
    Memory,
    ReleaseNode,
    Remember,
    ReplaceMachine,
    RestartNode,
    Send,
    Start,
    Tick,
)
from headway.controller.decisions.phases.transitions import TRANSITIONS
from headway.controller.decisions.state import PHASES, RunState
from headway.launch.engine import Replaces
from headway.testkit.simulation.node import RUN_ID, Node
from headway.testkit.simulation.processes import Process
from headway.trainer.config import RecoveryConfig

SLACK_S = 1.5
STEPS = 30
RANKS = {0: 0, 1: 0, 2: 1, 3: 1}
LIMITS = RecoveryConfig(
    group_timeout_s=4.0,
    fork_limit_s=4.0,
    join_timeout_s=8.0,
    leave_timeout_s=2.0,
    node_silent_s=1.5,
    node_lost_s=4.0,
    driver_silent_s=0.75,
    gather_timeout_s=6.0,
    read_timeout_s=3.0,
    choose_timeout_s=6.0,
    stop_timeout_s=10.0,
    wait_for_node_s=100.0,
    replace_after_s=20.0,
    max_crashes=50,
)


@dataclass
class Disk:
    """What outlives a driver: journal, memory, commands, checkpoints; and whether it works."""

    journal: list[BeginGeneration] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    commands: list[Steer] = field(default_factory=list)
    durable: dict[int, bool] = field(default_factory=dict)
    """Step of each complete checkpoint -> whether it is good."""
    is_elsewhere: bool = False
    """Where the checkpoints folder was there is an empty one, as without its mount."""
    finished: Finish | None = None
    failing: dict[str, str] = field(default_factory=dict)
    """Kind of action -> ``fails``, ``silent`` (no answer), ``lies`` (done, and
    reported as failed)."""
    epoch: int = 0


class WatchedState(RunState):
    """Notes which phases follow each other; each pair must be in the table of transitions."""

    def __init__(self, start: Start, limits: RecoveryConfig, now: float) -> None:
        self.followed: set[tuple[str, str]] = set()
        super().__init__(start, limits, now)

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        assert (self.phase, phase) in TRANSITIONS, f"no run goes from {self.phase} to {phase}"
        self.followed.add((self.phase, phase))
        super().enter(phase)


class Driver:
    """Handles events while its process is running, executes actions, and renews its lease."""

    def __init__(
        self,
        disk: Disk,
        nodes: dict[int, Node],
        process: Process,
        host: int,
        now: float,
        send: Callable[[int, object], None],
        *,
        limits: RecoveryConfig = LIMITS,
        steps: int = STEPS,
        replaces: Replaces = "nothing",
    ) -> None:
        self.disk, self.nodes, self.process, self.host = disk, nodes, process, host
        self._lease, self._send = nodes[host].lease, send
        assert process.epoch > disk.epoch, f"epoch {process.epoch} was used before"
        disk.epoch = process.epoch
        last = disk.journal[-1] if disk.journal else None
        self.start = Start(
            run_id=RUN_ID,
            steps=steps,
            rank_nodes=dict(last.rank_nodes) if last else dict(RANKS),
            nodes=len(nodes),
            generation=last.generation if last else -1,
            commands=tuple(disk.commands),
            epoch=disk.epoch,
            memory=disk.memory,
            checks_nodes=True,
            replaces=replaces,
            unix_s=now,
        )
        self.began_at, self.limits = now, limits
        self.state = WatchedState(self.start, limits, now)
        self.inbox: list[Input] = []
        self.answers: dict[str, str] = {}
        self.logs: list[Log] = []
        self.history: list[tuple[Input, float]] = []
        self.decisions: list[list[Action]] = []
        """What was decided on each event of ``history``."""
        self.asleep_until = self.blind_until = 0.0
        """Until then it does nothing; or it works without seeing its lease."""
        self._awake_s = self._sign_s = self._renew_at = 0.0
        self._phase = self.state.phase

    @property
    def is_superseded(self) -> bool:
        return self.start.epoch < self.disk.epoch

    def tick(self, now: float, dt: float) -> None:
        """Handle what has arrived, then a tick; nothing while it is stalled."""
        if now < self.asleep_until or self.process.state != "S":
            return
        self._awake_s += dt
        events, self.inbox = self.inbox, []
        for event in events:
            self.handle(event, now)
        self.handle(Tick(), now)
        self._check_silence()
        if now >= max(self._renew_at, self.blind_until):
            self._renew_at = now + LEASE_RENEW_S
            if not self._lease.renew(self.start.epoch, self.host, self.process.id):
                self.process.kill()

    def handle(self, event: Input, now: float) -> list[Action]:
        """Let the state decide, check every invariant, and execute the actions."""
        self.history.append((event, now))
        actions = self.state.handle(event, now)
        self.decisions.append(actions)
        self.state.validate()
        for action in actions:
            self._carry_out(action)
        return actions

    def _check_silence(self) -> None:
        """Check that no phase exceeds its limit without a report."""
        state = self.state
        if state.phase != self._phase or state.phase in ("running", "over"):
            self._phase, self._sign_s = state.phase, self._awake_s
        silent_s = self._awake_s - self._sign_s
        limit_s = PHASES[state.phase].limit_s(state)
        assert silent_s <= limit_s + SLACK_S, f"{state.phase} gave no sign for {silent_s:.1f} s"
        assert state.phase == "running" or state.why(), f"{state.phase} does not say why"

    # ---- actions --------------------------------------------------------------------------------
    def _carry_out(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action.node, action.message)
            case Log():
                self.logs.append(action)
                self._sign_s = self._awake_s
            case Answer():
                self.answers[action.id] = action.taken
            case _:
                self._attempt(action)

    def _attempt(self, action: Any) -> None:
        how = self.disk.failing.get(type(action).__name__, "")
        if self.is_superseded:
            how = "fails"  # the journal refuses a driver that has lost the lease
        if not how or how == "lies":
            error = self._do(action)
        else:
            error = "no space left on device"
        if how == "silent" or (isinstance(action, FindDurable) and not error):
            return
        if isinstance(action, FindDurable):
            answer: Input = DurableFound(None, "MANIFEST.json cannot be read", action.only)
        elif error or how == "lies":
            answer = Failed(
                action, error or "the disk did not answer", is_final=error in ("gone", "damaged")
            )
        else:
            answer = Done(action)
        self.inbox.append(answer)

    def _do(self, action: Any) -> str:
        """Returns why it failed, or nothing."""
        disk = self.disk
        match action:
            case BeginGeneration():
                newest = disk.journal[-1].generation if disk.journal else -1
                assert action.generation > newest, f"{action.generation} was used before"
                disk.journal.append(action)
                disk.durable = {s: g for s, g in disk.durable.items() if s <= action.restored_step}
            case FindDurable():
                self.inbox.append(self._found(action))
            case CheckCheckpoint():
                return "" if disk.durable.get(action.step) and not disk.is_elsewhere else "damaged"
            case AwaitCheckpoint():
                return "" if max(disk.durable, default=-1) > action.after else "not yet"
            case Remember():
                disk.memory = action.memory
            case Finish():
                disk.finished = action
            case RestartNode():
                if self.nodes[action.node].is_lost:
                    return "gone"
                self.nodes[action.node].restart()
            case ReleaseNode():
                self.nodes[action.node].release()
            case ReplaceMachine():
                if action.node == self.host:  # with its machine the driver would end
                    self.process.kill()
                    return "the driver runs there and leaves first"
                self.nodes[action.node].wipe()
                self.nodes[action.node].is_lost = False
        return ""

    def _found(self, action: FindDurable) -> DurableFound:
        disk, only = self.disk, action.only
        if disk.is_elsewhere and action.marked >= 0:
            return DurableFound(None, "it is another folder", only)
        steps = [s for s in disk.durable if s not in action.bad and only in (-1, s)]
        found = (max(steps), f"step-{max(steps)}") if steps else None
        return DurableFound(found, only=only)
