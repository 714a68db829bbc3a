"""Reads the file with the addresses of the nodes, and builds the endpoints of their peers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError

DEFAULT_PORT = 7711
MAX_HOSTS = 20_000
_LINE = re.compile(
    r"(?P<name>(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?)"
    r"(\s+switch=(?P<switch>[\w./:-]+))?"
)


@dataclass(frozen=True)
class Host:
    """One line of the file."""

    name: str
    """Name of the node as the file has it; results use it, too."""
    endpoint: str
    switch: str = ""
    """The switch that it hangs on; empty if the file does not say so."""


def read_hosts(path: Path) -> list[Host]:
    """The nodes of a file with one ``ADDRESS[:PORT] [switch=NAME]`` per line.

    ``#`` begins a comment.

    Raises:
        InputError: the file cannot be read, or a line is not an address or appears twice.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"cannot read the hosts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the hosts {path} are not text", remedy="write one a line") from error
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.partition("#")[0].strip()
        if not written:
            continue
        host = _host(written, f"{path}:{number}")
        if host.endpoint in hosts:
            raise InputError(
                f"{path}:{number}: {host.name} is there twice", remedy="remove one of the two lines"
            )
        hosts[host.endpoint] = host
    if len(hosts) > MAX_HOSTS:
        raise InputError(f"{path} has {len(hosts)} nodes, at most {MAX_HOSTS} are measured")
    return list(hosts.values())


def _host(written: str, where: str) -> Host:
    match = _LINE.fullmatch(written)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= 65535:
        raise InputError(
            f"{where}: {written[:80]!r} is not ADDRESS or ADDRESS:PORT",
            remedy="write for example 10.0.0.7 or node7:7711, an IPv6 address as [fd00::7]:7711, "
            "and behind it switch=NAME if it is known",
        )
    return Host(match["name"], f"tcp://{match['host']}:{port}", match["switch"] or "")
