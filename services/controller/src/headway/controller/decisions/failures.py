"""Which nodes' ranks keep dying, and what a recovery costs.

Failures are counted per node for an hour. The cost is the time from a fence until all ranks step
again.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

WINDOW_S = 3600.0
"""A failure counts for this long."""
MAX_KEPT = 128
MAX_CAUSE = 120
NUM_KEPT = 16
FIRST_S = 10.0
"""Stands for the cost of a recovery before one was measured: that of a worker which is started
anew takes some 8 s (``HealthConfig.again_s``)."""
_DIGITS = re.compile(r"\d+")


class Failure(NamedTuple):
    """One generation that ended by a rank of the node."""

    node: int
    generation: int
    at: float
    cause: str
    is_error: bool
    """An exception of the rank's code, and not a death of its process."""
    step: int
    """The step that the generation began at."""


class Failures:
    """Failures of the nodes' ranks, the newest last.

    Args:
        known: what the driver before knew, as ``kept``.
        now: on this driver's clock; the newest of those counts as happening now.
    """

    def __init__(
        self, known: Iterable[tuple[int, int, int, str, bool, int]] = (), now: float = 0.0
    ) -> None:
        self._all = [
            Failure(node, generation, now - before_s, cause, is_error, step)
            for node, generation, before_s, cause, is_error, step in known
        ]

    def add(self, new: Failure) -> bool:
        """Count a failure and return whether it is new; a known one is not counted.

        A node's ranks may all fall together, and an exception that repeats at one step is the
        code's fault.
        """
        self._all = [one for one in self._all if new.at - one.at < WINDOW_S]
        for one in self._all:
            # such as two messages on memory that differ in the bytes that are free
            is_alike = _DIGITS.sub("", one.cause) == _DIGITS.sub("", new.cause)
            is_repeated = new.is_error and is_alike and one.step == new.step
            if one.node == new.node and (one.generation == new.generation or is_repeated):
                return False
        self._all = [*self._all, new._replace(cause=new.cause[:MAX_CAUSE])][-MAX_KEPT:]
        return True

    def excess(self, node: int, now: float) -> int:
        """How many more failures the node has had within the hour than any other node.

        What happens on all nodes is not the fault of one. An exception that another node has
        raised, too, does not count.
        """
        recent = [one for one in self._all if now - one.at < WINDOW_S]
        nodes_of: dict[str, set[int]] = {}
        for one in recent:
            nodes_of.setdefault(one.cause, set()).add(one.node)
        counts = Counter(
            one.node for one in recent if not one.is_error or len(nodes_of[one.cause]) == 1
        )
        return counts.pop(node, 0) - max(counts.values(), default=0)

    def causes(self, node: int) -> list[str]:
        """Why they failed, each reason once."""
        return list(dict.fromkeys(one.cause for one in self._all if one.node == node))

    @property
    def nodes(self) -> set[int]:
        """The nodes that have had any."""
        return {one.node for one in self._all}

    @property
    def kept(self) -> tuple[tuple[int, int, int, str, bool, int], ...]:
        """(node, generation, seconds before the newest, cause, is_error, step)."""
        newest = self._all[-1].at if self._all else 0.0
        return tuple(
            (one.node, one.generation, int(newest - one.at), one.cause, one.is_error, one.step)
            for one in self._all
        )


class RecoveryCost:
    """Fed by the core; all times in seconds on the driver's own clock.

    Args:
        durations: those that the driver before measured, as ``durations``.
    """

    def __init__(self, durations: Iterable[float] = ()) -> None:
        self._durations = deque(durations, maxlen=NUM_KEPT)
        self._begun_at: float | None = None

    def begin(self, now: float) -> None:
        """A generation was fenced; a recovery that is under way continues."""
        if self._begun_at is None:
            self._begun_at = now

    def discard(self) -> None:
        """The recovery under way takes longer for another reason, such as a pause."""
        self._begun_at = None

    def end(self, now: float) -> bool:
        """All ranks step; returns whether that ended a recovery."""
        if self._begun_at is None:
            return False
        self._durations.append(round(now - self._begun_at, 2))
        self._begun_at = None
        return True

    @property
    def usual_s(self) -> float:
        """The median of the newest; one stall in many must not raise it."""
        return statistics.median(self._durations) if self._durations else FIRST_S

    @property
    def durations(self) -> tuple[float, ...]:
        """The newest recoveries, oldest first."""
        return tuple(self._durations)
