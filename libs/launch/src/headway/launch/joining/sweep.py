"""``python -m headway.launch.joining.sweep SCRATCH SHARED``: remove what runs have left behind.

A machine that is down, or no longer the run's, when the run ends keeps its node's folder. It is
removed at the next start of a node on that machine, or by a job of one machine, see
``SlurmMachines.sweep``.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.janitor import processes_of
from headway.launch.joining import scratch
from headway.launch.joining.leaving import bundle_of, leave


def main() -> int:
    """Returns the exit code."""
    sweep(scratch.folder_of(sys.argv[1], ""), Path(sys.argv[2]))
    return 0


def sweep(folder: Path, shared: Path) -> None:
    """Let nodes leave that have ended and whose run is over.

    Args:
        folder: the scratch of this machine.
        shared: the cluster's shared folder, which responds; runs in another one are passed over.
    """
    for path in folder.glob("*-n*"):
        node = path.name.rpartition("-n")[2]
        # one of another user, without its bundle, gone meanwhile, or on a disk that is read-only
        with contextlib.suppress(HeadwayError, OSError):
            scratch.check(path)
            bundle = bundle_of(path)
            is_known = node.isdecimal() and bundle.control.parent.parent == shared
            if is_known and not processes_of(bundle.run_id, int(node)):
                has_moved = bundle.records_of(int(node)).exists()
                leave(path, bundle, int(node), has_moved=has_moved)


if __name__ == "__main__":
    sys.exit(main())
