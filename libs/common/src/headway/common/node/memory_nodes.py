"""The memory nodes (NUMA) of this machine, and threads bound to the CPUs of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

SYSFS = Path("/sys/devices/system/node")


def memory_nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """Memory node -> its CPUs that this process may use; nodes without such CPUs are left out.

    A machine without the interface, or with contents that cannot be read, is one node 0
    (Documentation/ABI/stable/sysfs-devices-node).
    """
    allowed = frozenset(os.sched_getaffinity(0))
    found: dict[int, frozenset[int]] = {}
    for folder in sysfs.glob("node[0-9]*"):
        try:
            cpus = parse_cpus((folder / "cpulist").read_text()) & allowed
            number = int(folder.name.removeprefix("node"))
        except (OSError, ValueError):
            return {0: allowed}
        if cpus:
            found[number] = cpus
    return dict(sorted(found.items())) or {0: allowed}


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-3,8``.

    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]

    Raises:
        ValueError: it is not such a list.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


@contextlib.contextmanager
def bound_to(cpus: Collection[int]) -> Iterator[None]:
    """Run the calling thread on these CPUs only, and as before afterwards.

    Memory that it touches first then comes from their memory node, as is Linux's default.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
