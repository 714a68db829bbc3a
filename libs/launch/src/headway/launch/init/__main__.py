"""``python -m headway.launch.init --cluster DIR --node K``: one per node."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.claim import ClaimedError, claim
from headway.launch.init.executor import Place, place_of
from headway.launch.init.supervisor import Supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Supervise the executor of one node; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m headway.launch.init",
        description="Start the executor of a node, and start it again when it fails.",
    )
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--node", type=int, required=True, help="number of the node, from 0")
    options = parser.parse_args(argv)
    try:
        place = place_of(options.cluster, options.node)
        _show_whose_it_is(place)
        _claim(place)
        _keep_from_cleaners(place)
        code = Supervisor(place).run()
        if place.has_joined:
            _leave(place)
        return code
    except (HeadwayError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, HeadwayError) else 1


def _show_whose_it_is(place: Place) -> None:
    """Have this node's names in ``/proc/PID/environ``, by which its processes are found."""
    wanted = place.environment("init", os.environ)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)


def _claim(place: Place) -> None:
    try:
        claim(place.claim)
    except ClaimedError as error:
        raise InputError(
            f"node {place.node} of {place.cluster} already has an init, process {error.holder.pid}",
            remedy="leave that one running",
        ) from None


def _leave(place: Place) -> None:
    """Remove the node's folder, if its run is over: nobody else may come to this machine again.

    Where the run is resumed meanwhile, the node gets another init.
    """
    from headway.launch.join.leaving import bundle_of, leave  # needed here only

    bundle = bundle_of(place.cluster.parent)
    place.claim.unlink(missing_ok=True)
    leave(place.cluster.parent, bundle, place.node)


def _keep_from_cleaners(place: Place) -> None:
    """Lock the node's folders as long as this process lives.

    systemd-tmpfiles removes what nobody has used for a month below /var/tmp, such as keys, but
    passes over folders that are locked.
    """
    for folder in place.folders:
        with contextlib.suppress(OSError):  # as on a network file system without locks
            fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)


if __name__ == "__main__":
    sys.exit(main())
