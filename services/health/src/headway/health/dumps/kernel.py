"""What a kernel's log shows of a machine: lines of dmesg or journalctl that match a rule.

The rules are those that the agent of a live run uses. A line is news only if it is not older than
the job: the log of a healthy machine has the marks of months.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Cause, Finding
from headway.health.dumps.names import host_of_name
from headway.health.dumps.times import Stamp, read_stamp
from headway.health.rule_files import shipped
from headway.health.rulebook import RuleBook, Severity, pci_address
from headway.health.sources.lines import OF_KERNEL, LineMatcher

MAX_MARKS: Final = 50_000
"""Most marks kept of one file; more are only counted."""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (\d{1,4})\b")
_HOST = re.compile(
    r"^(?:[A-Z][a-z]{2} +\d{1,2} [\d:.]+|\d{4}-\d\d-\d\dT\S+) (?P<host>[\w.-]{1,253}) kernel: "
)
_PCI = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KernelMark:
    """A line of the kernel that indicates a problem."""

    rule: str
    cause: Cause
    severity: Severity
    confidence: float
    """Confidence of its rule, 0..1."""
    remedy: str
    host: str
    """By the line or the file's name; empty if unknown."""
    subject: str
    """``gpu``, ``nic``, ``mount`` or ``node``."""
    name: str
    """Name of the subject, such as ``0000:b3:00.0`` or ``ibs3``; empty if the line has none."""
    pci: str
    """Address of the device in the line, empty without one."""
    xid: int
    """-1 if it is not an Xid."""
    is_symptom: bool
    """Whether it follows another error, and shows nothing on its own."""
    at_s: float | None
    """By the calendar; None if the line only has the time since the machine was started."""
    uptime_s: float | None
    is_history: bool | None
    """Whether it is older than the job; None if that cannot be known."""
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The marks of one kernel's log, in the order of its lines."""

    host: str
    marks: tuple[KernelMark, ...]
    num_lines: int
    num_left_out: int

    def news(self) -> tuple[KernelMark, ...]:
        """Marks that are not known to be older than the job."""
        return tuple(mark for mark in self.marks if not mark.is_history)


def read_kernel(
    lines: Iterable[str],
    name: str = "",
    *,
    job_start_s: float | None = None,
    boot_s: float | None = None,
    year: int = 0,
    rules: RuleBook | None = None,
) -> KernelReport:
    """The marks in a kernel's log.

    Args:
        lines: In any format of dmesg, journalctl, syslog or ``/dev/kmsg``.
        name: The file's, with its folder; it may name the host.
        job_start_s: When the job was started, in seconds since 1970; what is older is history.
        boot_s: When the machine was started, which stamps without a date count from.
        year: For stamps of syslog, which lack it.
        rules: Those that are shipped, if not given.
    """
    book = rules or shipped()
    matcher = LineMatcher(book, Path(name or "dmesg"), OF_KERNEL)
    host, marks, number, left_out = host_of_name(name), list[KernelMark](), 0, 0
    stamp = Stamp()
    for number, line in enumerate(lines, 1):
        # a line without a stamp belongs to the one before it
        stamp = read_stamp(line, year) or (stamp if line[:1].isspace() else Stamp())
        finding = matcher.find(line, 0, number)
        if finding is None:
            continue
        if len(marks) >= MAX_MARKS:
            left_out += 1
            continue
        mark = _mark(book, finding, line, _dated(stamp, boot_s), job_start_s)
        marks.append(replace(mark, host=mark.host or host))
    return KernelReport(host, tuple(marks), number, left_out)


def _dated(stamp: Stamp, boot_s: float | None) -> Stamp:
    if stamp.at_s is None and stamp.uptime_s is not None and boot_s is not None:
        return Stamp(boot_s + stamp.uptime_s, stamp.uptime_s)
    return stamp


def _mark(
    book: RuleBook, finding: Finding, line: str, stamp: Stamp, job_start_s: float | None
) -> KernelMark:
    rule = book.by_name[finding.rule]
    host, xid, pci = _HOST.match(line), _XID.search(line), _PCI.search(line)
    is_history = None
    if stamp.at_s is not None and job_start_s is not None:
        is_history = stamp.at_s < job_start_s
    named = pci_address(finding.name)
    return KernelMark(
        rule=rule.name,
        cause=rule.known_cause,
        severity=rule.severity,
        confidence=rule.confidence,
        remedy=rule.remedy,
        host=host["host"] if host else "",
        subject=finding.subject,
        name=finding.name,
        pci=named if _PCI.fullmatch(named) else pci_address(pci[1]) if pci else "",
        xid=int(xid[1]) if xid else -1,
        is_symptom=rule.symptom,
        at_s=stamp.at_s,
        uptime_s=stamp.uptime_s,
        is_history=is_history,
        line=finding.offset,
        text=finding.line.strip(),
    )
