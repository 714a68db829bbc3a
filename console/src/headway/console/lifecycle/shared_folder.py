"""The folder of a run that all machines see: its place, its links from the run's own folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import make_private_folder
from headway.console.folder.claim import StillRunningError, has_led
from headway.console.run import Run
from headway.launch.engines.choose import MachinesConfig
from headway.launch.join import records

LINKED = ("control", "checkpoints")
"""Folders of a run that all machines see."""


def shared_folder(run: Run, machines: MachinesConfig) -> Path:
    """The folder of this run that all machines see."""
    return Path(machines.shared) / f"{run.name}-{run.folder.run_id}"


def check_possible(shared: Path) -> None:
    """Raises InputError if a folder at this path can neither be used nor made."""
    there = next(path for path in (shared, *shared.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise _unusable(shared, "is not a folder" if not there.is_dir() else "no permission")


def make_shared(shared: Path, run: Run, report: Callable[[str], None]) -> None:
    """Make the folder and link it into the run's own; take what earlier nodes have left in it.

    Raises:
        InputError: it cannot be made, or the run has files elsewhere.
    """
    for name in LINKED:
        _check_link(run.path / name, shared / name)
    for name in LINKED:
        try:
            make_private_folder(shared / name)
        except OSError as error:
            raise _unusable(shared / name, error.strerror) from error
        _link(run.path / name, shared / name)
    _take_records(shared / "records", run, report)


@contextlib.contextmanager
def removed_if_new(shared: Path) -> Iterator[None]:
    """Remove a run's shared folder if the body, which makes it, fails, by Ctrl-C too.

    What a driver has written is kept.
    """
    is_new = not shared.exists()
    try:
        yield
    except StillRunningError:
        raise
    except BaseException:
        if is_new and not has_led(shared / "control"):
            shutil.rmtree(shared, ignore_errors=True)
        raise


def _check_link(link: Path, target: Path) -> None:
    """Raises InputError where the run has files of its own, or those of another shared folder."""
    if link.is_symlink():
        if (there := link.readlink()) != target:
            raise InputError(
                f"the folder {link.name} of the run is {there}, not {target}",
                remedy="resume it with the `shared` folder that it began with",
            )
    elif link.exists() and any(link.iterdir()):
        raise InputError(
            f"the run began on one machine, not on several ({link} holds files)",
            remedy="start a new run, or fork this one",
        )


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        if link.exists():
            link.rmdir()
        link.symlink_to(target)


def _take_records(kept: Path, run: Run, report: Callable[[str], None]) -> None:
    """Move the logs that nodes kept at their end into the run's folder.

    The next nodes keep theirs at the same place. What cannot be moved is tried again at the next
    start.
    """
    for file in sorted(kept.glob("n*.txt")):
        try:
            records.unpack(file.read_text(), run.path)
            file.unlink()
        except (HeadwayError, OSError, UnicodeDecodeError) as error:
            aside = file.with_suffix(f".{secrets.token_hex(2)}.txt")
            with contextlib.suppress(OSError):
                file.rename(aside)
            report(f"the logs in {aside} could not be copied: {error}")


def _unusable(path: Path, why: str | None) -> InputError:
    return InputError(
        f"cannot make {path}: {why}",
        remedy="`shared` in the cluster's file must be a folder that this machine sees too",
    )
