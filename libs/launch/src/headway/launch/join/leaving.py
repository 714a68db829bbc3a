"""What a node leaves on its machine: once the run is over nothing, before that no secret."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.files import make_private_folder, replace_file
from headway.launch.join import records
from headway.launch.join.bundle import Bundle
from headway.launch.lease.choose import lease_of

log = get_logger("leaving")


def bundle_of(folder: Path) -> Bundle:
    """What the node in this folder got when it joined.

    Raises:
        InputError, OSError: it is not there, or damaged.
    """
    return Bundle.load(_run_of(folder) / "bundle.json")


def leave(folder: Path, bundle: Bundle, node: int) -> None:
    """Keep the records of an ended node in the run's shared folder, if the run is over.

    The node's own folder is removed. Records are in one of the two at any time, so a reader that
    finds none in the shared folder, and then none here, looks there again.
    """
    if not folder.exists() or not _is_over(bundle):
        return
    try:
        has_kept = _keep_records(_run_of(folder), bundle.records_of(node))
        if not _is_over(bundle):  # it was resumed meanwhile, and the node may be back
            if has_kept:
                bundle.records_of(node).unlink(missing_ok=True)
            return
        apart = folder.with_name(f".{folder.name}.{os.getpid()}")
        folder.rename(apart)  # at once: a node that begins from now on has a new folder
        remove_secrets(apart)  # first, in case the rest is not removed
        shutil.rmtree(apart)
    except OSError as error:
        remove_secrets(folder)
        log.warning("not all of the node is removed", path=str(folder), error=str(error))


def _keep_records(run: Path, kept: Path) -> bool:
    """Whether they are the newest: a node that has moved leaves some on each of its machines."""
    newest_s = max((path.stat().st_mtime for path in run.glob("logs/*")), default=0.0)
    if kept.exists() and kept.stat().st_mtime >= newest_s:
        return False
    make_private_folder(kept.parent)
    replace_file(kept, records.pack(run))
    os.utime(kept, (newest_s, newest_s))
    return True


def _is_over(bundle: Bundle) -> bool:
    try:
        return lease_of(bundle.control).look().is_over
    except (HeadwayError, OSError) as error:
        log.warning("it is not known whether the run is over; the folder stays", error=str(error))
        return False


def remove_secrets(folder: Path) -> None:
    """Remove what admits to the run, and keep the logs: the node has to join again.

    Raises:
        OSError: it cannot be removed.
    """
    for name in ("joined.json", "node.key"):
        (folder / name).unlink(missing_ok=True)
    for secret in folder.glob("runs/*/bundle.json"):
        secret.unlink()
    shutil.rmtree(folder / "cluster" / "keys", ignore_errors=True)


def _run_of(folder: Path) -> Path:
    """The run's folder in that of a node. Raises OSError: there is not exactly one."""
    found = [path.parent for path in folder.glob("runs/*/run.json")]
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} has {len(found)} runs")
    return found[0]
