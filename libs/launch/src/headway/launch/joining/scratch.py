"""A node's folder on its machine's own disk is this user's alone, though others use the disk.

It holds the node's keys and says which program a node runs, so that nobody else may make it, or put
another one in its place.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.run_dir import private_folder

DEFAULT = "/var/tmp/headway-{uid}"
"""``{uid}`` is the number of the user on the machine: each one's folder belongs to who made it."""
_SETTING = "`scratch` in the cluster's file to a folder of your own"


def folder_of(scratch: str, name: str) -> Path:
    """The folder ``name`` below ``scratch`` of this machine."""
    return Path(scratch.replace("{uid}", str(os.getuid()))) / name


def make(folder: Path) -> None:
    """Create a node's folder, and the scratch around it.

    Raises:
        InputError: another user has made one of them. OSError: they cannot be made.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.parent.mkdir(mode=0o700)
    check(folder)
    private_folder(folder, up_to=folder, setting=_SETTING)


def check(folder: Path) -> None:
    """Whatever is read from a node's folder may be believed after this.

    Raises:
        InputError: it belongs to another user, or is below a folder of another one. That of root
            may have been made for all users.
    """
    me = os.getuid()
    for path, owners in ((folder.parent, {me, 0}), (folder, {me})):
        try:
            found = [path.lstat(), path.stat()]
        except FileNotFoundError:
            return
        is_link = stat.S_ISLNK(found[0].st_mode) and path == folder
        if is_link or {one.st_uid for one in found} - owners or not path.is_dir():
            raise InputError(
                f"{path} is not a folder of user {me}", remedy=f"remove it, or set {_SETTING}"
            )
