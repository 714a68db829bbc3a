"""The batch script of a run's job: ``python -m headway.launch.engines.slurm.hold CONTROL``.

The nodes are steps of the same job. The script only keeps the job alive. It ends the job when the
run is over, or when the run has had no driver for long, so that a killed console or a failed run
does not leave an allocation that nobody uses but somebody pays for. A further job, for one node of
a run that already has a driver, ends soon if the run is over before the job begins.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

from headway.launch.lease.base import LeaseWatch
from headway.launch.lease.file import FileLease

NO_DRIVER_S = 600.0
RESUME_S = 120.0
"""How long no driver may lead while the lease is that of the run before it was stopped."""
OVER_S = 30.0
"""How long nodes may take to end, and to have machines swept, once the run is over."""
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
    for number in (signal.SIGTERM, signal.SIGUSR1):  # the nodes act on these instead
        signal.signal(number, signal.SIG_IGN)
    watch = LeaseWatch(longest_gap_s=2 * look_s)
    before = 0 if is_further else None
    while True:
        with contextlib.suppress(OSError):  # only this machine may have lost the file system
            view = lease.look()
            before = view.claimed if before is None else before
            # a driver that was there before led the run until it was stopped; now it is resumed
            if view.is_over and view.holder is not None and view.holder.epoch > before:
                time.sleep(OVER_S)
                return
            limit_s = min(no_driver_s, RESUME_S) if view.is_over else no_driver_s
            if watch.see(view, time.monotonic()) >= limit_s:
                return
        time.sleep(look_s)


if __name__ == "__main__":
    sys.exit(main())
