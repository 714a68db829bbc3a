"""Makes findings of lines: which rules apply to a file, and what a line says of its subject."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding
from headway.health.rulebook import RuleBook, pci_address

MAX_LINE_CHARS: Final = 4096
"""Only this much of a line is searched, since a line may be a whole binary file."""
MAX_SHOWN: Final = 300
"""Characters of a line that are sent in a beat."""
_OF_RANKS: Final = ("nccl", "rank")
_OF_SERVICES: Final = ("nccl", "rank", "service")
OF_KERNEL: Final = ("kernel",)
_KERNEL_NAME = re.compile(r"(?:^|[-_.])(?:kernel|kmsg|kern|dmesg)(?=[-_.]|$)")
_SERVICE_NAME = re.compile(r"n\d+-[a-z_]+\.")
_RANK_IN_LINE = re.compile(r'"rank":\s*(\d{1,9})\b|\[rank\s?(\d{1,9})\]', re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:^|[-_.])r(?:ank)?[-_]?(\d{1,9})(?=[-_.]|$)")
_OWN_LINE = re.compile(r'"event":\s*"verdict"')
"""Verdicts are logged with the line that they are about, which must not be found again."""
_GPU_NAMED = re.compile(r"NVRM: The NVIDIA GPU (?:PCI:)?([0-9a-f:.]+)", re.IGNORECASE)
"""The first of the kernel's three lines on a GPU that fell off the bus; the last has the fault."""


class LineMatcher:
    """Searches the lines of one file, in their order."""

    def __init__(self, rules: RuleBook, path: Path, sources: tuple[str, ...] = ()) -> None:
        """Without ``sources`` the file's name says whose lines it has."""
        self._rules, self._file, self._rank = rules, str(path), _rank_in(path)
        self._sources = sources or sources_of(path.name)
        self._gpu = ""
        """What the kernel's lines are about, as long as they have not said what it has."""

    def find(
        self, line: str, inode: int, offset: int, *, age_s: float = 0.0, count: int = 1
    ) -> Finding | None:
        """The finding of a line, None if no rule matches it."""
        line = line[:MAX_LINE_CHARS]
        if named := _GPU_NAMED.search(line):
            self._gpu = pci_address(named[1])
        matched = self._rules.match(line, self._sources)
        if matched is None or _OWN_LINE.search(line):
            return None
        rule, name = matched.rule, matched.name
        if rule.name == "gpu_lost" and not name:
            name, self._gpu = self._gpu, ""
        return Finding(
            rule=rule.name,
            source=rule.source,
            subject=rule.subject,
            name=name[:MAX_SHOWN],
            file=self._file,
            inode=inode,
            offset=offset,
            line=line[:MAX_SHOWN],
            rank=-1 if rule.source == "kernel" else _rank_of(line, self._rank),
            detail=matched.detail[:MAX_SHOWN],
            count=count,
            age_s=age_s,
        )


def sources_of(name: str) -> tuple[str, ...]:
    """The sources whose rules apply to a file: a program cannot print lines of the kernel."""
    if _KERNEL_NAME.search(name):
        return OF_KERNEL
    return _OF_SERVICES if _SERVICE_NAME.match(name) else _OF_RANKS


def _rank_of(line: str, rank: int) -> int:
    found = _RANK_IN_LINE.search(line)
    return int(found[1] or found[2]) if found else rank


def _rank_in(path: Path) -> int:
    """The rank that a file is named for, -1 for none."""
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else -1
