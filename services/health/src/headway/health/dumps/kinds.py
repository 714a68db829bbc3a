"""Decides which reader a file of anybody's folder is for, by its content and then by its name.

The content is judged by its first 64 KiB: names are whatever people like, and only decide where the
content is plain text that fits several formats or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headway.health.dumps import nvidia_smi, rank_tables, sections
from headway.health.dumps.lines import Head, Unreadable, read_head

Kind = Literal[
    "flight_pickle", "flight_json", "log", "stacks", "kernel", "counters", "sysfs_counter",
    "nvidia_smi", "prometheus", "ras_text", "ras_json", "nccl_test", "sections", "ranks", "parquet",
]  # fmt: skip
"""``flight_*``: a dump of the flight recorder of NCCL or gloo. ``sysfs_counter``: one file of a
copy of ``/sys/class/infiniband`` or ``/sys/class/net``. ``parquet``: a table such as
StragglerAnalysis'. The others are named after their readers."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a file is for."""

    kind: Kind | None
    """None if no reader is for it."""
    reason: str
    """Why no reader is for it; else empty."""
    encoding: str = ""
    """In which it is text."""
    size_bytes: int = 0


_FLIGHT_KEYS: Final = (b"entries", b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version")
"""Keys of a flight recorder's dump: with thousands of ranks, its entries begin behind the head."""
_SYSFS: Final = re.compile(
    r"(?:/ports/\d+/(?:(?:hw_)?counters/\w+|state|phys_state|rate|link_layer)|/statistics/\w+)$"
)
_LOG_NAME: Final = re.compile(
    r"(?:\.(?:log|out|err|stdout|stderr)(?:\.\d+)?|(?:^|/)std(?:out|err)"
    r"|(?:^|/)(?:train|job|slurm|console|output|worker|nccl)[\w.-]*\.txt)$",
    re.I,
)
_KERNEL_NAME: Final = re.compile(
    r"(?:^|[-_./])(?:kernel|kmsg|kern|dmesg|journalctl|syslog|messages)(?=[-_.]|$)", re.I
)
_STACK: Final = re.compile(
    r"^(?:Current t|T)hread 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):"
    r"|^Process \d+: .*\n(?:Python v|Thread )",
    re.M | re.I,
)
_KERNEL: Final = re.compile(
    r"^(?:<\d+>)?\[ *\d+\.\d{6}\] \S"
    r"|^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ [\d:]{8} \d{4}\] \S"
    r"|^\d+,\d+,\d+,[-c][^;]*;|^[^\n]{10,80} kernel: |^\d{4}-\d\d-\d\dT[\d:]+,\d+[+-][\d:]+ \S",
    re.M,
)
_COUNTERS: Final = re.compile(
    r"^(?:==> )?\S*/ports/\d+/(?:(?:hw_)?counters/)?\w+(?:\s*[:=]|\s)|^\S*/statistics/\w+:\d"
    r"|^NIC statistics:|^# Port (?:extended )?counters:|^link \w+/\d+ \w+ \d+ \w+ \d",
    re.M,
)
_METRIC: Final = re.compile(
    r"^[a-zA-Z_:][\w:]*(?<!:)(?:\{[^\n]*\})? +[-+]?(?:\d[\d.eE+-]*|NaN|[+-]?Inf)(?: +-?\d+)?$", re.M
)
_NCCL_TEST: Final = re.compile(
    r"^.{0,40}#\s+Rank\s+\d+ .*Pid|^.{0,40}#.*\balgbw\s+busbw\b|^.{0,40}# nThread \d+ ", re.M
)
_LOG: Final = re.compile(
    r"ProcessGroup\w+\.cpp|NCCL (?:WARN|INFO)|Traceback \(most recent call last\)|gloo/transport|"
    r"^\[rank\d+\]|Root Cause \(first observed failure\)", re.M
)  # fmt: skip
_TESTS: Final[tuple[tuple[Kind, Callable[[str], bool]], ...]] = (
    ("ras_text", lambda text: "Communicators..." in text and "=====" in text),
    ("stacks", lambda text: _STACK.search(text) is not None and "ProcessGroup" not in text),
    ("nccl_test", lambda text: _NCCL_TEST.search(text) is not None),
    ("counters", lambda text: _COUNTERS.search(text) is not None),
    ("nvidia_smi", lambda text: any(map(nvidia_smi.is_header, text.splitlines()[:20]))),
    ("sections", lambda text: any(map(sections.is_header, text.splitlines()[:20]))),
    ("log", lambda text: _LOG.search(text) is not None),
    ("kernel", lambda text: _share(_KERNEL, text) >= 0.3),
    ("prometheus", lambda text: text[:6] in ("# HELP", "# TYPE") or _share(_METRIC, text) >= 0.7),
    ("ranks", lambda text: _is_rank_table(text)),
)  # fmt: skip


def kind_of(path: Path, name: str = "") -> Recognised:
    """Which reader a file is for. ``name`` is its path within the folder, if that says more.

    It opens regular files only and never raises: what cannot be read has no kind and a reason.
    """
    head = read_head(path)
    if isinstance(head, Unreadable):
        return Recognised(None, head.reason)
    kind, reason = _kind(head, (name or str(path)).replace("\\", "/"))
    return Recognised(kind, reason, head.encoding, head.size_bytes)


def _kind(head: Head, name: str) -> tuple[Kind | None, str]:
    if head.raw.startswith(b"PAR1"):
        return "parquet", ""
    if head.raw[:1] == b"\x80" and any(key in head.raw for key in _FLIGHT_KEYS):
        return "flight_pickle", ""
    if not head.encoding:
        return None, "binary, in no format that is known here"
    text = head.text.lstrip("\ufeff")
    if not text.strip():
        return None, "blank"
    if _SYSFS.search(name) and len(text) < 200:
        return "sysfs_counter", ""
    if text.lstrip()[:1] in ("{", "[") and (found := _json(text)):
        return found, ""
    return _text(text, name, not head.is_whole)


def _json(text: str) -> Kind | None:
    if '"communicators"' in text:
        return "ras_json"
    if sum(f'"{key.decode()}"' in text for key in _FLIGHT_KEYS) >= 2:
        return "flight_json"
    return "stacks" if '"frames"' in text and '"thread_id"' in text else None


def _text(text: str, name: str, is_long: bool) -> tuple[Kind | None, str]:
    for kind, fits in _TESTS:
        if fits(text):
            return kind, ""
    if _KERNEL_NAME.search(name):
        return "kernel", ""
    if _LOG_NAME.search(name) or is_long:
        return "log", ""  # nothing else that people save as text is longer than a head
    return None, "text, in no format that is known here"


def _share(pattern: re.Pattern[str], text: str) -> float:
    """The part of the lines that a pattern matches."""
    lines = [line for line in text.splitlines()[:200] if line.strip() and not line.startswith("#")]
    return sum(1 for line in lines if pattern.search(line)) / max(1, len(lines))


def _is_rank_table(text: str) -> bool:
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    if not lines or (text.lstrip()[:1] in "{[<"):
        return False
    places = rank_tables.read_ranks(lines)
    return len(places) >= max(1, len(lines) // 2) or "Data for node:" in text
