"""Carries out what the state of the run decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.ckpt_store import mark_generation
from headway.common.decide import Action, Done, Failed, Log
from headway.common.log import get_logger
from headway.common.node.run_dir import RunDir
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.events import (
    Answer,
    AwaitCheckpoint,
    BeginGeneration,
    CheckCheckpoint,
    FindDurable,
    Finish,
    Input,
    ReleaseNode,
    Remember,
    ReplaceMachine,
    RestartNode,
    Send,
)
from headway.controller.driver.connections import Connections
from headway.controller.driver.durable import Checkpoints
from headway.controller.driver.engine_probe import answer_to
from headway.controller.driver.join_server import JoinServer
from headway.controller.driver.memory import remember
from headway.controller.journal.writer import JournalWriter
from headway.launch.engine import Engine

log = get_logger("driver")


@dataclass(frozen=True, kw_only=True)
class ActionRunner:
    """What takes long is done on threads of its own; what came of it is handed to ``handle``."""

    node: int
    """The driver's own."""
    run_dir: RunDir
    engine: Engine
    background: ThreadPerKind
    journal: JournalWriter
    connections: Connections
    joins: JoinServer | None
    checkpoints: Checkpoints
    handle: Callable[[Input], None]
    note: Callable[[str, dict[str, Any]], None]
    """Records an event."""
    answer: Callable[[Answer], None]
    finish: Callable[[Finish], None]
    leave: Callable[[], None]
    """Ends the driver, whose node has left the run."""

    def carry_out(self, action: Action) -> None:
        """Carry out one action, or begin to. It may raise anything."""
        match action:
            case Log():
                self.note(action.event, action.fields)
                if action.fields.get("is_bad"):
                    self._report_bad(action.fields["node"], action.fields["reason"])
            case Send():
                self.connections.send(action.node, action.message)
            case Answer():
                self.answer(action)
            case BeginGeneration():
                self._begin(action)
            case FindDurable():
                self.checkpoints.find(action)
            case CheckCheckpoint():
                self.checkpoints.check(action)
            case AwaitCheckpoint():
                self.checkpoints.await_newer(action)
            case RestartNode(node):
                self._ask_engine(action, lambda: self.engine.start_node(node, kill_hung=True))
            case ReleaseNode():
                if self.joins is not None:
                    self.joins.revoke(action.node)
                self._ask_engine(action, lambda: self.engine.lose_node(action.node))
            case ReplaceMachine(node, reason):
                if node == self.node:  # its machine ends with everything on it
                    self.handle(Failed(action, "the driver runs there and leaves first"))
                    log.warning("the machine of this driver is to be replaced; leaving", node=node)
                    self.leave()
                    return
                self._ask_engine(action, lambda: self.engine.replace_machine(node, reason))
            case Remember():
                self._write(action, lambda journal: remember(journal, action.memory))
            case Finish():
                self.finish(action)

    def _write(self, action: Action, work: Any) -> None:
        def then(_result: object, error: str) -> None:
            self.handle(Failed(action, error) if error else Done(action))

        self.journal.submit(work, then)

    def _begin(self, action: BeginGeneration) -> None:
        def numbered(_result: object, error: str) -> None:
            if error:
                self.handle(Failed(action, error))
            else:
                self.background.submit("mark the generation in the checkpoints folder", mark, then)

        def mark() -> None:
            mark_generation(self.run_dir.checkpoints, action.generation, action.restored_step)

        def then(_result: object, error: Exception | None) -> None:
            self.handle(Done(action) if error is None else Failed(action, str(error)))

        numbers = action.generation, action.rank_nodes
        self.journal.submit(lambda journal: journal.begin_generation(*numbers), numbered)

    def _ask_engine(self, action: RestartNode | ReleaseNode | ReplaceMachine, work: Any) -> None:
        def then(result: object, error: Exception | None) -> None:
            self.handle(answer_to(action, error, result))
            if error is None and action == ReleaseNode(self.node):
                # its executor and its monitor are gone: another node must lead
                log.warning("the node of this driver has left the run; leaving", node=self.node)
                self.leave()

        self.background.submit(f"{type(action).__name__} {action.node}", work, then)

    def _report_bad(self, node: int, reason: str) -> None:
        """Report a bad machine to the engine; tried once, since the run does not depend on it."""

        def then(_result: object, error: Exception | None) -> None:
            if error is not None:
                log.warning("cannot take the machine out of service", node=node, error=str(error))

        self.background.submit(
            f"report node {node}", lambda: self.engine.report_bad(node, reason), then
        )
