"""A look at the run's folder and at the lease in it.

Is the folder there, was it removed for certain, and how does the lease stand?
"""

from __future__ import annotations

import os
from pathlib import Path

from headway.controller.executor.node_events import FolderSeen
from headway.launch.lease.base import Lease


class FolderLook:
    """May block for as long as the file system does: to be used on a thread that may."""

    def __init__(self, folder: Path, config: Path, lease: Lease) -> None:
        self._folder, self._config, self._lease = folder, config, lease
        self._device: int | None = None

    def __call__(self) -> FolderSeen:
        """Never raises. Only a removal counts as gone: any other error may pass."""
        try:
            self._config.stat()
            if self._device is None:
                self._device = self._folder.stat().st_dev
        except FileNotFoundError:
            return self._is_gone()
        except OSError as error:
            return FolderSeen("unknown", detail=_reason(error))
        try:
            return FolderSeen("there", self._lease.look())
        except OSError as error:
            return FolderSeen("there", detail=_reason(error))

    def _is_gone(self) -> FolderSeen:
        """What makes the folder a run must be absent, and its parent on the device that it was on.

        A run without its configuration was damaged, not removed (a service may have made the folder
        of its own files again since); a parent on another device means that the folder's file
        system is not mounted now.
        """
        parent = self._folder.parent
        if (self._folder / "run.json").exists():
            return FolderSeen("unknown", detail=f"{self._config} is missing")
        try:
            os.listdir(parent)
            device = parent.stat().st_dev
        except OSError as error:
            return FolderSeen("unknown", detail=_reason(error))
        if self._device is not None and device != self._device:
            return FolderSeen("unknown", detail=f"{parent} is another file system now")
        return FolderSeen("gone", detail=f"{self._config} does not exist")


def _reason(error: OSError) -> str:
    return f"{error.strerror} ({error.filename})" if error.filename else str(error)
