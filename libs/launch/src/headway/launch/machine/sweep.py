"""``python -m headway.launch.machine.sweep SCRATCH SHARED``: remove what runs have left behind.

A machine that is down, or no longer the run's, when the run ends keeps its node's folder. It is
removed at the next start of a node on that machine, or by a job of one machine, see
``SlurmMachines.sweep``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.janitor import processes_of
from headway.launch.join import scratch
from headway.launch.join.leaving import bundle_of, leave

_NODE = re.compile(r"(?P<run>[0-9a-f]+)-n(?P<node>\d+)")
"""The folder of a node, see ``Ticket.folder``."""
_REMOVED_IN_PART = re.compile(r"\.[0-9a-f]+-n\d+\.(?P<pid>\d+)")
"""The folder of a node while ``leave`` removes it."""


def main() -> int:
    """Returns the exit code."""
    sweep(scratch.folder_of(sys.argv[1], ""), Path(sys.argv[2]))
    return 0


def sweep(folder: Path, shared: Path) -> None:
    """Let nodes leave that have ended and whose run is over. What cannot be read stays.

    Args:
        folder: the scratch of this machine.
        shared: the cluster's shared folder, which responds; runs in another one are passed over.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(HeadwayError, OSError):
                if found := _NODE.fullmatch(path.name):
                    scratch.check(path)
                    _leave(path, found["run"], int(found["node"]), shared)
                elif found := _REMOVED_IN_PART.fullmatch(path.name):
                    scratch.check(path)
                    _remove_the_rest(path, int(found["pid"]))


def _leave(path: Path, run_id: str, node: int, shared: Path) -> None:
    bundle = bundle_of(path)
    is_known = bundle.run_id == run_id and bundle.control.parent.parent == shared
    if is_known and not processes_of(run_id, node):
        leave(path, bundle, node)


def _remove_the_rest(path: Path, pid: int) -> None:
    """Remove the rest of a folder whose remover was killed."""
    if not Path(f"/proc/{pid}").exists():
        shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(main())
