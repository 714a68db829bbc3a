"""Which address of its machine a process listens on, and on which ports.

A machine has other addresses than the next one, so users name an interface (``eth0``) or a network
(``10.0.0.0/16``), and each machine looks up its own address there.
"""

from __future__ import annotations

import ipaddress
import random
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.common.errors import ConfigError, InputError

LOOPBACK = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 1024, 65535
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")
_NAME = re.compile(r"[^\s/:]{1,15}")  # IFNAMSIZ of Linux, without the final zero


@dataclass(frozen=True)
class Network:
    """Where the processes of a run or a cluster listen; the default is loopback, any free port.

    Args:
        interface: for the connections of the services: an interface's name, a network, an address,
            or "" for loopback.
        fabric: the same for the ranks' own traffic; "" means ``interface``.
        ports: ``LOW-HIGH``, or "" for any free one.

    Raises:
        ConfigError: one of them is not written like this.
    """

    interface: str = ""
    fabric: str = ""
    ports: str = ""

    def __post_init__(self) -> None:
        for key in ("interface", "fabric"):
            _check_interface(key, getattr(self, key))
        if self.ports:
            low, high = self._range()
            if not LOWEST_PORT <= low <= high <= HIGHEST_PORT:
                raise ConfigError(
                    f"launch.ports={self.ports!r} is out of range",
                    remedy=f"use LOW-HIGH within {LOWEST_PORT}-{HIGHEST_PORT}, or leave it out",
                )

    def _range(self) -> tuple[int, int]:
        match = _PORTS.fullmatch(self.ports)
        if match is None:
            raise ConfigError(
                f"launch.ports={self.ports!r} is not a range of ports",
                remedy="write LOW-HIGH, for example 20000-20999, or leave it out",
            )
        return int(match[1]), int(match[2])

    @property
    def endpoint(self) -> str:
        """What a service of this machine binds: ``tcp://10.0.0.7:20000-20999``.

        Raises:
            InputError: this machine has no such interface or address.
        """
        address = address_of(self.interface)
        host = f"[{address}]" if ":" in address else address
        return f"tcp://{host}:{self.ports or 0}"

    @property
    def fabric_address(self) -> str:
        """Where the ranks of this machine listen for each other.

        Raises:
            InputError: this machine has no such interface or address.
        """
        return address_of(self.fabric or self.interface)


def address_of(chosen: str) -> str:
    """This machine's address on an interface or in a network; ``chosen`` itself if it is one.

    Raises:
        InputError: this machine has none; the remedy lists what it has.
    """
    if not chosen:
        return LOOPBACK
    found = _addresses()
    if chosen in found:
        return _preferred(found[chosen])
    all_of_them = [address for addresses in found.values() for address in addresses]
    network = _network(chosen)
    inside = [one for one in all_of_them if network and ipaddress.ip_address(one) in network]
    if inside:
        return _preferred(inside)
    # the whole of 127.0.0.0/8 is this machine's, though only one address is listed
    if network is not None and network.num_addresses == 1 and network.is_loopback:
        return str(network.network_address)
    what = "address in the network" if "/" in chosen else "interface or address"
    listed = ", ".join(f"{name} ({' '.join(addresses)})" for name, addresses in found.items())
    raise InputError(f"this machine has no {what} {chosen!r}", remedy=f"use one of: {listed}")


def interface_of(address: str) -> str | None:
    """The name of the interface that has ``address``, None if none of this machine has it."""
    for name, addresses in _addresses().items():
        if address in addresses:
            return name
    return "lo" if ipaddress.ip_address(address).is_loopback else None


def each_port(ports: str) -> Iterator[int]:
    """The ports to try, ``LOW-HIGH`` or a single number, from a random one on.

    Processes that start together rarely try the same one first.
    """
    low, _, high = ports.partition("-")
    first, count = int(low), int(high or low) - int(low) + 1
    start = random.randrange(count)
    for number in range(count):
        yield first + (start + number) % count


def _addresses() -> Mapping[str, list[str]]:
    """Interface -> its addresses, without link-local ones, which need a scope to be reached."""
    import psutil  # takes long to import, and loopback needs none of this

    found = {}
    for name, entries in psutil.net_if_addrs().items():
        wanted = [e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)]
        usable = [one for one in wanted if "%" not in one]
        if usable:
            found[name] = usable
    return found


def _preferred(addresses: list[str]) -> str:
    """The IPv4 address if there is one."""
    return next((one for one in addresses if ":" not in one), addresses[0])


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _check_interface(key: str, chosen: str) -> None:
    network = _network(chosen)
    if network is not None and network.network_address.is_unspecified:
        raise ConfigError(
            f"launch.{key}={chosen!r} means every interface of a machine",
            remedy="name one interface or network: nothing listens on all of them",
        )
    if chosen and network is None and not _NAME.fullmatch(chosen):
        raise ConfigError(
            f"launch.{key}={chosen!r} names no interface, network or address",
            remedy="write for example eth0 or 10.0.0.0/16",
        )
