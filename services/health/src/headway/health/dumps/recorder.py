"""Reads the dumps of torch's flight recorder, which records the collectives of NCCL and of gloo.

Format: ``torch/csrc/distributed/c10d/FlightRecorder.hpp``, versions 2.1 to 2.10, as JSON or as a
pickle of dictionaries, lists, strings and numbers. A pickle that asks for any class is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from headway.health.dumps import plain_pickle
from headway.health.dumps.batches import without_ends
from headway.health.dumps.names import host_of_name, rank_of_name

MAX_BYTES = 1 << 30
MAX_NUMBER = 1 << 62
"""Larger numbers are damage: of ranks, sequences, sizes and times in nanoseconds alike."""
MAX_RANK = 1 << 20
"""Ten times the ranks of the largest jobs; every rank below the highest takes memory."""
MAX_NAME = 80
_MESSAGE = re.compile(r"(?P<op>send|recv)\s+(?P<own>\d+)(?P<arrow>->|<-)(?P<other>\d+)")


class DumpError(ValueError):
    """A file that is not a dump of a flight recorder, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of one rank."""

    group: str
    """Name of the process group, which is unique in a job."""
    description: str
    local_id: int
    """Number of the group on this rank, by which its status is listed."""
    order: int
    """In which the rank entered its operations, over all groups."""
    sequence: int
    """Number of a collective in its group, which is equal on all members."""
    name: str
    num_elements: int
    is_completed: bool
    has_started: bool
    created_ns: int
    timeout_ms: int
    source: int = -1
    """Sender of a message, as index in the group; -1 for a collective."""
    destination: int = -1
    dtype: str = ""
    """Type of the tensors it reads, such as ``BFloat16``; empty if that was not recorded."""

    @property
    def is_message(self) -> bool:
        """Whether it is one end of a message between two ranks."""
        return self.source >= 0


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded."""

    rank: int
    host: str
    """From the file's name; empty if that has none."""
    entries: tuple[Entry, ...]
    members: dict[str, tuple[int, ...]]
    """Ranks of each group by its name; empty if the recorder did not write them."""
    enqueued: dict[int, int] = field(default_factory=dict)
    """The newest operation of a group that was entered, by the group's number on this rank."""
    completed: dict[int, int] = field(default_factory=dict)
    is_nccl: bool = True

    @property
    def newest_ns(self) -> int:
        """When its newest operation was entered, 0 without any."""
        return max((one.created_ns for one in self.entries), default=0)

    @property
    def knows_starts(self) -> bool:
        """Whether it recorded when the device began operations."""
        return any(one.has_started for one in self.entries)


def read_dump(path: Path) -> Dump:
    """Read the dump of one rank.

    Raises:
        DumpError: it is something else, is damaged, or its name has no rank. OSError.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DumpError(f"{size >> 20} MiB are more than a recorder writes")
    value = _decode(path.read_bytes())
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise DumpError("it has no list of entries: not the dump of a flight recorder")
    rank, host = _rank(path, value), host_of_name(path.name)
    try:
        entries = tuple(_entry(one) for one in without_ends(value["entries"]))
        members = _members(value.get("pg_config"))
        enqueued, completed = _status(value.get("pg_status"))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DumpError(f"an entry that no known version writes: {error!r}") from error
    is_nccl = not any(one["profiling_name"].startswith("gloo:") for one in value["entries"])
    return Dump(rank, host, entries, members, enqueued, completed, is_nccl)


def _decode(data: bytes) -> Any:
    try:
        if data.lstrip()[:1] == b"{":
            return json.loads(data)
        return plain_pickle.load(data)
    except plain_pickle.ForbiddenClass as error:
        raise DumpError(str(error)) from None
    except MemoryError:
        raise DumpError("it takes more memory than any dump needs; not read") from None
    except Exception as error:  # a damaged pickle may fail in any way
        raise DumpError(f"neither JSON nor a pickle: {error}") from error


def _rank(path: Path, value: dict[str, Any]) -> int:
    known = value.get("rank")
    rank = rank_of_name(path.name)
    if isinstance(known, int) and not isinstance(known, bool):
        rank = known
    if rank < 0:
        raise DumpError("its name has no rank, as nccl_trace_rank_5 has")
    if rank > MAX_RANK:
        raise DumpError(f"rank {rank} is more than any job has: is it a date?")
    return rank


def _entry(value: dict[str, Any]) -> Entry:
    name = _text(value["profiling_name"])
    group, description = _group(value)
    message = _MESSAGE.search(name)
    source = destination = -1
    if message:
        ends = int(message["own"]), int(message["other"])
        source, destination = ends if message["arrow"] == "->" else ends[::-1]
    return Entry(
        group,
        description,
        _number(value.get("pg_id", -1)),
        _number(value.get("record_id", value.get("id", 0))),
        _number(value.get("collective_seq_id", value.get("seq_id", 0))),
        message["op"] if message else _operation(name),
        _num_elements(value.get("input_sizes")),
        value.get("state") == "completed",
        value.get("state") == "started" or bool(value.get("time_discovered_started_ns")),
        _number(value.get("time_created_ns")),
        _number(value.get("timeout_ms")),
        source,
        destination,
        _dtype(value.get("input_dtypes")),
    )


def _dtype(names: object) -> str:
    """One name for tensors of one type; a mixture is named in full."""
    if not isinstance(names, list | tuple):
        return ""
    return ", ".join(sorted({_text(one) for one in names}))[:MAX_NAME]


def _text(value: object) -> str:
    """A name; what else may stand there can be nested without end."""
    if not isinstance(value, str):
        raise TypeError(f"a name of type {type(value).__name__}")
    return value


def _operation(name: str) -> str:
    """Such as ``all_gather_base`` of ``nccl:_all_gather_base``."""
    return (name.rpartition(":")[2].split() or ["unknown"])[0].strip("_")


def _group(value: dict[str, Any]) -> tuple[str, str]:
    known = value.get("process_group")
    if isinstance(known, list | tuple) and len(known) == 2:
        return str(known[0]), str(known[1])
    return str(value.get("pg_id", "0")), ""


def _num_elements(sizes: object) -> int:
    if not isinstance(sizes, list | tuple) or not sizes:
        return -1
    total = 0
    for shape in sizes:
        count = 1
        for length in shape:
            count *= int(length)
            if abs(count) > MAX_NUMBER:
                raise ValueError("a size that no tensor has")
        total += count
    return total


def _number(value: object) -> int:
    """A whole number that a recorder may write; 0 of nothing."""
    number = int(str(value or 0))
    if abs(number) > MAX_NUMBER:
        raise ValueError(f"a number that no recorder writes: {str(number)[:40]}")
    return number


def _members(config: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(config, dict):
        return {}
    found = {}
    for key, value in config.items():
        ranks = value.get("ranks", "[]")
        found[str(key)] = _ranks_of(ranks) if isinstance(ranks, str) else _checked(ranks)
    return found


@lru_cache(maxsize=1 << 12)
def _ranks_of(text: str) -> tuple[int, ...]:
    """The members of a group; of one that many dumps list, one object for all of them."""
    return _checked(json.loads(text))


def _checked(members: Iterable[object]) -> tuple[int, ...]:
    members = tuple(members)
    if not all(isinstance(one, int) and 0 <= one <= MAX_RANK for one in members):
        raise ValueError("a group's members are not ranks")
    return cast(tuple[int, ...], members)


def _status(status: object) -> tuple[dict[int, int], dict[int, int]]:
    if not isinstance(status, dict):
        return {}, {}
    rows = {int(key): value for key, value in status.items()}
    return (
        {key: int(row["last_enqueued_collective"]) for key, row in rows.items()},
        {key: int(row["last_completed_collective"]) for key, row in rows.items()},
    )
