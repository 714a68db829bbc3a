"""A packet filter for one cable: which of the packets that its node sends vanish.

The filter is a classic BPF program (bpf(4) of BSD, the kernel's networking/filter) which ``tc``
attaches to the host's end of the cable. It sees whole frames: an Ethernet header of 14 bytes, then
IPv4. ARP passes, so a cut looks like a router that drops packets: silence, never "no route". The
relay, which delays packets, selects them by the same kind of program.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

PASS, DROP = 0, 2
"""For ``tc``: TC_ACT_OK, TC_ACT_SHOT."""
IGNORE, TAKE = 0, 1 << 18
"""For a packet socket: how many bytes of the frame it receives."""
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20
_LOAD_X_HEADER_LENGTH, _LOAD_HALF_AT_X = 0xB1, 0x48
_IF_EQUAL, _IF_AT_LEAST, _IF_ABOVE, _RETURN = 0x15, 0x35, 0x25, 0x06
_ETHER_TYPE, _IP, _PROTOCOL, _TARGET, _IPV4 = 12, 14, 23, 30, 0x0800
_RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: the kernel's filters load a random word from there."""

Plane = Literal["control", "fabric"]
"""One of the two networks of a bed."""
Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true, if false, operand."""


@dataclass(frozen=True)
class Cut:
    """What node ``source`` sends to node ``target`` vanishes."""

    source: int
    target: int
    ports: range | None = None
    """Only TCP and UDP with such a port on either side; None for everything."""
    plane: Plane | None = None
    """Only what goes to its address there; None for both networks."""

    def __post_init__(self) -> None:
        if self.ports is not None and (self.ports.step != 1 or not self.ports):
            raise ValueError(f"ports={self.ports} is not a range of at least one port, step 1")


@dataclass(frozen=True)
class Rule:
    """What becomes of packets to an address."""

    address: str
    ports: range | None
    """Only of TCP and UDP with such a port on either side; None for all packets."""
    result: int
    share: float = 1.0
    """Share of these packets, chosen at random."""


def program(rules: Iterable[Rule], otherwise: int = PASS) -> list[Instruction]:
    """The first rule that applies decides; without one, ``otherwise`` does."""
    code = [(_LOAD_HALF, 0, 0, _ETHER_TYPE), (_IF_EQUAL, 1, 0, _IPV4), (_RETURN, 0, 0, otherwise)]
    for rule in rules:
        is_port = [] if rule.ports is None else _if_port(rule.ports[0], rule.ports[-1])
        if rule.share < 1:
            is_port += [(_LOAD_WORD, 0, 0, _RANDOM), (_IF_AT_LEAST, 1, 0, int(rule.share * 2**32))]
        code.append((_LOAD_WORD, 0, 0, _TARGET))
        code.append((_IF_EQUAL, 0, len(is_port) + 1, int(IPv4Address(rule.address))))
        code += [*is_port, (_RETURN, 0, 0, rule.result)]
    return [*code, (_RETURN, 0, 0, otherwise)]


def _if_port(first: int, last: int) -> list[Instruction]:
    """Runs into the instruction after it if a port is one of these, else skips that one too."""
    return [
        (_LOAD_BYTE, 0, 0, _PROTOCOL),
        (_IF_EQUAL, 1, 0, socket.IPPROTO_TCP),
        (_IF_EQUAL, 0, 8, socket.IPPROTO_UDP),
        (_LOAD_X_HEADER_LENGTH, 0, 0, _IP),
        (_LOAD_HALF_AT_X, 0, 0, _IP),  # the source's port
        (_IF_AT_LEAST, 0, 1, first),
        (_IF_ABOVE, 0, 3, last),
        (_LOAD_HALF_AT_X, 0, 0, _IP + 2),  # the target's port
        (_IF_AT_LEAST, 0, 2, first),
        (_IF_ABOVE, 1, 0, last),
    ]


def as_bytecode(code: list[Instruction]) -> str:
    """Return the filter in the form that ``tc`` reads."""
    return ",".join([str(len(code)), *(" ".join(map(str, one)) for one in code)])
