"""Reads what ``ncclras`` prints by default, since NCCL 2.24.

The text summarises: it lists communicators with a discrepancy, and of these only the ranks of a
minority. Before NCCL 2.26 collectives are counted together, later by kind.
"""

from __future__ import annotations

import re
from typing import Final

from headway.health.dumps.ras import RasCommunicator, RasMember, RasReport, RasSide

_COMM = re.compile(
    r"#(?P<group>\d{1,9})-(?P<comm>\d{1,9}) \((?P<hash>[0-9a-f]{1,32})\) (?P<errors>[A-Z,]{2,100})"
)
_SIDE = re.compile(
    r"(?P<num>\d{1,9}) ranks? ha(?:ve|s) "
    r"(?:launched up to operation (?P<count>\d{1,18})|not launched)"
)
_ONE_SIDE = re.compile(
    r"Rank (?P<rank>\d{1,9}) has (?:launched up to operation (?P<count>\d{1,18})|not launched)"
)
_STATUS = re.compile(
    r"(?:(?P<num>\d{1,9}) ranks? ha(?:ve|s)|Rank \d{1,9} has) status (?P<status>[A-Z]{2,20})"
)
_MEMBER = re.compile(
    r"Rank (?P<rank>\d{1,9})\b.{0,120}?-- GPU (?P<gpu>\d{1,4}).{0,60}? managed by process "
    r"(?P<pid>\d{1,10}) on node (?P<host>[\w.:%-]{1,253})"
)
_PROCESS = re.compile(
    r"Process (?P<pid>\d{1,10}) on node (?P<host>[\w.:%-]{1,253}) managing GPUs? [\d,]{1,400}"
)
_OP = re.compile(r"different (?P<op>\w{1,40}) operation counts")
_MISSING = re.compile(r"The missing ranks?: (?P<ranks>[\d, ]{1,4000})")
_GROUP = re.compile(
    r"^\s*(?P<group>\d{1,9})\s+(?P<comms>\d{1,9})\s+\S+\s+\S+\s+(?P<size>\d{1,9})\s+\d{1,9}\s+(?P<status>[A-Z]+)\s+(?P<errors>[A-Z,]+)\s*$"
)
_HEADINGS: Final = ("DEAD", "TIMEOUT", "INCOMPLETE", "MISMATCH")


def read_ras_text(text: str) -> RasReport | None:
    """The status in a text; None if there is none."""
    if "Communicators..." in text or "Job summary" in text or _COMM.search(text):
        return _TextReader().read(text)
    return None


class _TextReader:
    def __init__(self) -> None:
        self._heading, self._op = "", ""
        self._communicators: list[RasCommunicator] = []
        self._at: re.Match[str] | None = None
        self._members: list[RasMember] = []
        self._missing: list[RasMember] = []
        self._sides: list[tuple[str, int, int, list[RasMember]]] = []
        self._status = ""
        self._sizes: dict[str, int] = {}
        self._dead: list[tuple[str, int]] = []
        self._silent: list[tuple[str, int]] = []

    def read(self, text: str) -> RasReport:
        version = re.search(r"NCCL version (\S{1,40})", text)
        timeouts = re.search(r"Encountered (\d{1,9}) communication timeout", text)
        for line in text.splitlines():
            self._feed(line.strip()[:4000], line[:4000])
        self._close()
        return RasReport(
            version[1] if version else "", "", tuple(self._communicators), tuple(self._dead),
            tuple(self._silent), int(timeouts[1]) if timeouts else 0, "Warnings" in text,
        )  # fmt: skip

    def _feed(self, line: str, raw: str) -> None:
        if found := _COMM.match(line):
            self._close()
            self._at, self._heading = found, "COMM"
        elif line in _HEADINGS:
            self._close()
            self._heading = line
        elif found := _GROUP.match(raw):
            self._sizes[found["group"]] = int(found["size"])
        elif found := _OP.search(line):
            self._op, self._status = found["op"], ""
        elif found := _STATUS.search(line):
            self._status = found["status"]
        elif found := _PROCESS.search(line):
            list_ = self._dead if self._heading == "DEAD" else self._silent
            list_.append((found["host"], int(found["pid"])))
        elif self._heading == "COMM":
            self._feed_communicator(line)

    def _feed_communicator(self, line: str) -> None:
        found = _MEMBER.search(line)
        member = _listed(found, self._status) if found else None
        if one := _ONE_SIDE.match(line):
            side = (self._op, int(one["count"] or 0), 1, [member or RasMember(int(one["rank"]))])
            self._sides.append(side)
        elif side_line := _SIDE.match(line):
            self._sides.append((self._op, int(side_line["count"] or 0), int(side_line["num"]), []))
            self._status = ""
        elif listed := _MISSING.search(line):
            ranks = re.findall(r"\d{1,9}", listed["ranks"])
            self._missing += [RasMember(int(rank), status="MISSING") for rank in ranks]
        elif (
            member is not None
            and "INCOMPLETE" in (self._at or {"errors": ""})["errors"]
            and not self._sides
        ):
            self._missing.append(
                RasMember(member.rank, member.host, member.pid, member.gpu, "MISSING")
            )
        elif member is not None:
            self._members.append(member)
            if self._sides and not self._status:
                self._sides[-1][3].append(member)

    def _close(self) -> None:
        if self._at is not None:
            at = self._at
            sides = [RasSide(op, count, num, tuple(found)) for op, count, num, found in self._sides]
            self._communicators.append(
                RasCommunicator(
                    f"#{at['group']}-{at['comm']} {at['hash']}", self._sizes.get(at["group"], -1),
                    tuple(at["errors"].split(",")), tuple(self._members), tuple(self._missing),
                    tuple(sorted(sides, key=lambda side: (side.op, side.count))),
                )
            )  # fmt: skip
        self._at, self._heading, self._op, self._status = None, "", "", ""
        self._members, self._missing, self._sides = [], [], []


def _listed(found: re.Match[str], status: str) -> RasMember:
    return RasMember(
        int(found["rank"]), found["host"], int(found["pid"]), int(found["gpu"]), status
    )
