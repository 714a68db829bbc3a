"""Operations that NCCL was given together, such as those of ``batch_isend_irecv``.

The recorder writes an entry for each of them and one for the end of the batch, and it is only the
end whose state changes: its parts stay "scheduled" forever
(https://github.com/pytorch/pytorch/issues/137969).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_STATE = ("state", "time_discovered_started_ns", "time_discovered_completed_ns")
Key = tuple[str, bool, int | str]
"""Group, whether it is a message, and its number among those."""


def without_ends(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give messages the state of their batch's end, and leave that out.

    Of collectives the end, which has their number, stands for all of them.
    """
    kept: list[dict[str, Any] | None] = []
    parts: dict[Key, list[int]] = defaultdict(list)
    for entry in entries:
        key = _key(entry)
        batch = parts[key] if key is not None else []
        if entry["profiling_name"] == "nccl:coalesced" and entry.get("is_p2p"):
            state = {name: entry[name] for name in _STATE if name in entry}
            for part in batch:
                kept[part] = {**(kept[part] or {}), **state}
            batch.clear()
            continue
        if key is not None and not entry.get("is_p2p"):
            for part in batch:
                kept[part] = None
            batch.clear()
        batch.append(len(kept))
        kept.append(entry)
    return [entry for entry in kept if entry is not None]


def _key(entry: dict[str, Any]) -> Key | None:
    """What the parts of a batch and its end share; None of an entry that is not of NCCL."""
    name, group = entry["profiling_name"], entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        group = group[0]
    else:
        group = str(entry.get("pg_id"))
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
    if not isinstance(name, str) or not isinstance(group, str) or not isinstance(number, int | str):
        return None
    return (group, bool(entry.get("is_p2p")), number) if name.startswith("nccl:") else None
