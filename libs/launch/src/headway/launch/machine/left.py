"""What is left on this machine of runs and clusters that are over."""

from __future__ import annotations

from collections.abc import Iterable

from headway.common.node.janitor import processes_by_run, role_of
from headway.common.node.run_dir import RUN_ID, shm_root, sock_root


def left(run_ids: Iterable[str]) -> list[str]:
    """A line for each process, shared memory and folder of sockets of these runs or clusters."""
    found, lines = processes_by_run(), []
    for run_id in sorted({one for one in run_ids if RUN_ID.fullmatch(one)}):
        for process in found.get(run_id, []):
            role = role_of(process) or "process"
            lines.append(f"{role} of {run_id}, pid {process.pid}")
        folders = (root / run_id for root in (shm_root(), sock_root()))
        lines += [f"folder {folder}" for folder in folders if folder.exists()]
    return lines
