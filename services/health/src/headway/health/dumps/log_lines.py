"""Splits a line of a trainer's log into what its launcher put before it and what was printed.

Prefixes are those of PyTorch's C++ log and exception hook (``[rank3]:``), torchrun (``[default3]:``
with the local rank), mpirun (``[1,3]<stderr>:``), ``srun --label`` (``3: ``), Ray
(``(Worker pid=17, ip=10.0.0.7)``) and containers (a stamp). A line may have several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headway.health.dumps.times import read_stamp

MAX_SHOWN: Final = 500
"""Characters of a line that are kept as evidence."""
_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)? (?:std(?:out|err) [FP] )?)"
    r"|\[rank ?(?P<rank>\d{1,7})\](?:\[[^\]]*\])?: ?"
    r"|\[(?P<role>[a-zA-Z]\w{0,30}?)(?P<number>\d{1,7})(?:\|\d{1,5})?\]: ?"
    r"|\[\d+,(?P<mpi>\d{1,7})\](?:<\w+>)?: ?"
    r"|\([\w.:/-]{1,80} pid=\d+[^)]{0,100}\) ?"
    r"| {0,6}(?P<task>\d{1,6}): "
)
_MOST_PREFIXES: Final = 5


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    number: int
    """Its place in the file, from 1."""
    text: str
    """What was printed, without prefixes."""
    rank: int = -1
    """The global rank that printed it, -1 if unknown."""
    year: int = 0
    """For stamps without a year, 0 if unknown."""
    prefix: str = ""
    """What was before it, which may have a container's stamp."""

    @property
    def at_s(self) -> float | None:
        """When it was printed, in seconds since 1970; None if it does not say."""
        stamp = read_stamp(self.text, self.year) or read_stamp(self.prefix, self.year)
        return None if stamp is None else stamp.at_s

    @property
    def shown(self) -> str:
        """What is kept of it as evidence."""
        return self.text.strip()[:MAX_SHOWN]


def split_line(line: str, number: int = 1, rank: int = -1, year: int = 0) -> LogLine:
    """A line without its prefixes. ``rank`` is that of the file, for lines that do not name one.

    Torchrun's prefix has the rank within the node, which is none of the whole job: it is removed
    and not used.
    """
    start, weak = 0, -1
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(line, start)
        if found is None or found.end() == start:
            break
        start = found.end()
        if found["rank"] or (found["number"] and "|" in found[0]):
            rank = int(found["rank"] or found["number"])
        elif found["mpi"] or found["task"]:
            weak = int(found["mpi"] or found["task"])
    return LogLine(number, line[start:], rank if rank >= 0 else weak, year, line[:start])


def number_lines(
    lines: Iterable[str], words: tuple[str, ...], rank: int = -1, year: int = 0
) -> Iterator[LogLine]:
    """The lines that have one of some words, numbered; a long log is searched for nothing else."""
    for number, line in enumerate(lines, 1):
        if any(word in line for word in words):
            yield split_line(line, number, rank, year)
