"""What a machine reports of itself before a cluster uses it, and the folder by which it is tested.

The console makes the folder below the shared one, with a nonce in it. Every machine reads the nonce
and writes it back under a name of its own, so that both directions have been tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from headway.common.config import from_dict
from headway.common.errors import ConfigError, HeadwayError, InputError
from headway.launch.join.client import own_address, this_machine
from headway.launch.join.needs import SHM

CLOCK_LIMIT_S = 300.0
"""A machine whose clock is further off is refused, because tokens, logs and checkpoints carry
wall-clock times."""
NONCE = "nonce"
_ANYWHERE = "tcp://192.0.2.1:9"
"""An address for documentation (RFC 5737): it is only looked up in the table of routes."""


@dataclass(frozen=True)
class MachineFacts:
    """What ``python -m headway.launch.machine inspect`` prints, as JSON."""

    host: str
    """Its own name, in a step that of Slurm; it need not be the one by which it is reached."""
    uid: str
    """Its machine-id(5)."""
    version: str
    source: str
    """Digest of Headway's source, see ``installed.source``."""
    torch: str
    """Version; empty where torch is not installed."""
    gpus: int
    shm_bytes: int
    """Size of /dev/shm."""
    unix_s: float
    """Its clock, which is wall time."""
    address: str = ""
    """IPv4 address by which it is reached; empty if it is not known."""
    nonce: str = ""
    """What it has read in the folder of the test."""
    wrote: str = ""
    """Name of the file that it has written there."""
    trouble: str = ""
    """Why it could not read or write there; empty if it could."""

    @property
    def installed(self) -> str:
        """Everything that must be the same on all machines of a run, in one line."""
        return f"{self.version} {self.source} {self.torch}"


def look(folder: Path | None) -> MachineFacts:
    """The facts of this machine; with a ``folder`` of ``tested``, whether it can be used here.

    Raises:
        HeadwayError: Headway is not installed.
    """
    me = this_machine(0, b"")
    nonce, wrote, trouble = _try(folder) if folder is not None else ("", "", "")
    return MachineFacts(
        host=os.environ.get("SLURMD_NODENAME", me.host),
        uid=me.uid,
        version=me.version,
        source=me.source,
        torch=me.torch,
        gpus=me.num_gpus,
        shm_bytes=shutil.disk_usage(SHM).total,
        unix_s=me.unix_s,
        address=_address(),
        nonce=nonce,
        wrote=wrote,
        trouble=trouble,
    )


def _try(folder: Path) -> tuple[str, str, str]:
    """Nonce, name of the written file, and what went wrong."""
    nonce, shared = "", folder.parent
    try:
        nonce = (folder / NONCE).read_text()
        name = secrets.token_hex(8)
        (folder / name).write_text(nonce)
        return nonce, name, ""
    except OSError as error:
        why = "does not see" if not nonce else "cannot write in"
        return nonce, "", f"{why} {shared}: {error.strerror}"


def _address() -> str:
    """The address that sshd was reached by, else that of the default route."""
    by_ssh = os.environ.get("SSH_CONNECTION", "").split()
    found = by_ssh[2] if len(by_ssh) == 4 else own_address(_ANYWHERE)
    return found if "." in found else ""


@contextlib.contextmanager
def tested(shared: Path) -> Iterator[Path]:
    """A folder below ``shared`` with a new nonce, which is removed at the end of the block.

    So is ``shared``, if it was absent before: a run makes it.

    Raises:
        InputError: the folder cannot be made here.
    """
    absent = [path for path in (shared, *shared.parents) if not path.exists()]
    folder = shared / f".check-{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700, parents=True)
        (folder / NONCE).write_text(secrets.token_hex(16))
    except OSError as error:
        raise InputError(
            f"cannot write in {shared} on this machine: {error.strerror}",
            remedy="`shared` in the cluster's file must be a folder that this machine sees too",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in absent:
            with contextlib.suppress(OSError):
                path.rmdir()


def is_answered(folder: Path, facts: MachineFacts) -> bool:
    """Whether the machine uses the very folder that this one does: it read and wrote the nonce."""
    try:
        nonce = (folder / NONCE).read_text()
        return facts.nonce == nonce == (folder / facts.wrote).read_text()
    except OSError:
        return False


def parse(text: str) -> MachineFacts:
    """The facts in the last line of what ``inspect`` has printed; other versions may print more.

    Raises:
        HeadwayError: there are none, as where a shell prints something at its end.
    """
    line = text.strip().rpartition("\n")[2]
    try:
        found = json.loads(line)
        known = {field.name for field in fields(MachineFacts)}
        return from_dict(MachineFacts, {key: found[key] for key in found if key in known})
    except (ConfigError, ValueError, TypeError) as error:
        raise HeadwayError(
            f"printed {line[-80:]!r} and not what it has",
            remedy="the start-up files of its shell must print nothing for a command",
        ) from error
