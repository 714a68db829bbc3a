"""Reads tables of which rank runs on which host.

Columns with or without names (``rank host local_rank pci``), rank files of Open MPI
(``rank 0=gpu-c03 slot=0-7``), its ``--display-map``, and ``srun``'s distribution as ``rank: host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.health.rulebook import pci_address

MAX_RANKS: Final = 1_000_000
_COLUMNS: Final = {
    "rank": ("rank", "global_rank", "ranks", "worker", "task", "procid", "slurm_procid"),
    "host": ("host", "hostname", "node", "nodename", "node_name", "machine", "server"),
    "local_rank": ("local_rank", "localrank", "local", "lrank", "localid", "slurm_localid"),
    "gpu": ("gpu", "gpu_index", "device", "cuda", "cuda_device", "gpu_id", "gpu_idx"),
    "pci": ("pci", "bus", "bus_id", "busid", "pci_bus_id", "pci_address", "pcie", "bdf"),
    "address": ("ip", "address", "addr", "ip_address"),
    "nic": ("nic", "hca", "ib", "rail"),
    "pid": ("pid", "process_id"),
}  # fmt: skip
_RANK_FILE = re.compile(
    r"^\s*rank\s+(?P<rank>\d{1,7})\s*=\s*(?P<host>\+?[\w.-]{1,253})", re.IGNORECASE
)
_MAP_NODE = re.compile(r"Data for node: (?P<host>[\w.-]{1,253})")
_MAP_RANK = re.compile(r"Process rank: (?P<rank>\d{1,7})\b")
_PAIR = re.compile(
    r"^\s*(?:rank\s*)?(?P<rank>\d{1,7})\s*(?::|->|=)\s*(?P<host>[A-Za-z][\w.-]{0,252})\s*$",
    re.IGNORECASE,
)
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*::[0-9a-fA-F:.]*")
_HOST = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][\w.-]{0,252}")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs. Unknown numbers are -1, unknown texts empty."""

    rank: int
    host: str
    local_rank: int = -1
    gpu: int = -1
    """Index on its host."""
    pci: str = ""
    """PCI address of its GPU, in the form of the kernel."""
    address: str = ""
    nic: str = ""
    pid: int = -1


def columns_of(line: str) -> dict[str, int]:
    """The places of the columns that a header names; empty of any other line."""
    cells = [
        re.sub(r"[\s-]+", "_", cell.strip().lower()) for cell in _cells(line.strip().lstrip("#"))
    ]
    found: dict[str, int] = {}
    for field, names in _COLUMNS.items():
        place = next((at for at, cell in enumerate(cells) if cell in names), None)
        if place is not None:
            found[field] = place
    known = {"rank", "host"} <= found.keys() or {"rank", "address"} <= found.keys()
    # a table of section times has a rank and a host too, and columns that are not of this kind
    return found if known and len(cells) <= len(found) + 2 else {}


def read_ranks(lines: Iterable[str]) -> tuple[RankPlace, ...]:
    """The places in the order of the file; the last one of each rank counts."""
    found: dict[int, RankPlace] = {}
    columns: dict[str, int] = {}
    host = ""
    for line in lines:
        line = line[:2000].strip("\ufeff\r\n")
        if len(found) >= MAX_RANKS:
            break
        if header := columns_of(line):
            columns = header
            continue
        if node := _MAP_NODE.search(line):
            host = node["host"]
        place = _place(line, columns, host)
        if place is not None:
            found[place.rank] = place
    return tuple(found.values())


def _place(line: str, columns: dict[str, int], host: str) -> RankPlace | None:
    if host and (mapped := _MAP_RANK.search(line)):
        return RankPlace(int(mapped["rank"]), host)
    if pair := _RANK_FILE.match(line) or _PAIR.match(line):
        return RankPlace(int(pair["rank"]), pair["host"])
    if not line.strip() or line.lstrip().startswith(("#", "//")):
        return None
    cells = _cells(line)
    if columns and len(cells) > max(columns.values()):
        return _named({field: cells[place].strip() for field, place in columns.items()})
    return None if columns else _unnamed(cells)


def _named(row: dict[str, str]) -> RankPlace | None:
    rank = _number(row.get("rank", ""))
    host = row.get("host", "") or row.get("address", "")
    if rank < 0 or not host:
        return None
    gpu, pci = row.get("gpu", ""), row.get("pci", "")
    if not pci and _PCI.fullmatch(gpu):
        pci = gpu
    return RankPlace(
        rank, host, _number(row.get("local_rank", "")), _number(gpu), pci_address(pci),
        row.get("address", ""), row.get("nic", ""), _number(row.get("pid", "")),
    )  # fmt: skip


def _unnamed(cells: Sequence[str]) -> RankPlace | None:
    """``13 gpu-c03 5 0000:b3:00.0``: the rank, a host, and what is recognised by its form."""
    if not 2 <= len(cells) <= 6 or not re.fullmatch(r"\d{1,7}", cells[0]):
        return None
    rest = [cell.strip() for cell in cells[1:]]
    pci = next((cell for cell in rest if _PCI.fullmatch(cell)), "")
    address = next((cell for cell in rest if cell != pci and _ADDRESS.fullmatch(cell)), "")
    host = rest[0] if _HOST.fullmatch(rest[0]) else address if rest[0] == address else ""
    if not host:
        return None
    number = next((int(cell) for cell in rest if re.fullmatch(r"\d{1,3}", cell)), -1)
    return RankPlace(int(cells[0]), host, number, -1, pci_address(pci), address)


def _cells(line: str) -> list[str]:
    for delimiter in (",", "\t", ";"):
        if delimiter in line:
            return [cell.strip() for cell in line.split(delimiter)]
    return line.split()


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,10}", text) else -1
