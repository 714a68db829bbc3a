"""The workers that hold the ranks, and how many of them are in which state.

The numbers are kept up as the states change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from headway.common.wire.messages.driver import RankState
from headway.common.wire.messages.executor import WorkerBeat

MISSING: Final = "missing"
"""Status of a rank without a living worker."""


Counted = tuple[RankState, bool, bool]
"""How one rank is counted: its status, whether its worker is in the current generation,
whether that waits in a pause."""
_VACANT: Counted = (MISSING, False, False)


class Members:
    """The workers that hold the ranks of the run, and the states of the ranks.

    ``workers`` maps ranks to the workers of the current generation, or of the one that is being
    made.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.workers: dict[int, str] = {}
        self.rank_of: dict[str, int] = {}
        self.generation = -1
        self.statuses: Counter[RankState] = Counter()
        """Status of a rank -> number of ranks, over the whole run."""
        self.current: Counter[RankState] = Counter()
        """Status of a rank -> number of ranks, in the current generation only."""
        self.num_paused = 0
        self.vacant: dict[int, None] = {}
        """Ranks without a living worker."""
        self._counted: dict[int, Counted] = {}
        for rank in ranks:
            self.vacant[rank] = None
            self.statuses[MISSING] += 1
            self._counted[rank] = _VACANT

    def put(self, rank: int, view: WorkerBeat) -> None:
        """Give the rank to a worker."""
        former = self.workers.get(rank)
        if former is not None:
            del self.rank_of[former]
        self.workers[rank] = view.worker
        self.rank_of[view.worker] = rank
        self.update(rank, view)

    def drop(self, rank: int) -> None:
        """Nobody holds the rank."""
        worker = self.workers.pop(rank, None)
        if worker is not None:
            del self.rank_of[worker]
        self.update(rank, None)

    def update(self, rank: int, view: WorkerBeat | None) -> None:
        """Count the rank's worker as it is now; None when it is dead or condemned."""
        new, old = self.counted(view), self._counted[rank]
        if new == old:
            return
        self._counted[rank] = new
        for (status, is_current, paused), sign in ((old, -1), (new, 1)):
            self.statuses[status] += sign
            self.current[status] += sign * is_current
            self.num_paused += sign * paused
        if view is None:
            self.vacant[rank] = None
        else:
            self.vacant.pop(rank, None)

    def counted(self, view: WorkerBeat | None) -> Counted:
        """How a worker in this state counts."""
        if view is None:
            return _VACANT
        is_current = view.generation == self.generation
        return view.status, is_current, view.paused and is_current

    def all(self, *statuses: RankState) -> bool:
        """Whether every rank is in the current generation, in one of these states."""
        return sum(self.current[status] for status in statuses) == len(self._counted)
