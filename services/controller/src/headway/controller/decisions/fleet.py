"""Nodes and their workers as the newest beats show them, indexed by state.

The indexes make a beat cost the same at any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from headway.common.plan.topology import Topology
from headway.common.wire.messages.driver import NodeBeat, NodeState
from headway.common.wire.messages.executor import WorkerBeat, WorkerState
from headway.controller.decisions.admission.check_table import CheckTable
from headway.controller.decisions.node import Node, may_return

INSIDE: frozenset[WorkerState] = frozenset({"joining", "restored", "running", "finished"})
"""Statuses of a worker that holds groups of some generation."""
SANE_GENERATIONS = 1_000_000
"""A beat that is so far ahead of the newest known generation is not believed."""


@dataclass(slots=True)
class Change:
    """A worker that changed in more than its step; None where there was, or is, none."""

    worker: str
    old: WorkerBeat | None
    new: WorkerBeat | None


@dataclass(slots=True)
class Received:
    """What a beat changed."""

    node: Node
    changes: list[Change]
    returned: bool = False
    was_silent: bool = False
    is_restarted: bool = False
    """Another executor has sent it than the one before."""
    is_checked: bool = False
    """It has the result of a check, as ``CheckTable.take`` says."""


class Fleet:
    """All nodes of a run. It knows facts only; what to do about them is decided elsewhere."""

    def __init__(
        self, nodes: int, rank_nodes: dict[int, int], topology: Topology | None = None
    ) -> None:
        self.topology = topology or Topology.one_switch(nodes)
        self.nodes = {number: Node(number) for number in range(nodes)}
        self.rank_nodes = dict(sorted(rank_nodes.items()))
        self.home: dict[str, int] = {}
        """Worker -> its node."""
        self.inside: dict[str, int] = {}
        """Workers that hold groups of some generation and are not condemned -> their node."""
        self.marked_for_kill: dict[str, int] = {}
        """Condemned workers that a beat still shows -> their node: they are to be killed."""
        self.spares: dict[int, None] = {}
        """Nodes that carry no rank and have reported."""
        self.unreachable: dict[int, None] = {}
        """Nodes that carry ranks and are silent or lost."""
        self.lost_carriers: dict[int, None] = {}
        """Nodes that carry ranks and are lost."""
        self.excluded: dict[int, None] = {}
        """Lost nodes that do not return at their next beat."""
        self.bare: dict[int, None] = {}
        """Nodes that report again after a silence, without any worker."""
        self.source = ""
        """Digest of the code of the run's ranks."""
        self.odd: dict[int, None] = {}
        """Nodes whose standbys are all of other code, as ``is_odd``."""
        self.checks = CheckTable()
        self.newest = -1
        """Newest generation that any worker was ever in: numbers up to it are used."""
        self._by_silence: dict[int, None] = dict.fromkeys(self.nodes)
        self._assign_ranks()

    # ---- what is known --------------------------------------------------------------------------
    def worker(self, name: str | None) -> WorkerBeat | None:
        """The newest beat of a worker, None if its node reports none."""
        home = self.home.get(name) if name is not None else None
        return self.nodes[home].workers[name] if home is not None and name is not None else None

    def living(self, name: str | None) -> WorkerBeat | None:
        """The newest beat of a worker, None also for one that is marked for kill."""
        view = self.worker(name)
        return None if view is None or self.is_gone(view.worker) else view

    def is_gone(self, name: str) -> bool:
        """Whether the worker is dead, or as good as dead."""
        home = self.home.get(name)
        return home is not None and name in self.nodes[home].gone

    def carriers(self) -> list[int]:
        """Nodes that carry ranks, in order."""
        return [number for number, node in self.nodes.items() if node.ranks]

    def spare_for(self, number: int) -> int | None:
        """Return the spare to take over from the node, None without a ready one.

        One that was checked, and then one that was given up least often, comes first; among such
        equals the nearest, below the same leaf switch or else below the lowest common one."""

        def order(spare: Node) -> tuple[bool, int, int, int]:
            levels = self.topology.levels(number, spare.number)
            return self.is_unchecked(spare), spare.losses, levels, spare.number

        ready = (self.nodes[n] for n in self.ready_spares() if n != number)
        best = min(ready, key=order, default=None)
        return None if best is None else best.number

    def nearest_first(self, numbers: Iterable[int]) -> list[int]:
        """The nodes, those that have a spare nearby first, so that no other node takes it."""

        def levels(number: int) -> int:
            spare = self.spare_for(number)
            return 0 if spare is None else self.topology.levels(number, spare)

        return sorted(numbers, key=levels)

    def is_unchecked(self, node: Node) -> bool:
        """Whether machines are checked, and this one has not passed."""
        return self.checks.is_on and node.check != "passed"

    def ready_spares(self) -> list[int]:
        """The spares in good order."""
        nodes = (self.nodes[number] for number in self.spares)
        return [node.number for node in nodes if not node.trouble and not self.is_odd(node)]

    def is_odd(self, node: Node) -> bool:
        """Whether the node's standbys are all of other code than the run's ranks."""
        return bool(self.source and node.sources) and not node.sources & {"", self.source}

    def held(self) -> bool:
        """Whether a worker that can be reached holds groups of some generation."""
        return any(self.nodes[home].status != "silent" for home in self.inside.values())

    def quiet(self, now: float, limit_s: float) -> Iterator[Node]:
        """Nodes that were silent for ``limit_s``, the longest silent first."""
        for number in list(self._by_silence):
            node = self.nodes[number]
            if now - node.beat_at < limit_s:
                return
            yield node

    def set_silent(self, node: Node, before_s: float) -> None:
        """It had been silent for so long when this driver began: the longest of all."""
        node.beat_at, node.silent_before_s = 0.0, before_s
        self._by_silence = {node.number: None, **self._by_silence}

    # ---- beats ----------------------------------------------------------------------------------
    def receive(self, beat: NodeBeat, now: float) -> Received | None:
        """Take in a beat; None if it is of an unknown node or of an ended executor."""
        node = self.nodes.get(beat.node)
        if node is None:
            return None
        process = (beat.incarnation, beat.pid)
        is_restarted = node.process[0] >= 0 and process != node.process
        if process != node.process:
            if beat.incarnation < node.process[0] and node.status in ("active", "spare"):
                return None
            if is_restarted:
                self.checks.executor_changed(node, now - node.beat_at, now)
            node.process, node.version = process, -1
        node.beat_at, node.silent_before_s = now, 0.0
        del self._by_silence[node.number]
        self._by_silence[node.number] = None
        node.loading_since = None if beat.loading_s is None else now - beat.loading_s
        received = Received(node, [], was_silent=node.is_missed, is_restarted=is_restarted)
        node.is_missed = False
        if beat.workers is None:
            if beat.version == node.version:
                node.step = beat.step
        elif beat.version >= node.version:
            received.changes = self._take(node, beat, beat.workers)
        received.is_checked = self.checks.take(node, beat.check, now)
        if node.status == "lost":
            has_failed = received.is_checked and node.check == "failed"
            if node.version < 0 or has_failed or not may_return(node):
                return received
            if self.checks.is_wanted_first(node, now):
                return received
            received.returned = True
        self.admit(node)
        return received

    def admit(self, node: Node) -> None:
        """A node that reports belongs to the run."""
        self.exclude(node, "")
        self._set_status(node, "active" if node.ranks else "spare")

    def _take(self, node: Node, beat: NodeBeat, workers: tuple[WorkerBeat, ...]) -> list[Change]:
        """The whole truth about the node's workers."""
        old, home, number = node.workers, self.home, node.number
        new: dict[str, WorkerBeat] = {}
        changes: list[Change] = []
        generation, step = -1, 0
        for view in workers:
            name = view.worker
            known = old.get(name)
            if known is None:
                if home.get(name, number) != number:
                    continue  # a name that another node has
                changes.append(Change(name, None, view))
            elif not _is_as_before(known, view):
                changes.append(Change(name, known, view))
            new[name] = view
            if view.generation > generation:
                generation, step = view.generation, view.step
            elif view.generation == generation and view.step < step:
                step = view.step
        if len(new) < len(old) + len(changes):
            changes += [Change(name, view, None) for name, view in old.items() if name not in new]
        node.workers, node.generation, node.step = new, generation, step
        node.version, node.trouble = beat.version, beat.trouble
        node.sources = frozenset([view.source for view in workers if view.status == "idle"])
        _keep(self.odd, number, None, self.is_odd(node))
        if beat.services is not None:
            node.services = dict(beat.services)
        if node.gone:
            self._forget_gone(node)
        if node.fell_silent:
            node.fell_silent = not any(name not in node.gone for name in node.workers)
            _keep(self.bare, number, None, node.fell_silent)
        for change in changes:
            self._index(node, change.worker)
        if self.newest < generation <= self.newest + SANE_GENERATIONS:
            self.newest = generation
        return changes

    def _forget_gone(self, node: Node) -> None:
        for name, pid in list(node.gone.items()):
            view = node.workers.get(name)
            if view is None or (
                pid and view.pid != pid
            ):  # a name may be used again on a new machine
                del node.gone[name]
                self._index(node, name)

    def _index(self, node: Node, name: str) -> None:
        """Bring the tables of workers in line with what the node now says of this one."""
        view = node.workers.get(name)
        if view is None:
            for table in (self.home, self.inside, self.marked_for_kill):
                table.pop(name, None)
            return
        self.home[name] = number = node.number
        # who was in a generation on a node that carries no ranks any more holds memory for nothing
        if name not in node.gone and view.generation >= 0 and not node.ranks:
            node.gone[name] = view.pid
        is_gone = name in node.gone
        _keep(self.marked_for_kill, name, number, is_gone)
        _keep(self.inside, name, number, not is_gone and view.status in INSIDE)

    # ---- workers --------------------------------------------------------------------------------
    def mark_for_kill(self, name: str) -> None:
        """The worker is not to be counted any more, and to be killed while beats show it."""
        node = self.nodes[self.home[name]]
        node.gone[name] = node.workers[name].pid
        self._index(node, name)

    def remove_dead(self, number: int, name: str, pid: int) -> None:
        """The worker's process has ended; an older beat that still shows it changes nothing."""
        node = self.nodes[number]
        node.gone[name] = pid
        node.workers.pop(name, None)
        self._index(node, name)

    def mark_left(self, name: str) -> None:
        """The worker said that it left its generation, before a beat shows it."""
        node = self.nodes[self.home[name]]
        node.workers[name] = msgspec.structs.replace(node.workers[name], status="left")  # type: ignore[type-var]
        self._index(node, name)

    # ---- nodes ----------------------------------------------------------------------------------
    def miss(self, node: Node) -> None:
        """Record that the node is silent.

        What comes next may be a new machine that counts as the old one did."""
        node.is_missed, node.fell_silent, node.version = True, True, -1
        self.bare.pop(node.number, None)
        if node.status != "lost":
            self._set_status(node, "silent")

    def lose(self, node: Node, exclusion: str) -> list[str]:
        """Give the node up; returns its workers, which count no more.

        Those that were in a generation are condemned: if the node reports again, they are killed.
        """
        workers = list(node.workers)
        for name in workers:
            if node.workers[name].generation >= 0:
                node.gone[name] = node.workers[name].pid
        node.workers = {}
        for name in workers:
            self._index(node, name)
        node.services, node.version, node.fell_silent = {}, -1, False
        self.bare.pop(node.number, None)
        node.excluded_process = node.process
        self.exclude(node, exclusion)
        node.losses += 1
        self.checks.forget(node)
        self._set_status(node, "lost")
        return workers

    def forgive_silences(self) -> None:
        """Nodes that have no worker yet are starting, and have not lost any."""
        for node in self.nodes.values():
            node.fell_silent = False
        self.bare.clear()

    def exclude(self, node: Node, exclusion: str) -> None:
        """Say what a lost node must show before it may return."""
        node.exclusion = exclusion
        _keep(self.excluded, node.number, None, bool(exclusion))

    def move_ranks(self, lost: int, spare: int) -> tuple[int, ...]:
        """Let the spare carry the ranks of a lost node."""
        ranks = self.nodes[lost].ranks
        self.rank_nodes.update(dict.fromkeys(ranks, spare))
        self._assign_ranks()
        return ranks

    def _assign_ranks(self) -> None:
        by_node: dict[int, list[int]] = {}
        for rank, number in self.rank_nodes.items():
            by_node.setdefault(number, []).append(rank)
        for number, node in self.nodes.items():
            node.ranks = tuple(by_node.get(number, ()))
            if node.ranks and node.check == "wanted":
                self.checks.forget(node)  # its executor ends a check that is under way
            if node.status in ("active", "spare"):
                node.status = "active" if node.ranks else "spare"
            self._set_status(node, node.status)
            for name in node.workers:
                self._index(node, name)

    def _set_status(self, node: Node, status: NodeState) -> None:
        node.status = status
        _keep(self.spares, node.number, None, status == "spare")
        has_ranks = bool(node.ranks)
        _keep(self.unreachable, node.number, None, has_ranks and status != "active")
        _keep(self.lost_carriers, node.number, None, has_ranks and status == "lost")


def _keep(table: dict[Any, Any], key: object, value: object, is_in: bool) -> None:
    if is_in:
        table[key] = value
    else:
        table.pop(key, None)


def _is_as_before(old: WorkerBeat, new: WorkerBeat) -> bool:
    """Whether the two differ in their step at most; written out because every full beat asks it."""
    return (
        old.status == new.status
        and old.generation == new.generation
        and old.rank == new.rank
        and old.pid == new.pid
        and old.command == new.command
        and old.source == new.source
        and old.applied == new.applied
        and old.paused == new.paused
        and old.restored_bytes == new.restored_bytes
        and old.memory_bytes == new.memory_bytes
    )


def names(nodes: Iterable[int], limit: int = 4) -> str:
    """``node 1``, ``nodes 1, 2``: for sentences, shortened where there are many."""
    numbers = list(nodes)
    shown = ", ".join(map(str, numbers[:limit]))
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"node{'s' if len(numbers) > 1 else ''} {shown}{more}"
