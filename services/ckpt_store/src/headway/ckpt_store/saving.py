"""An order to make the newest snapshot in memory durable, and how far that is; no files, no clock.

It comes as ``Flush`` with ``newest``, or because the daemon is asked to end. One step is written at
a time: a target stays until it is complete, given up, or overwritten by ranks that step on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headway.ckpt_store.attempts import Attempt, Key
from headway.ckpt_store.events import Slot
from headway.ckpt_store.folder import FolderView
from headway.ckpt_store.in_memory import Holding, candidates

OTHERS_S = 5.0
"""How long the parts of other nodes are waited for, since the last one was new."""
LINGER_S = 5.0
"""How long a daemon that is asked to end waits for the end of the ranks: where everything is asked
to end at once, ranks may complete another step after the daemon has looked."""


class Saving:
    """``now`` is a monotonic clock in seconds."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._is_asked = False
        self._ends_since: float | None = None
        self._written: set[Slot] = set()
        self._passed: set[Key] = set()
        self._seen: tuple[object, ...] = ()
        self._moved_at = 0.0
        self._has_slots = False
        self.target: Key | None = None
        """The step that is being written, and its generation."""

    @property
    def is_on(self) -> bool:
        """Whether there is an order that is not carried out."""
        return self._is_asked or self._ends_since is not None

    @property
    def is_ending(self) -> bool:
        """Whether the daemon was asked to end."""
        return self._ends_since is not None

    @property
    def is_open(self) -> bool:
        """Whether something is to be written, or that has not been looked at."""
        return self._is_asked or self.target is not None

    def ask(self) -> None:
        """Write the newest snapshot out; nothing happens where it is durable."""
        if not self._is_asked:
            self._passed.clear()
        self._is_asked = True

    def end(self, now: float) -> None:
        """The daemon will end: the same until ``is_over``."""
        if self._ends_since is None:
            self._ends_since = now
            self._passed.clear()

    def look(
        self,
        holdings: Mapping[int, Holding],
        view: FolderView,
        given_up: Collection[Key],
        now: float,
    ) -> None:
        """Choose what to write; with no target afterwards there is nothing to do."""
        attempts = {attempt.key: attempt for attempt in view.attempts}
        if self.target is not None and self._is_stuck(attempts, now):
            self._passed.add(self.target)  # some rank does not hold it: the one before may do
        found = candidates(holdings, self._world_size, view, {*given_up, *self._passed})
        best, target = next(iter(found), None), self.target
        is_held = all(target in holding.sealed for holding in holdings.values())
        if target is not None and not is_held and not self.is_ending:
            best = None  # ranks step again and can make a checkpoint themselves
        elif target in found and best not in attempts:
            best = target  # one after the other, unless another node writes a later one
        if best != target:
            self.target, self._written, self._has_slots = best, set(), True
        self._is_asked = self._is_asked and best is not None

    def pick(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        """What to flush of ``slots``; at the end only the newest step: time is short."""
        left = [slot for slot in slots if slot not in self._written]
        ours = [slot for slot in left if slot.key == self.target]
        self._has_slots = bool(ours)
        return tuple(ours if self.is_ending and self.target is not None else left)

    def flushed(self, slot: Slot) -> None:
        """A part was written."""
        if slot.key == self.target:
            self._written.add(slot)

    def completed(self, key: Key) -> bool:
        """A checkpoint is complete; whether it is the one of the order."""
        if key != self.target:
            return False
        self.target, self._is_asked, self._written = None, False, set()
        return True

    def is_over(self, now: float, *, is_written: bool) -> bool:
        """Whether a daemon that was asked to end may do so.

        Args:
            now: the clock.
            is_written: a rank may complete a further step.
        """
        assert self._ends_since is not None
        return self.target is None and (not is_written or now - self._ends_since >= LINGER_S)

    def _is_stuck(self, attempts: Mapping[Key, Attempt], now: float) -> bool:
        """Whether the parts of other nodes do not come, while all of this node are written."""
        assert self.target is not None
        attempt = attempts.get(self.target)
        seen = (self.target, attempt.ranks if attempt is not None else None)
        if seen != self._seen or self._has_slots:
            self._seen, self._moved_at = seen, now
        return now - self._moved_at >= OTHERS_S
