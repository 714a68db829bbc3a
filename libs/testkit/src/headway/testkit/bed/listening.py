"""Which TCP sockets listen on a node, and on which address."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True, order=True)
class Listener:
    """One listening socket."""

    node: int
    address: str
    """"0.0.0.0" or "::" is every interface."""
    port: int

    @property
    def is_on_all_interfaces(self) -> bool:
        return ip_address(self.address).is_unspecified


def listeners(node: int, pid: int) -> list[Listener]:
    """Return the sockets that listen in the network namespace of process ``pid``."""
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            _, local, _, state, *_ = line.split()
            if state == _LISTEN:
                host, port = local.split(":")
                found.append(Listener(node, _address(host, family), int(port, 16)))
    return sorted(found)


def _address(text: str, family: socket.AddressFamily) -> str:
    """The kernel prints each 32 bits of the address as a number of this machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
