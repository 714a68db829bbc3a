"""What a node sees of the host's files: everything read-only, temporary folders of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headway.testkit.bed import kernel

TEMPORARY = {"/tmp": "1777", "/var/tmp": "1777", "/run": "755", "/dev/shm": "1777"}
"""Folders in the memory of a node, empty after each boot -> their mode."""
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True)
class View:
    """Absolute paths without links, the same on the host and in the node but for ``disk_alias``."""

    folder: str
    """The bed's folder; nothing else in it is visible."""
    disk: str
    """The node's own folder on the host, which outlives a boot."""
    disk_alias: str
    """A path that leads to the node's disk on every node."""
    shared: list[str]
    """Folders that all nodes write, as a network file system."""
    visible: list[str]
    """Code that is kept visible where it lies in a folder that is hidden."""


def show(view: View, files: dict[str, str]) -> None:
    """Make the calling process see the files of a node.

    It is process 1 of its own pid namespace, in its own mount and network namespaces.

    Args:
        view: the folders.
        files: path -> content of files that only this node has, in /etc and /proc.
    """
    kernel.keep_mounts_private()
    writable = dict.fromkeys([view.disk, *view.shared], False)
    kept = {path: kernel.detached(path) for path in [*writable, *_hidden(view)]}
    kept[view.disk_alias] = kernel.detached(view.disk)
    cgroups = kernel.detached(_CGROUPS) if Path(_CGROUPS).is_dir() else -1
    kernel.make_read_only("/")
    _hide_and_attach(view, kept)
    kernel.mount("proc", "/proc", "proc")
    kernel.mount("sysfs", "/sys", "sysfs")  # this one shows the node's own network
    if cgroups >= 0:
        kernel.attach(cgroups, _CGROUPS)
    _own_files(files)


def _hidden(view: View) -> list[str]:
    """Code that lies below a folder which the node does not share with the host."""
    hidden = [f"{path}/" for path in (*TEMPORARY, view.folder)]
    return [path for path in view.visible if any(path.startswith(above) for above in hidden)]


def _hide_and_attach(view: View, kept: dict[str, int]) -> None:
    """From the root down, so that no folder covers one that was mounted before."""
    code = {*_hidden(view)} - {view.disk, *view.shared}
    for path in sorted({*TEMPORARY, view.folder, *kept}, key=len):
        Path(path).mkdir(parents=True, exist_ok=True)
        if path in kept:
            kernel.attach(kept[path], path)
        else:
            kernel.mount("node", path, "tmpfs", options=f"mode={TEMPORARY.get(path, '755')}")
        if path in code:
            kernel.make_read_only(path)  # at once: a folder below it may be one to write


def _own_files(files: dict[str, str]) -> None:
    upper, work = Path("/run/etc/upper"), Path("/run/etc/work")
    upper.mkdir(parents=True)
    work.mkdir()
    options = f"lowerdir=/etc,upperdir={upper},workdir={work}"
    kernel.mount("etc", "/etc", "overlay", options=options)
    for number, (path, content) in enumerate(files.items()):
        if path.startswith("/etc/"):
            Path(path).write_text(content)
            continue
        stand_in = Path(f"/run/etc/file-{number}")
        stand_in.write_text(content)
        kernel.mount(os.fspath(stand_in), path, flags=kernel.BIND)
