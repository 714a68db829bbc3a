"""What a node leaves on its machine: once the run is over nothing, before that no secret."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.files import make_private_folder, replace_file
from headway.launch.joining import records
from headway.launch.joining.bundle import Bundle
from headway.launch.leases import lease_of

log = get_logger("leaving")


def bundle_of(folder: Path) -> Bundle:
    """What the node in this folder got when it joined.

    Raises:
        InputError, OSError: it is not there, or damaged.
    """
    return Bundle.load(_run_of(folder) / "bundle.json")


def leave(folder: Path, bundle: Bundle, node: int) -> None:
    """Keep the records of a node that has ended in the run's shared folder and remove the rest, if
    the run is over. It may be resumed meanwhile: then the node begins in a new folder."""
    try:
        holder = lease_of(bundle.control).look().holder
        if holder is None or not holder.is_over:
            return
        apart = folder.with_name(f".{folder.name}.{os.getpid()}")
        folder.rename(apart)
    except FileNotFoundError:  # it has left already
        return
    except (HeadwayError, OSError) as error:
        log.warning("the node's folder stays", path=str(folder), error=str(error))
        return
    try:
        kept = bundle.records_of(node)
        make_private_folder(kept.parent)
        replace_file(kept, records.pack(_run_of(apart)))
        shutil.rmtree(apart)
    except (HeadwayError, OSError) as error:
        remove_secrets(apart)
        log.warning("the records stay on this machine", path=str(apart), error=str(error))


def remove_secrets(folder: Path) -> None:
    """Remove what admits to the run, and keep the logs: a next start of the node makes it anew.

    Raises:
        OSError: it cannot be removed.
    """
    for secret in (folder / "node.key", *folder.glob("runs/*/bundle.json")):
        secret.unlink(missing_ok=True)
    shutil.rmtree(folder / "cluster" / "keys", ignore_errors=True)


def _run_of(folder: Path) -> Path:
    """The run's folder in that of a node. Raises OSError: there is not exactly one."""
    found = [path.parent for path in folder.glob("runs/*/run.json")]
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} has {len(found)} runs")
    return found[0]
