"""Reads everything of a folder that a reader is for."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from headway.common.errors import InputError
from headway.health.dumps.counters import Growth, PortReading, growths, read_counters, read_tree
from headway.health.dumps.kernel import KernelReport, read_kernel
from headway.health.dumps.kinds import Recognised, kind_of
from headway.health.dumps.lines import Unreadable, read_lines, read_text
from headway.health.dumps.logs import LogReport, read_log
from headway.health.dumps.names import host_of_name, phase_of_name, rank_of_name
from headway.health.dumps.nvidia_smi import GpuSample, read_nvidia_smi
from headway.health.dumps.prometheus import MetricSample, read_prometheus
from headway.health.dumps.rank_tables import RankPlace, read_ranks
from headway.health.dumps.ras import RasReport
from headway.health.dumps.ras_json import read_ras_json
from headway.health.dumps.ras_text import read_ras_text
from headway.health.dumps.recorder import Dump, DumpError, read_dump
from headway.health.dumps.same_names import apart
from headway.health.dumps.sections import Section, read_sections
from headway.health.dumps.stacks import ProcessStack, read_stacks
from headway.health.folder.dump_sets import DumpSet, dump_sets

MAX_FILES = 20_000
MAX_SAMPLES = 1_000_000
DAY_S = 86400.0


@dataclass(slots=True)
class Evidence:
    """What a folder contains."""

    by_rank: dict[int, Dump] = field(default_factory=dict)
    """The dump of each rank that has one."""
    logs: dict[str, LogReport] = field(default_factory=dict)
    """By the file's name in the folder."""
    stacks: list[ProcessStack] = field(default_factory=list)
    kernels: dict[str, KernelReport] = field(default_factory=dict)
    growths: tuple[Growth, ...] = ()
    gpus: list[GpuSample] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    places: dict[int, RankPlace] = field(default_factory=dict)
    """Where each rank runs."""
    ras: list[RasReport] = field(default_factory=list)
    metrics: list[MetricSample] = field(default_factory=list)
    start_s: float | None = None
    """When the job was started, in seconds since 1970; None if nothing tells."""
    read: dict[str, str] = field(default_factory=dict)
    """File -> what it was read as."""
    unread: dict[str, str] = field(default_factory=dict)
    """File -> why it was not."""

    @property
    def dumps(self) -> Collection[Dump]:
        """All of them."""
        return self.by_rank.values()

    def node_of(self, rank: int) -> str:
        """The node of a rank, empty if no file tells."""
        place = self.places.get(rank)
        if place is not None and place.host:
            return place.host
        return self.by_rank[rank].host if rank in self.by_rank else ""

    def rank_of(self, node: str, pci: str) -> int:
        """The rank that uses a GPU of a node, -1 if no file tells."""
        for place in self.places.values():
            if place.host == node and place.pci and place.pci == pci:
                return place.rank
        return -1


def read_folder(folder: Path) -> Evidence:
    """Read a folder with its subfolders; a file that cannot be read is noted, never fatal.

    Raises:
        InputError: there is no such folder, or nothing in it.
    """
    found = Evidence()
    files = list(_files(folder))
    if not files:
        raise InputError(
            f"{folder} contains no file",
            remedy="collect dumps, logs, stacks or counters of the job in it",
        )
    kinds = {name: kind_of(path, name) for name, path in files}
    paths = dict(files)
    _read_dumps(found, paths, kinds)
    kinds = {name: kind for name, kind in kinds.items() if name not in found.read | found.unread}
    readings: dict[str, list[PortReading]] = defaultdict(list)
    trees: dict[str, list[tuple[str, str]]] = defaultdict(list)
    kernels = [name for name, kind in kinds.items() if kind.kind == "kernel"]
    for name, kind in kinds.items():
        if kind.kind is None:
            found.unread[name] = kind.reason
        elif kind.kind == "sysfs_counter":
            text = read_text(paths[name])
            trees[phase_of_name(name)].append((name, text if isinstance(text, str) else ""))
            found.read[name] = "a counter"
        elif name not in kernels:
            _read(found, readings, paths[name], name, kind)
    found.start_s = _start_s(found)
    for name in kernels:  # after the logs, which say when the job was started
        lines = read_lines(paths[name], kinds[name].encoding)
        found.kernels[name] = read_kernel(lines, name, job_start_s=found.start_s)
        found.read[name] = "a kernel's log"
    for phase, tree in trees.items():
        readings[phase] += read_tree(tree)
    found.growths = growths(readings["before"], readings["after"])
    return found


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", remedy="name the folder of the evidence")
    num = 0
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(where) / name
            num += 1
            if num > MAX_FILES:
                raise InputError(
                    f"{folder} contains more than {MAX_FILES} files",
                    remedy="name the folder of one job",
                )
            yield str(path.relative_to(folder)), path


def _read_dumps(found: Evidence, paths: dict[str, Path], kinds: dict[str, Recognised]) -> None:
    """Read the dumps of one job; the files of another one in the folder are left out."""
    dumps: dict[str, Dump] = {}
    for name, path in paths.items():
        if kinds[name].kind in _DUMPS:
            with _noting(found, name):
                dumps[name] = read_dump(path)
                found.read[name] = "a dump of a flight recorder"
    first, *others = dump_sets(dumps) or [DumpSet((), {})]
    found.by_rank = {dump.rank: dump for dump in apart(first.dumps.values())}
    for name in paths:
        if name not in first.dumps and (name in dumps or any(one.contains(name) for one in others)):
            found.read.pop(name, None)
            found.unread[name] = first.reason


def _read(
    found: Evidence,
    readings: dict[str, list[PortReading]],
    path: Path,
    name: str,
    kind: Recognised,
) -> None:
    read = _READERS.get(kind.kind or "")
    if read is None:
        found.unread[name] = f"{kind.kind}: diagnosis does not use it"
        return
    with _noting(found, name):
        found.read[name] = read(found, readings, path, name, kind.encoding)


@contextlib.contextmanager
def _noting(found: Evidence, name: str) -> Iterator[None]:
    """Note why a file cannot be read: one that is damaged must not hide all others."""
    try:
        yield
    except (DumpError, OSError, ValueError) as error:
        found.unread[name] = str(error)
    except (RecursionError, MemoryError) as error:
        found.unread[name] = f"it is damaged: {type(error).__name__}"


Readings = dict[str, list[PortReading]]
Reader = Callable[[Evidence, Readings, Path, str, str], str]
"""Adds a file's content, and returns what it is. Raises DumpError, OSError, ValueError."""


def _log(found: Evidence, _: Readings, path: Path, name: str, encoding: str) -> str:
    year = datetime.fromtimestamp(path.stat().st_mtime, UTC).year  # which C++ logs leave out
    log = found.logs[name] = read_log(read_lines(path, encoding), rank_of_name(name), year)
    found.stacks += log.stacks
    return "a log"


def _stacks(found: Evidence, _: Readings, path: Path, name: str, encoding: str) -> str:
    stacks = read_stacks(_whole(path, encoding), name)
    if not stacks:
        raise ValueError("no stack of a process in it")
    found.stacks += stacks
    return "stacks"


def _counters(_: Evidence, readings: Readings, path: Path, name: str, encoding: str) -> str:
    phase = phase_of_name(name)
    if not phase:
        raise ValueError("its name does not say whether it is from before or after")
    readings[phase] += read_counters(read_lines(path, encoding), host_of_name(name))
    return f"counters, {phase}"


def _gpus(found: Evidence, _: Readings, path: Path, name: str, encoding: str) -> str:
    found.gpus += read_nvidia_smi(read_lines(path, encoding), host_of_name(name))
    return "values of GPUs"


def _sections(found: Evidence, _: Readings, path: Path, _name: str, encoding: str) -> str:
    found.sections += read_sections(read_lines(path, encoding))
    return "times of sections"


def _ranks(found: Evidence, _: Readings, path: Path, _name: str, encoding: str) -> str:
    found.places |= {one.rank: one for one in read_ranks(read_lines(path, encoding))}
    return "a table of ranks"


def _ras(found: Evidence, _: Readings, path: Path, _name: str, encoding: str) -> str:
    text = _whole(path, encoding)
    is_json = text.lstrip()[:1] == "{"
    report = read_ras_json(text) if is_json else read_ras_text(text)
    if report is None:
        raise ValueError("no status of NCCL's RAS in it")
    found.ras.append(report)
    return "a status of NCCL's RAS"


def _metrics(found: Evidence, _: Readings, path: Path, _name: str, encoding: str) -> str:
    found.metrics += itertools.islice(read_prometheus(read_lines(path, encoding)), MAX_SAMPLES)
    return "metrics"


def _whole(path: Path, encoding: str) -> str:
    text = read_text(path, encoding)
    if isinstance(text, Unreadable):
        raise ValueError(text.reason)
    return text


_READERS: dict[str, Reader] = {
    "log": _log, "stacks": _stacks, "counters": _counters, "nvidia_smi": _gpus,
    "sections": _sections, "ranks": _ranks, "ras_json": _ras, "ras_text": _ras,
    "prometheus": _metrics,
}  # fmt: skip
_DUMPS = ("flight_pickle", "flight_json")


def _start_s(found: Evidence) -> float | None:
    """When the job was started, by its logs; else a day before the first thing known of it.

    A log may begin, and a recorder's ring does, long after the job.
    """
    begun = [log.begun_at_s for log in found.logs.values() if log.begun_at_s is not None]
    if begun:
        return min(begun)
    known = [log.first_at_s for log in found.logs.values() if log.first_at_s is not None]
    known += [entry.created_ns / 1e9 for dump in found.dumps for entry in dump.entries]
    return min(known) - DAY_S if known else None
