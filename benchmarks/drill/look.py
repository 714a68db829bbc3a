"""What a drill finds of a run: its processes, and what its driver and its journal report."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import psutil
from headway.common.errors import DeadlineError, HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_NODE, ENV_RUN_ID, NodePaths
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.controller.faults import faults
from headway.launch.cluster import ClusterFolder
from headway.testkit.journal import query

NODE_SERVICES = ("dataloader", "ckpt_store", "agent", "zygote")
WELL = frozenset({"active", "spare"})
"""States of a node that can train."""


# ---- processes ----------------------------------------------------------------------------------
def environments() -> Iterator[tuple[ProcessId, dict[str, str]]]:
    """Every living process of this user with its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            found = ProcessId.of(process.pid)
            if found is not None and found.alive():
                yield found, env


def members(run: Run) -> list[tuple[ProcessId, str, int]]:
    """(process, role, node) of every living process of a run; workers have the role of their
    zygote."""
    wanted = {run.folder.run_id, ClusterFolder(run.cluster_folder).id}
    return [
        (process, env.get("HEADWAY_ROLE", ""), int(env.get(ENV_NODE, "-1")))
        for process, env in environments()
        if env.get(ENV_RUN_ID) in wanted
    ]


def of_role(run: Run, role: str) -> list[ProcessId]:
    """Every process of that role that lives and is not stopped."""
    return [one for one, name, _ in members(run) if name == role and one.state() not in ("", "T")]


def parts_of(run: Run, status: Status, node: int) -> faults.Parts:
    """The processes of a node by what they are; those that are gone are left out."""
    cluster = ClusterFolder(run.cluster_folder)
    address = cluster.address(node)
    services = {name: ProcessId.of(pid) for name, pid in status.services.get(node, {}).items()}
    services["executor"] = address.process if address is not None else None
    services["init"] = cluster.init(node)
    workers = {row.rank: ProcessId.of(row.pid) for row in status.ranks if row.node == node}
    known = {process for process in (*services.values(), *workers.values()) if process is not None}
    forked = [one for one, role, home in members(run) if role == "zygote" and home == node]
    return faults.Parts(
        {name: process for name, process in services.items() if process is not None},
        {rank: process for rank, process in workers.items() if process is not None},
        [process for process in forked if process not in known],
    )


def places_of(run: Run, node: int) -> faults.Places:
    """Where the run lies on a node."""
    shm = NodePaths(run.folder.run_id, node).shm_dir
    return faults.Places(run.path, shm, ClusterFolder(run.cluster_folder).path)


# ---- the driver ---------------------------------------------------------------------------------
def status_of(run: Run) -> Status | None:
    """What the driver reports, None when none answers within a second."""
    with contextlib.suppress(HeadwayError, OSError):
        return run.status(timeout_s=1.0)
    return None


def reports(run: Run, condition: Callable[[Status], bool]) -> bool:
    """Whether the driver answers, with a status of which ``condition`` holds."""
    status = status_of(run)
    return status is not None and condition(status)


def home_of(status: Status) -> int:
    """The node of the driver."""
    return next(node for node, names in status.services.items() if "driver" in names)


def node_of(status: Status, rank: int) -> int:
    """The node that carries a rank."""
    return next(row.node for row in status.ranks if row.rank == rank)


def pids_of(status: Status) -> dict[int, int]:
    """Rank -> pid."""
    return {row.rank: row.pid for row in status.ranks}


def replaced(before: Status, after: Status, ended: Collection[int] = ()) -> list[int]:
    """Ranks that have another process now, but for those whose pid was among ``ended``."""
    old, new = pids_of(before), pids_of(after)
    return sorted(rank for rank, pid in old.items() if pid not in ended and new[rank] != pid)


def healthy(
    run: Run, beyond_step: int = -1, *, fallen: Collection[int] = (), limit_s: float = 120.0
) -> Status:
    """Wait until every rank runs, every node in use has its services, and ``beyond_step`` is
    passed.

    ``fallen`` are pids of workers, services, executors and inits that must have been replaced by
    then.

    Raises:
        DeadlineError: not within ``limit_s``; the last status is in the message.
    """
    deadline = time.monotonic() + limit_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = status = run.status(timeout_s=2.0)
        except DeadlineError as error:
            last = error
            continue
        if status.step > beyond_step and _is_whole(run, status, set(fallen)):
            return status
        if status.phase in TERMINAL_OUTCOMES:
            break
        time.sleep(0.1)  # a look costs some milliseconds, of the driver too
    raise DeadlineError(f"run {run.name} is not healthy again: {last}")


def _is_whole(run: Run, status: Status, fallen: set[int]) -> bool:
    used = {row.node for row in status.ranks}
    serving = {pid for services in status.services.values() for pid in services.values()}
    return (
        status.phase == "running"
        and all(row.status == "running" for row in status.ranks)
        and all(set(NODE_SERVICES) <= set(status.services.get(node, ())) for node in used)
        and not fallen & {*serving, *pids_of(status).values()}
        and not _keepers(run, used) & {*fallen, 0}
    )


def _keepers(run: Run, nodes: Collection[int]) -> set[int]:
    """Pids of the nodes' inits and executors; 0 stands for one that does not live."""
    folder = ClusterFolder(run.cluster_folder)
    found = [process for node in nodes for process in (folder.init(node), folder.living(node))]
    return {process.pid if process is not None and process.alive() else 0 for process in found}


# ---- the journal --------------------------------------------------------------------------------
def events_of(run: Run, since_s: float = 0.0) -> list[dict[str, Any]]:
    """The journal's events since a moment of the monotonic clock, in their order."""
    keys = ("id", "epoch", "at_s", "unix_s", "name", "fields")
    sql = "SELECT id, epoch, monotonic_s, unix_s, name, fields FROM events WHERE monotonic_s >= ?"
    rows = query(run, f"{sql} ORDER BY id", (since_s,))
    return [{**dict(zip(keys, row, strict=True)), "fields": json.loads(row[5])} for row in rows]


def generations_of(run: Run) -> list[dict[str, Any]]:
    """Fields of every ``generation`` event, such as ``source`` and ``step``."""
    return [row["fields"] for row in events_of(run) if row["name"] == "generation"]


def measured_steps(run: Run) -> list[int]:
    """Steps that have metrics, in order."""
    return [step for (step,) in query(run, "SELECT DISTINCT step FROM metrics ORDER BY step")]


def missing_steps(run: Run, steps: int = 0) -> list[int]:
    """Steps without metrics below ``steps``, or below the newest that has some: the last few of a
    run that trains may be on their way."""
    known = measured_steps(run)
    return sorted(set(range(steps or max(known, default=0))) - set(known))


# ---- waiting ------------------------------------------------------------------------------------
def seconds_until(condition: Callable[[], Any], limit_s: float) -> float:
    """Poll until it holds; returns the seconds it took, or infinity when it did not in time."""
    begun_s = time.monotonic()
    is_reached = wait_until(condition, limit_s, every_s=0.05)
    return time.monotonic() - begun_s if is_reached else math.inf


def seconds_to_steps(
    run: Run, limit_s: float, accept: Callable[[Status], bool] = lambda _: True, more: int = 3
) -> float:
    """Seconds until the run is in an accepted status, all ranks run and ``more`` steps follow."""
    first: list[int] = []

    def stepping() -> bool:
        status = status_of(run)
        if status is None or status.phase != "running" or not accept(status):
            return False
        if any(row.status != "running" for row in status.ranks):
            return False
        first.append(status.step)
        return status.step >= first[0] + more

    return seconds_until(stepping, limit_s)
