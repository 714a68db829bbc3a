"""Reads what ``ncclras -f json`` prints, since NCCL 2.28.7.

NCCL 2.28.9 leaves out a comma in ``missing_ranks``, which is put back here. The events of the
monitor mode (``-m``) are JSON too, without a list of communicators, and are not a status.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from headway.health.dumps.ras import RasCommunicator, RasMember, RasReport, RasSide

_LOST_COMMA = re.compile(r'(["\d}\]el])(\s*\n\s*")')
"""The end of a value and, on the next line, the start of a key."""
_IN_PROGRESS: Final = 7
"""``ncclInProgress``."""


def read_ras_json(text: str) -> RasReport | None:
    """The status in a JSON text; None if there is none. Text around the object does not matter."""
    start = text.find("{")
    document = _decode(text[start:]) if start >= 0 else None
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        return None
    communicators = [_communicator(row) for row in _dicts(document["communicators"])]
    dead = {(m.host, m.pid) for one in communicators for m in one.missing if m.status == "DEAD"}
    silent = {
        (m.host, m.pid) for one in communicators for m in one.missing if m.status == "UNRESPONSIVE"
    }
    ras = document.get("ras")
    timeouts = _int(ras.get("timeouts_count")) if isinstance(ras, dict) else 0
    return RasReport(
        str(document.get("nccl_version", "")), str(document.get("timestamp", "")),
        tuple(communicators), tuple(sorted(dead)), tuple(sorted(silent - dead)), max(0, timeouts),
    )  # fmt: skip


def _decode(text: str) -> object:
    decoder = json.JSONDecoder()
    for candidate in (text, _LOST_COMMA.sub(r"\1,\2", text)):
        try:
            return decoder.raw_decode(candidate)[0]
        except (ValueError, RecursionError):
            continue
    return None


def _communicator(row: dict[str, Any]) -> RasCommunicator:
    members = tuple(_member(one) for one in _dicts(row.get("ranks")))
    missing = tuple(_missing(one) for one in _dicts(row.get("missing_ranks")))
    sides = _sides(members)
    errors = (["INCOMPLETE"] if missing else []) + (["MISMATCH"] if sides else [])
    return RasCommunicator(
        str(row.get("hash", "")), _int(row.get("size")), tuple(errors), members, missing, sides
    )


def _member(row: dict[str, Any], status: str = "") -> RasMember:
    counts = row.get("collective_counts")
    return RasMember(
        _int(row.get("rank")), str(row.get("host", "")), _int(row.get("pid")),
        _int(row.get("nvml_dev", row.get("cuda_dev"))), status or _status(row.get("status")),
        {str(op): _int(count) for op, count in counts.items()} if isinstance(counts, dict) else {},
    )  # fmt: skip


def _missing(row: dict[str, Any]) -> RasMember:
    status = row.get("status")
    flags = status if isinstance(status, dict) else {}
    is_dead, is_silent = flags.get("considered_dead"), flags.get("unresponsive")
    return _member(row, "DEAD" if is_dead else "UNRESPONSIVE" if is_silent else "MISSING")


def _status(flags: object) -> str:
    if not isinstance(flags, dict):
        return ""
    if flags.get("abort_flag"):
        return "ABORT"
    if flags.get("finalize_called") or flags.get("destroy_flag"):
        return "FINALIZE"
    states = _int(flags.get("init_state", 0)), _int(flags.get("async_error", 0))
    if any(state not in (0, _IN_PROGRESS) for state in states):
        return "ERROR"
    return "INIT" if states[0] == _IN_PROGRESS else "RUNNING"


def _sides(members: tuple[RasMember, ...]) -> tuple[RasSide, ...]:
    """Group members by how many operations they launched, for each kind whose counts differ."""
    found: dict[str, dict[int, list[RasMember]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for op, count in member.counts.items():
            found[op][count].append(member)
    return tuple(
        RasSide(op, count, len(same), tuple(same))
        for op, sides in sorted(found.items())
        if len(sides) > 1
        for count, same in sorted(sides.items())
    )


def _dicts(rows: object) -> Iterator[dict[str, Any]]:
    return (row for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict))


def _int(value: object) -> int:
    return value if isinstance(value, int) else -1
