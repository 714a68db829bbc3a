"""The file with what each machine of a fleet has reached, by host type.

``{"schema": 1, "hosts": {HOST TYPE: {HOSTNAME: {"disk MiB/s": 770.0}}}}``. Machines may share one
file on a network file system, or keep their own, which are merged when they are read.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from headway.common.errors import InputError
from headway.common.node.files import replace_file
from headway.common.polling import wait_until
from headway.health.machine import Machine

SCHEMA = 1
LOCK_S = 10.0
READABLE = 0o644
"""Prologs run as root and people as themselves; there is no secret in it."""

Values = Mapping[str, float]
"""``CHECK VALUE`` -> what was measured."""


class Baseline(msgspec.Struct, frozen=True):
    """Values of the machines of a fleet."""

    schema: int = SCHEMA
    hosts: dict[str, dict[str, dict[str, float]]] = msgspec.field(default_factory=dict)
    """Host type -> host name -> values, the newest of each machine."""

    def others(self, machine: Machine, name: str) -> list[float]:
        """One value of all other machines of this type that have it."""
        fleet = self.hosts.get(machine.host_type, {})
        return [
            values[name]
            for hostname, values in fleet.items()
            if hostname != machine.hostname and name in values
        ]

    def with_machine(self, machine: Machine, values: Values) -> Baseline:
        """A copy with new values for one machine, whose other values stay."""
        fleet = self.hosts.get(machine.host_type, {})
        own = {**fleet.get(machine.hostname, {}), **values}
        return Baseline(hosts={**self.hosts, machine.host_type: {**fleet, machine.hostname: own}})


def merged(baselines: Iterable[Baseline]) -> Baseline:
    """The machines of all files; of a machine in several of them, the values of the last one."""
    hosts: dict[str, dict[str, dict[str, float]]] = {}
    for baseline in baselines:
        for host_type, fleet in baseline.hosts.items():
            hosts.setdefault(host_type, {}).update(fleet)
    return Baseline(hosts=hosts)


def read_baseline(path: Path) -> Baseline:
    """The values in a file; none if there is no such file yet.

    Raises:
        InputError: the file cannot be read, or is not a baseline of this schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise InputError(
            f"cannot read the baseline {path}: {error.strerror}", remedy="check its rights"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a baseline: {error}",
            remedy="name a file that --save-baseline has written, or remove it and start anew",
        ) from error
    if found.schema != SCHEMA:
        raise InputError(
            f"the baseline {path} has schema {found.schema}, this version reads {SCHEMA}",
            remedy="use the version that wrote it, or start a new file",
        )
    return found


def save_values(path: Path, machine: Machine, values: Values) -> None:
    """Add or replace the values of one machine, while other machines may do the same.

    Raises:
        InputError: the file is locked for ``LOCK_S``, is not a baseline, or cannot be written.
    """
    try:
        with _locked(path):
            changed = read_baseline(path).with_machine(machine, values)
            text = msgspec.json.format(msgspec.json.encode(changed), indent=1)
            replace_file(path, text, mode=READABLE)
    except OSError as error:
        raise InputError(
            f"cannot write the baseline {path}: {error.strerror}", remedy="check the folder"
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``: the file itself is replaced, so a lock on it would hold nothing."""
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        if not wait_until(lambda: _take(lock.fileno()), LOCK_S):
            raise InputError(
                f"{path} is locked by another machine or process",
                remedy="try again, or see who holds it (lslocks)",
            )
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
