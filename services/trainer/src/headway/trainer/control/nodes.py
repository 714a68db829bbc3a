"""What the driver knows of nodes and workers."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.worker import Restore


@dataclass
class Node:
    """What the driver knows of a node."""

    status: str = "silent"
    """``active``, ``spare``, ``silent`` (no beat) or ``lost`` (given up)."""
    heard_at: float = 0.0
    asked_at: float = float("-inf")
    workers: dict[str, WorkerBeat] = field(default_factory=dict)
    services: dict[str, int] = field(default_factory=dict)


class View:
    """The newest beats and who is a member of the current generation; only looks, decides nothing."""

    nodes: dict[int, Node]
    rank_nodes: dict[int, int]
    """Rank -> the node that carries it."""
    members: dict[int, str]
    """Rank -> the worker that holds it in this generation."""
    gone: set[str]
    """Workers that are dead, or as good as dead."""
    generation: int
    restore: Restore

    @property
    def step(self) -> int:
        """Completed steps: the least that every member reports."""
        views = [self.worker(worker) for worker in self.members.values()]
        return min(
            (v.step for v in views if v is not None and v.generation == self.generation),
            default=self.restore.step,
        )

    @property
    def applied(self) -> int:
        """Newest command that every member applied."""
        return min(
            (v.applied for v in map(self.worker, self.members.values()) if v is not None), default=0
        )

    @property
    def paused(self) -> bool:
        """Whether a member reports that it stands still on request."""
        return any(v.paused for v in map(self.worker, self.members.values()) if v is not None)

    def worker(self, worker: str | None) -> WorkerBeat | None:
        """The newest beat of a worker, None if its node reports none."""
        for node in self.nodes.values():
            if worker in node.workers:
                return node.workers[worker]
        return None

    def _home(self, worker: str) -> int | None:
        return next((n for n, node in self.nodes.items() if worker in node.workers), None)

    def _alive(self, worker: str | None) -> bool:
        return worker is not None and worker not in self.gone and self.worker(worker) is not None

    def _is(self, worker: str, *statuses: str) -> bool:
        view = self.worker(worker)
        return view is not None and view.generation == self.generation and view.status in statuses

    def _inside(self, worker: str) -> bool:
        """Whether the worker still holds groups of some generation."""
        view = self.worker(worker)
        return view is not None and view.status in ("joining", "restored", "running", "finished")

    def _all(self, *statuses: str) -> bool:
        return set(self.members) == set(self.rank_nodes) and all(
            self._alive(w) and self._is(w, *statuses) for w in self.members.values()
        )

    def _mark(self, worker: str, status: str) -> None:
        home, view = self._home(worker), self.worker(worker)
        if home is not None and view is not None:
            self.nodes[home].workers[worker] = msgspec.structs.replace(view, status=status)  # type: ignore[type-var]

    def spare_for(self, number: int) -> bool:
        """Whether a spare is ready: without one, waiting for a slow start is better than giving up."""
        idle = (
            view
            for n, view in self.nodes.items()
            if n != number and n not in self.rank_nodes.values()
        )
        return any(view.status == "spare" for view in idle)
