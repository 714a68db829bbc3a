"""Periodically asks the engine, on a separate thread, whether the inits of nodes have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.common.decide import Done, Failed
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.events import (
    ExecutorEnded,
    ReleaseNode,
    ReplaceMachine,
    RestartNode,
)
from headway.controller.driver.connections import MAX_ASKED, Connections
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine, NodeLost
from headway.launch.engines.remote.reach import OnOrder

SILENT_S = 0.6  # a little longer than a beat

log = get_logger("driver")


def answer_to(
    action: RestartNode | ReleaseNode | ReplaceMachine,
    error: Exception | None,
    result: object = None,
) -> Done | Failed:
    """What an engine's answer means for the decisions."""
    if error is None:
        return Done(action, result if isinstance(result, str) else "")
    is_final, is_on_order = isinstance(error, NodeLost), isinstance(error, OnOrder)
    return Failed(action, str(error), is_final=is_final, is_on_order=is_on_order)


class EngineProbe:
    """Finds inits that have ended, by asking about at most ``MAX_ASKED`` nodes at a time.

    Executors that have died are not looked for: their inits restart them.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: ClusterFolder,
        lines: Connections,
        background: ThreadPerKind,
        handle: Callable[[ExecutorEnded], object],
        note: Callable[[str, dict[str, Any]], object],
    ) -> None:
        self._engine, self._cluster, self._connections = engine, cluster, lines
        self._background, self._handle, self._note = background, handle, note
        self._begin = 0

    def find_ended(self) -> None:
        """Find silent nodes that need a new init; the decision is the core's."""

        def then(ended: list[int] | None, _error: Exception | None) -> None:
            for node in ended or ():
                self._handle(ExecutorEnded(node))

        nodes = self._connections.silent(SILENT_S)
        if nodes:
            look = lambda: [node for node in nodes if self._has_ended(node)]  # noqa: E731
            self._background.submit("look for ended inits", look, then)

    def find_orphans(self, nodes: Sequence[int]) -> None:
        """Start the init of executors that have lost theirs; they themselves are well: they report.

        One that has not reported to this driver may be stopped together with its init. To start it
        here would hide from ``find_ended`` that the node has ended.
        """
        well = self._connections.nodes - set(self._connections.silent(SILENT_S))
        begin = self._begin if self._begin < len(nodes) else 0
        self._begin = begin + MAX_ASKED
        asked = [node for node in nodes[begin : self._begin] if node in well]

        def restart() -> list[int]:
            started = []
            for node in asked:
                # In this order: an init that ended as asked has outlived its executor.
                if self._has_ended(node) and self._cluster.living(node) is not None:
                    try:
                        self._engine.start_node(node)
                        started.append(node)
                    except (HeadwayError, OSError) as failed:  # the others need theirs too
                        log.warning("no init can be started", node=node, reason=str(failed))
            return started

        def then(started: list[int] | None, error: Exception | None) -> None:
            for node in started or ():
                self._note("init_restarted", {"node": node})
            if error is not None:
                log.warning("no init can be started", reason=str(error))

        self._background.submit("look for lost inits", restart, then)

    def _has_ended(self, node: int) -> bool:
        try:
            return self._engine.has_ended(node)
        except (HeadwayError, OSError):
            return False  # then only its silence shows it
