"""The group table of a rank: how many collectives it has entered and finished in each group.

One line of 64 bytes for each group in the first page of the rank's flight ring, so it is readable
while the rank hangs and after its death. Each line has one writer for what is entered and one for
what is done; both may be killed after any store. A count and the operation that it counts are one
word, and it is written last: a reader sees what was entered, if not always since when.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from headway.common.node.segment import LINE_BYTES, WORD_BYTES
from headway.common.plan.collectives import NUM_LINES, Membership

TABLE_BYTES = NUM_LINES * LINE_BYTES
_LINE = LINE_BYTES // WORD_BYTES
_GROUP, _GENERATION, _ENTERED, _NBYTES, _ENTERED_NS, _DONE, _DONE_NS = range(7)
_COUNT = (1 << 40) - 1
_SHIFT = 40
_NO_WORDS = memoryview(b"").cast("Q")
_OP_AT, _NUMBER_AT = 8, 16  # bits of operation and number in the name of a collective
_NUMBER = (1 << 32) - 1


class GroupLine:
    """Counts the collectives of one group. Made by ``GroupTable.begin``."""

    __slots__ = ("_at", "_done", "_words", "entered", "line")

    def __init__(self, words: memoryview, at: int, line: int) -> None:
        self._words, self._at, self.line = words, at, line
        self.entered = self._done = 0

    def enter(self, op: int, nbytes: int) -> int:
        """Count a collective of this group that is entered now; return its name for records."""
        self.entered = count = self.entered + 1
        if words := self._words:
            at = self._at
            words[at + _NBYTES] = nbytes
            words[at + _ENTERED_NS] = time.monotonic_ns()
            words[at + _ENTERED] = op << _SHIFT | count
        return self.line | op << _OP_AT | (count & _NUMBER) << _NUMBER_AT

    def coming(self, op: int) -> int:
        """The name of the next one entered."""
        return self.line | op << _OP_AT | ((self.entered + 1) & _NUMBER) << _NUMBER_AT

    def leave(self, *, is_broken: bool = False) -> None:
        """Count the oldest one that is not done as done; ``is_broken``: its transport failed."""
        self.reach(self._done + 1, is_broken=is_broken)

    def reach(self, count: int, *, is_broken: bool = False) -> None:
        """Count the first ``count`` as done."""
        if count <= self._done:
            return
        self._done = count
        if words := self._words:
            words[self._at + _DONE_NS] = time.monotonic_ns()
            words[self._at + _DONE] = is_broken << _SHIFT | count

    def drop(self) -> None:
        """Write no more: what is left of an older generation does not count in the next."""
        self._words = _NO_WORDS


class NoLine(GroupLine):
    """Counts nothing, where no table is kept and in groups of one."""

    def __init__(self) -> None:
        super().__init__(_NO_WORDS, 0, 0)

    def enter(self, op: int, nbytes: int) -> int:
        """Return the name of no collective."""
        del op, nbytes
        return 0

    def coming(self, op: int) -> int:
        """The name of no collective."""
        del op
        return 0

    def reach(self, count: int, *, is_broken: bool = False) -> None:
        """No effect."""


NO_LINE: Final = NoLine()


class GroupTable:
    """Writes the table of one rank, one generation after the other."""

    def __init__(self, words: memoryview) -> None:
        """``words``: the place of the table, ``TABLE_BYTES`` long."""
        self._words = words
        self._lines: dict[int, GroupLine] = {}

    def begin(self, generation: int, groups: Iterable[Membership]) -> dict[int, GroupLine]:
        """Clear the table for a new generation; return its lines by their number.

        A line counts only with the generation of the ring; its own is written last.
        """
        self.drop()
        if not self._words:
            return {}
        for at in range(0, len(self._words), _LINE):
            for word in range(_LINE):
                self._words[at + word] = 0
        for one in groups:
            at = one.line * _LINE
            self._words[at + _GROUP] = one.group | one.size << 32
            self._words[at + _GENERATION] = generation + 1
            self._lines[one.line] = GroupLine(self._words, at, one.line)
        return dict(self._lines)

    def reach(self, collective: int) -> None:
        """Count a collective, as ``GroupLine.enter`` names it, and those before it as done."""
        line = self._lines.get(collective & 0xFF)
        if line is not None:
            number = collective >> _NUMBER_AT
            # the name has 32 bits of the number
            line.reach(line.entered - ((line.entered - number) & _NUMBER))

    def drop(self) -> None:
        """Write no more in this generation."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.drop()

    def close(self) -> None:
        """Write no more at all."""
        self.drop()
        self._words = _NO_WORDS


class GroupCount(NamedTuple):
    """One line of a table: what a rank has entered and finished in a group of its generation."""

    line: int
    group: int
    """See ``plan.collectives``: ``members`` gives its ranks."""
    size: int
    op: int
    """Operation of the newest one entered, 0 before the first."""
    entered: int
    done: int
    nbytes: int
    """Bytes of the newest one entered, on this rank."""
    entered_ns: int
    """When that was, 0 before the first; ``time.monotonic_ns``."""
    done_ns: int
    is_broken: bool
    """Whether the newest one that is done failed in its transport."""

    @property
    def number(self) -> int:
        """The group's lowest rank; of messages, the rank that sends them."""
        return self.group & 0xFFFFFF


def read_table(words: memoryview, generation: int) -> tuple[GroupCount, ...]:
    """The lines of ``generation`` in a table that may be written meanwhile.

    What is entered is read first and limits what is done: so nothing seems done that was not
    entered. ``GroupTable.begin`` clears the generation of a line before its counts, so a line that
    still has it after they were copied is whole.
    """
    found = []
    copy = words.tolist()  # word by word, in their order
    for line, at in enumerate(range(0, NUM_LINES * _LINE, _LINE)):
        if words[at + _GENERATION] != generation + 1:
            continue
        group, _, entered, nbytes, entered_ns, done, done_ns, _ = copy[at : at + _LINE]
        found.append(
            GroupCount(
                line,
                group & 0xFFFFFFFF,
                group >> 32,
                entered >> _SHIFT & 0xFF,
                entered & _COUNT,
                min(done & _COUNT, entered & _COUNT),
                nbytes,
                entered_ns,
                done_ns,
                bool(done >> _SHIFT),
            )
        )
    return tuple(found)
