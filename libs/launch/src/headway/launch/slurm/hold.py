"""``python -m headway.launch.slurm.hold CONTROL [--further]``: the batch script of a run's job.

The nodes are steps of the same job. It only keeps the job, and ends it when the run is over, or
when no driver has led it for long: what a console that was killed, or a run that failed as a whole,
would leave to be paid for. A further job, for one node of a run that a driver leads already, ends
soon where the run is over before it begins.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

from headway.launch.lease import FileLease, LeaseWatch

NO_DRIVER_S = 600.0
RESUME_S = 120.0
"""The same while the lease is that of the run before it was stopped."""
OVER_S = 10.0
"""Nodes that are ending have so long once the run is over."""
LOOK_S = 5.0


def main() -> int:
    """Returns the exit code."""
    is_further = "--further" in sys.argv[2:]
    hold(FileLease(Path(sys.argv[1])), NO_DRIVER_S, LOOK_S, is_further=is_further)
    return 0


def hold(lease: FileLease, no_driver_s: float, look_s: float, *, is_further: bool = False) -> None:
    """Return once the run is over, or its lease has not changed for ``no_driver_s``.

    Time in which the lease cannot be read does not count.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):  # the nodes decide what follows from these
        signal.signal(number, signal.SIG_IGN)
    watch = LeaseWatch(longest_gap_s=2 * look_s)
    before = 0 if is_further else None
    while True:
        with contextlib.suppress(OSError):  # only this machine may have lost the file system
            view = lease.look()
            before = view.claimed if before is None else before
            is_over = view.holder is not None and view.holder.is_over
            # a driver that was there before led the run until it was stopped; now it is resumed
            if is_over and view.holder is not None and view.holder.epoch > before:
                time.sleep(OVER_S)
                return
            limit_s = min(no_driver_s, RESUME_S) if is_over else no_driver_s
            if watch.see(view, time.monotonic()) >= limit_s:
                return
        time.sleep(look_s)


if __name__ == "__main__":
    sys.exit(main())
