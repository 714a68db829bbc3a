"""Counters of InfiniBand and RoCE ports before and after: which of them have grown.

Reads ``grep -r . /sys/class/infiniband`` (``PATH:VALUE``) and the like, copies of that tree, and
the output of ``head``, ``rdma statistic``, ``ethtool -S`` and ``perfquery``. A counter counts since
its machine was started, so that one reading alone shows nothing of a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headway.health.sources.nics import ERRORS

LINK_DOWN: Final = "link_downed"
FAULTS: Final = frozenset({LINK_DOWN, *(name.rpartition("/")[2] for name in ERRORS)})
"""Counters that grow by a fault of the link or its other end, not by congestion."""
MAX_VALUES: Final = 1_000_000
_SYSFS = re.compile(
    r"(?:^|/)(?P<device>[\w.-]{1,64})/ports/(?P<port>\d{1,3})/"
    r"(?:(?P<folder>counters|hw_counters)/)?(?P<name>\w{1,64})$"
)
_NETDEV = re.compile(r"(?:^|/)(?P<device>[\w.-]{1,64})/statistics/(?P<name>\w{1,64})$")
_STATES: Final = ("state", "phys_state", "rate", "link_layer")
_PATH_LINE = re.compile(r"^\s*(?P<path>[^\s:=]{1,300})(?:\s*[:=]\s*|\s+)(?P<value>\S.{0,200})$")
_HEADING = re.compile(r"^==> (?P<path>\S{1,300}) <==$")
_RDMA = re.compile(r"^link (?P<device>[\w.-]{1,64})/(?P<port>\d{1,3}) (?P<pairs>\w.*)$")
_RDMA_PAIR = re.compile(r"([a-z]\w{1,63}) (\d{1,20})(?!\S)")
_PERFQUERY = re.compile(r"^(?P<name>[A-Z]\w{2,60}):\.+(?P<value>\d{1,20})$")
_PERF_PORT = re.compile(
    r"^# Port (?:extended )?counters: .*?(?:Lid \d+ )?port (?P<port>\d{1,3})\b", re.I
)
_ETHTOOL = re.compile(r"^\s+(?P<name>[\w\[\]. -]{1,80}): (?P<value>\d{1,20})$")
_FOLDERS: Final = frozenset(
    (
        "",
        ".",
        "..",
        "sys",
        "class",
        "infiniband",
        "net",
        "counters",
        "before",
        "after",
        "pre",
        "post",
    )
)
"""Folders of a copied tree that are not hosts."""
_PERF_NAMES: Final = {
    "LinkDownedCounter": LINK_DOWN, "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery", "PortRcvErrors": "port_rcv_errors",
    "PortXmitWait": "port_xmit_wait", "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
}  # fmt: skip
"""Name of a counter in perfquery's output -> its name in sysfs."""


@dataclass(frozen=True, slots=True)
class PortReading:
    """The counters of one port at one time."""

    host: str
    device: str
    """Such as ``mlx5_3``, or a network interface; empty if the file does not name it."""
    port: int
    """0 of a network interface."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """By name, without the folder."""
    states: Mapping[str, str] = field(default_factory=dict)
    """``state``, ``phys_state``, ``rate`` and ``link_layer``, as sysfs has them."""

    @property
    def name(self) -> str:
        """Such as ``mlx5_3/1``."""
        return f"{self.device}/{self.port}" if self.port else self.device

    @property
    def is_up(self) -> bool | None:
        """Whether its link is up; None if the reading lacks its state."""
        state = self.states.get("state")
        return None if state is None else "ACTIVE" in state.upper()


@dataclass(frozen=True, slots=True)
class Growth:
    """A counter that changed between two readings of a port."""

    host: str
    device: str
    port: int
    counter: str
    before: int
    after: int

    @property
    def was_reset(self) -> bool:
        """Whether it began from zero in between: the driver or the machine was restarted."""
        return self.after < self.before

    @property
    def grown(self) -> int:
        """By how much, at least."""
        return self.after if self.was_reset else self.after - self.before

    @property
    def is_fault(self) -> bool:
        """Whether it counts faults of the link, not congestion or traffic."""
        return self.counter in FAULTS


def read_counters(
    lines: Iterable[str], host: str = "", device: str = ""
) -> tuple[PortReading, ...]:
    """The ports of a text with one counter per line.

    ``host`` and ``device`` are for outputs that do not name them.
    """
    rows: list[tuple[str, int, str, str]] = []
    port, above = 0, ""
    for line in lines:
        line = line[:20_000]
        if len(rows) >= MAX_VALUES:
            break
        found = _PATH_LINE.match(line)
        if found and (row := _row(found["path"], found["value"])):
            rows.append(row)
        elif above and (row := _row(above, line)):
            rows.append(row)
            above = ""
        elif found := _HEADING.match(line):
            above = found["path"]
        elif found := _RDMA.match(line):
            pairs = _RDMA_PAIR.findall(found["pairs"])
            rows += [(found["device"], int(found["port"]), *pair) for pair in pairs]
        elif found := _PERF_PORT.match(line):
            port = int(found["port"])
        elif found := _PERFQUERY.match(line.strip()):
            name = _PERF_NAMES.get(found["name"], found["name"])
            rows.append((device, port or 1, name, found["value"]))
        elif found := _ETHTOOL.match(line):
            rows.append((device, 0, found["name"].strip(), found["value"]))
    return _ports(rows, host)


def read_tree(files: Iterable[tuple[str, str]], host: str = "") -> tuple[PortReading, ...]:
    """The ports of a copy of ``/sys/class/infiniband``, from (path, content) of its files.

    The host is the folder above the device where that is not one of sysfs.
    """
    rows: dict[str, list[tuple[str, int, str, str]]] = {}
    for path, content in files:
        row = _row(path, content)
        if row is not None:
            rows.setdefault(host_of_tree(path) or host, []).append(row)
    return tuple(port for name, found in rows.items() for port in _ports(found, name))


def host_of_tree(path: str) -> str:
    """The host in ``counters/gpu-b05/mlx5_0/ports/1/...``; empty if it is not there."""
    above = path.replace("\\", "/").partition("/ports/")[0].split("/")[:-1]
    while above and above[-1].lower() in _FOLDERS:
        above.pop()
    return above[-1] if above else ""


def growths(before: Iterable[PortReading], after: Iterable[PortReading]) -> tuple[Growth, ...]:
    """The counters that changed, faults first and then by how much.

    A port of which there is only one reading has none, and neither has a counter that is new.
    """
    known = {(one.host, one.device, one.port): one.counters for one in before}
    found = [
        Growth(one.host, one.device, one.port, name, old, value)
        for one in after
        for name, value in one.counters.items()
        for old in [known.get((one.host, one.device, one.port), {}).get(name)]
        if old is not None and old != value
    ]
    return tuple(
        sorted(found, key=lambda g: (not g.is_fault, -g.grown, g.host, g.device, g.counter))
    )


def _row(path: str, value: str) -> tuple[str, int, str, str] | None:
    found = _SYSFS.search(path)
    if found and (found["folder"] or found["name"] in _STATES):
        return found["device"], int(found["port"]), found["name"], value.strip()
    found = _NETDEV.search(path)
    return (found["device"], 0, found["name"], value.strip()) if found else None


def _ports(rows: Iterable[tuple[str, int, str, str]], host: str) -> tuple[PortReading, ...]:
    counters: dict[tuple[str, int], dict[str, int]] = {}
    states: dict[tuple[str, int], dict[str, str]] = {}
    for device, port, name, value in rows:
        key = device, port
        counters.setdefault(key, {})
        states.setdefault(key, {})
        if name in _STATES:
            states[key][name] = value[:100]
        elif re.fullmatch(r"\d{1,20}", value):
            counters[key][name] = int(value)
    return tuple(
        PortReading(host, device, port, found, states[device, port])
        for (device, port), found in counters.items()
    )
