"""Chooses a run's lease: a file in its control folder, or a Lease object of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headway.launch.lease.base import Holder, Lease
from headway.launch.lease.file import FileLease
from headway.launch.lease.kubernetes import LeaseName


def lease_of(control: Path, fence_elsewhere: Callable[[Holder], bool] = lambda _: True) -> Lease:
    """The lease of the run whose control folder it is.

    Args:
        control: the run's control folder; ``lease.json`` in it names the Lease object, if any.
        fence_elsewhere: called to end a holder on another machine.

    Raises:
        InputError: it is kept by Kubernetes, and this is not a pod of the run; or the file that
            says so is damaged. OSError: the folder cannot be read.
    """
    name = LeaseName.load(control)
    return FileLease(control, fence_elsewhere) if name is None else name.lease(fence_elsewhere)
