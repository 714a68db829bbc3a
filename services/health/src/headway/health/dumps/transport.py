"""What gloo and NCCL print when a connection to another rank fails.

Nearly all of these lines are written by victims: they name the other end, which may be the culprit
or a victim too. Formats of gloo/transport/tcp (pair.cc, unbound_buffer.cc), of NCCL 2.10 to 2.31
(misc/socket.cc, transport/net_ib) and of PyTorch's exceptions that wrap them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from headway.health.dumps.log_lines import LogLine, number_lines

WORDS: Final = ("NCCL WARN", "NCCL error", "NCCL INFO comm", "by peer", "gloo", "Gloo",
                "Timed out waiting", "remote peer", "ncclRemoteError")  # fmt: skip
"""A line without any of these is not about a connection."""
MAX_EVENTS: Final = 100_000
Kind = Literal["closed", "timeout", "refused", "connect", "completion", "port", "mismatch",
               "remote", "cuda"]  # fmt: skip
_HEAD = re.compile(
    r"(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) \[(?P<device>\d{1,3})\] "
)
_ADDRESS: Final = (
    r"(?:\[(?P<bracketed>[0-9a-zA-Z.:_-]{1,253})(?:%\w+)?\](?::\d{1,5}|<\d{1,5}>)"
    r"|(?P<nccl>[0-9a-zA-Z.:_-]{1,253})(?:%\w+)?<\d{1,5}>|(?P<plain>[0-9a-zA-Z._-]{1,253}):\d{1,5}\b)"
)
"""The other end: gloo prints ``[address]:port`` and NCCL ``address<port>``."""
_COMPLETION = re.compile(
    r"NET/IB ?: ?.{0,80}?Got completion from peer " + _ADDRESS
    + r" with (?:status|error)[ =](?:IBV_WC_\w{1,40}\()?(?P<status>\d+)"
)  # fmt: skip
_VENDOR = re.compile(r"vendor[ _]err[ =](\d{1,10})")
_SIDE = re.compile(r"\((Send|Recv)\)|req_type=(Send|Recv)")
_GIDS = re.compile(
    r"local ?G(?:id|ID)s?:? ?(?P<local>[0-9a-fA-F.:]{2,45}?)\W+remote ?G(?:id|ID)s?:? ?"
    r"(?P<remote>[0-9a-fA-F.:]{2,45})"
)
_HCA = re.compile(r"\bhca (\w{1,32})")
_PORT = re.compile(
    r"NET/IB ?: ?(?P<nic>\w{1,32}):(?P<port>\d{1,3}) (?:Got (?:non-fatal )?async event ?: ?"
    r"(?:port error|local catastrophic error)|async fatal event: )"
)
_MISMATCH = re.compile(r"peer " + _ADDRESS + r" collective mismatch")
_TIMED_OUT = re.compile(r"Timed out waiting (?P<ms>\d{1,12}) ?ms for (?P<side>recv|send) operation")
_CLOSED = re.compile(
    r"(?:Connection (?:closed|reset) by (?:remote )?peer|(?:Read|Write) error|"
    r"socketProgress\w*:.{0,60}?(?:from|to|peer)),? " + _ADDRESS
)
_CLOSED_BARE = re.compile(r"(?:gloo|NCCL).{0,300}?Connection (?:closed|reset) by (?:remote )?peer")
_REFUSED = re.compile(
    r"(?:Connect|connect) to " + _ADDRESS + r".{0,80}?(?:refused|failed|timed out|No route)", re.I
)
_CONNECT = re.compile(
    r"connectFullMesh failed with (?P<why>.{0,300})|gloo.{0,200}?Connect timeout|"
    r"socketStartConnect: exceeded retries", re.I
)  # fmt: skip
_REMOTE = re.compile(r"remote process exited or there was a network error|ncclRemoteError")
_CUDA = re.compile(r"NCCL WARN Cuda failure (?:\d+ )?'([^']{1,200})'")
_SEAT = re.compile(
    r"NCCL INFO comm \w+ rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) "
    r"cudaDev (?P<gpu>\d{1,3})(?: nvmlDev \d{1,3})? busId (?P<bus>[0-9a-fA-F]{1,8})"
)


@dataclass(frozen=True, slots=True)
class TransportLine:
    """One end's report of a connection that failed."""

    kind: Kind
    """``closed``: the other end closed or reset it. ``timeout``: nothing came from it.
    ``refused``, ``connect``: it could not be made. ``completion``: an InfiniBand transfer failed
    (status 12: the other end does not answer). ``port``: a port of this host failed. ``mismatch``:
    the sizes of both ends differ. ``remote``: PyTorch's summary of any of these. ``cuda``: a call
    of CUDA failed within NCCL."""
    rank: int
    """That printed it; -1 if unknown."""
    host: str
    """That printed it; empty if unknown."""
    pid: int
    device: int
    """Index of its GPU, -1 if unknown."""
    peer: str
    """Host name or address of the other end; empty if not printed."""
    own_address: str
    """Address of the end that printed it, which shows whose address another host's line names."""
    nic: str
    """``mlx5_3``, or ``mlx5_3/1`` with its port."""
    status: int
    """Status of the completion (``ibv_wc_status``), -1 if there is none."""
    vendor_error: int
    is_send: bool | None
    timeout_s: float
    at_s: float | None
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class NcclSeat:
    """Where a rank of a communicator runs, as NCCL logs it with ``NCCL_DEBUG=INFO``."""

    rank: int
    """In the communicator; of the job only if this has all its ranks."""
    size: int
    host: str
    pid: int
    device: int
    pci: str


@dataclass(frozen=True, slots=True)
class TransportReport:
    """What a log has about connections, in the order of its lines."""

    lines: tuple[TransportLine, ...] = ()
    seats: tuple[NcclSeat, ...] = ()
    num_left_out: int = 0


class TransportReader:
    """Collects what is printed about connections, line by line."""

    def __init__(self) -> None:
        self._lines: list[TransportLine] = []
        self._seats: dict[tuple[str, int, int], NcclSeat] = {}
        self._left_out = 0

    def feed(self, line: LogLine) -> None:
        """Read one line."""
        if seat := _SEAT.search(line.text):
            head = _HEAD.search(line.text)
            if head and len(self._seats) < MAX_EVENTS:
                made = NcclSeat(
                    int(seat["rank"]), int(seat["size"]), head["host"], int(head["pid"]),
                    int(seat["gpu"]), bus_address(seat["bus"]),
                )  # fmt: skip
                self._seats[made.host, made.pid, made.size] = made
            return
        event = read_transport_line(line)
        if event is None:
            return
        if len(self._lines) < MAX_EVENTS:
            self._lines.append(event)
        else:
            self._left_out += 1

    def report(self) -> TransportReport:
        """What was found so far."""
        return TransportReport(tuple(self._lines), tuple(self._seats.values()), self._left_out)


def read_transport(lines: Iterable[str], rank: int = -1, year: int = 0) -> TransportReport:
    """What a log has about connections. ``rank`` is that of its file, if it has one."""
    reader = TransportReader()
    for line in number_lines(lines, WORDS, rank, year):
        reader.feed(line)
    return reader.report()


_PATTERNS: Final[tuple[tuple[Kind, Callable[[str], re.Match[str] | None]], ...]] = (
    ("completion", _COMPLETION.search),
    ("port", _PORT.search),
    ("mismatch", _MISMATCH.search),
    ("timeout", _TIMED_OUT.search),
    ("closed", _CLOSED.search),
    ("refused", _REFUSED.search),
    ("connect", _CONNECT.search),
    ("closed", _CLOSED_BARE.search),
    ("cuda", _CUDA.search),
    ("remote", _REMOTE.search),
)


def read_transport_line(line: LogLine) -> TransportLine | None:
    """What a line has about a connection; None if it is about something else."""
    text = line.text[:4000]
    for kind, search in _PATTERNS:
        if found := search(text):
            return _event(kind, line, found)
    return None


def _event(kind: Kind, line: LogLine, found: re.Match[str]) -> TransportLine:
    text, parts = line.text[:4000], found.groupdict()
    head, gids = _HEAD.search(text), _GIDS.search(text)
    side, vendor, hca = _SIDE.search(text), _VENDOR.search(text), _HCA.search(text)
    sides = {"Send": True, "send": True, "Recv": False, "recv": False}
    nic = f"{parts['nic']}/{parts['port']}" if kind == "port" else hca[1] if hca else ""
    peer = parts.get("bracketed") or parts.get("nccl") or parts.get("plain")
    return TransportLine(
        kind=kind,
        rank=line.rank,
        host=head["host"] if head else "",
        pid=int(head["pid"]) if head else -1,
        device=int(head["device"]) if head else -1,
        peer=address(peer or (gids["remote"] if gids else "")),
        own_address=address(gids["local"]) if gids else "",
        nic=nic,
        status=int(parts.get("status") or -1),
        vendor_error=int(vendor[1]) if vendor else -1,
        is_send=sides.get(next(filter(None, side.groups())) if side else parts.get("side") or ""),
        timeout_s=int(parts.get("ms") or 0) / 1000,
        at_s=line.at_s,
        line=line.number,
        text=line.shown,
    )


def address(text: str) -> str:
    """An address in one form: that of IPv4 within a GID or IPv6 (``::ffff:10.0.0.7``) alone."""
    return re.sub(r"^(?:0*:)+ffff:(?=\d+\.)", "", text.strip("[]"), flags=re.I)


def bus_address(text: str) -> str:
    """A PCI address in the form of the kernel from NCCL's ``busId``: ``b3000`` is 0000:b3:00.0."""
    value = int(text, 16)
    return f"{value >> 20:04x}:{value >> 12 & 255:02x}:{value >> 4 & 255:02x}.{value & 15}"
