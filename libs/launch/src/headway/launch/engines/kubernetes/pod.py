"""What is special to a node that is a pod: its number, its ticket, and its exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import InputError
from headway.common.log import get_logger
from headway.common.node.files import make_private_folder, replace_file
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.join.ticket import Ticket
from headway.launch.lease.choose import lease_of
from headway.launch.lease.kubernetes import LeaseName

INDEX = "JOB_COMPLETION_INDEX"
"""Kubernetes sets it in each pod of an indexed Job."""
BUNDLE, CONSOLE_KEY = "bundle.json", "console.key"
"""Files of the Secret."""
AGAIN = 1
"""Exit code with which the Job starts the pod again."""

log = get_logger("pod")


def ticket_of(bundle: Bundle, scratch: str) -> Ticket:
    """A ticket for this pod, made from the Secret that it mounts.

    Raises:
        InputError: the environment does not say which node this is.
    """
    text = os.environ.get(INDEX, "")
    if not (text.isascii() and text.isdecimal() and int(text) < bundle.nodes):
        raise InputError(
            f"{INDEX}={text!r} is not the number of a node, 0 to {bundle.nodes - 1}",
            remedy="start the pods with the indexed Job that `headway cluster render` prints",
        )
    return Ticket.of(bundle, int(text), scratch, is_first=int(text) == 0)


def stay(secret: Path, bundle: Bundle, folder: NodeFolder, until_end: Callable[[], int]) -> int:
    """Be a node until it ends; returns the exit code, 0 only if the run is over.

    Args:
        secret: folder of the mounted Secret.
        bundle: what it holds.
        folder: of the node.
        until_end: joins the run and returns when the node has ended.
    """
    for shared in (bundle.control, bundle.checkpoints):  # the claim is empty at first
        make_private_folder(shared)
    name_lease(bundle)
    lease = lease_of(bundle.control)
    if lease.look().is_over:
        log.info("the run is over", run=bundle.name)
        return 0
    if (secret / CONSOLE_KEY).exists():
        _admit_console(secret / CONSOLE_KEY, folder.path / "runs" / bundle.name)
    code = until_end()
    return code or (0 if lease.look().is_over else AGAIN)


def name_lease(bundle: Bundle) -> None:
    """Record in the control folder that Kubernetes keeps the lease."""
    account = str(bundle.engine.get("account", ""))
    try:
        namespace = (Path(account) / "namespace").read_text().strip()
    except OSError as error:
        raise InputError(
            f"the pod has no ServiceAccount in {account}: {error.strerror}",
            remedy="apply the manifests of the run again",
        ) from error
    LeaseName(bundle.engine["api"], namespace, bundle.name, account).save(bundle.control)


def _admit_console(key: Path, run: Path) -> None:
    """Commands that are run in the pod, such as ``headway stop``, find the key beside the run."""
    keys = run / "cluster" / "keys"
    for folder in (run, keys.parent, keys):
        make_private_folder(folder)
    replace_file(keys / CONSOLE_KEY, key.read_bytes())
