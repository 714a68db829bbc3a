"""What ``headway inject`` does to the ranks' network of a node, by the kernel's traffic control.

A packet filter at the interface finds the packets from and to the node's address in that network;
where the run's services share the address, their packets are among them. A share of these vanishes
or, of those that the node sends, they wait in a queue. It takes root and ``tc`` of iproute2. An
interface carries one fault at a time. What a holder that was killed has left is removed by the next
fault.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

import psutil
from headway.common.errors import HeadwayError, InputError

NETWORK: Final = ("bandwidth", "loss", "delay", "partition")
"""Faults of the ranks' network."""
LIMIT_MBIT, SHARE, DELAY_MS = 5.0, 0.05, 100.0
TOOL_LIMIT_S = 5.0
"""Time limit of one call of ``tc``, which takes a few milliseconds."""
TRIES = 3
"""Calls of ``tc`` to remove one thing, as long as none of them ends within its limit."""
_HANDLE, _PRIORITY = "4877:", 4877
"""By which our queue and our filters are known."""
_ETHER_TYPE, _SOURCE, _TARGET, _IPV4 = 12, 26, 30, 0x0800
_RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: a random word, see the kernel's networking/filter."""
_LOAD_HALF, _LOAD_WORD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x28, 0x20, 0x15, 0x35, 0x06
_PASS, _VANISH, _CLASS = 0, 4, 0xFFFFFFFF
"""TC_ACT_STOLEN: the packet counts as sent. What is shot instead is reported to TCP as a queue of
its own machine that is full, which is not counted as a loss."""
_UNLIMITED = "rate 32gbit quantum 65536"


def check_network(fault: str, address: str) -> None:
    """Refuse what cannot be done here, beforehand; the fault is tried where it touches nothing.

    Raises:
        InputError: the ranks have no network, it is disturbed already, or this machine cannot do
            that to it.
    """
    device = _device(address)
    with _only_fault(device):
        pass
    with contextlib.suppress(OSError):
        known = _tc(["qdisc show dev " + device]).split()
        if _is_queue(fault) and known[2:3] not in ([], ["0:"], [_HANDLE]):
            raise InputError(
                f"{device} has a queue of its own ({' '.join(known[1:3])}), which is not replaced",
                remedy="use `loss` or `partition`, which need none",
            )
    try:
        _tc(_commands(fault, "lo", address), apart=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{fault!r} cannot be done to the network here: {error}",
            remedy=f"it needs root, tc and unshare on PATH, and a kernel with {_options(fault)}",
        ) from error


@contextlib.contextmanager
def disturbed(fault: str, address: str) -> Iterator[None]:
    """The block during which the network of ``address`` is disturbed.

    Raises:
        InputError, OSError: it cannot be done.
        HeadwayError: what disturbs it cannot be removed; with the commands that do.
    """
    device, hook = _device(address), ""
    with _only_fault(device):
        _clear(_own(device))
        try:
            if not _is_queue(fault):
                with contextlib.suppress(OSError):  # others have filters there, too
                    _tc([f"qdisc add dev {device} clsact"])
                    hook = device
            _tc(_commands(fault, device, address)[0 if _is_queue(fault) else 1 :])
            yield
        finally:
            _clear([*_own(device), *([f"qdisc del dev {device} clsact"] if hook else [])])


@contextlib.contextmanager
def _only_fault(device: str) -> Iterator[None]:
    """Be the only process that disturbs the interface, as far as its network namespace reaches.

    An abstract socket is the mark: its names belong to the namespace, and it ends with its process.

    Raises:
        InputError: another process does; with its pid.
    """
    name = f"\0headway-network-fault-{device}"
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            mark.bind(name)
        except OSError as error:
            raise InputError(
                f"the network of {device} is disturbed by another fault already",
                remedy=f"wait for its end, or end its holder{_holder(name)} with SIGTERM",
            ) from error
        mark.listen()
        yield


def _holder(name: str) -> str:
    """Which process has the mark, for a sentence; empty if it has just ended."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as other:
        other.settimeout(TOOL_LIMIT_S)
        other.connect(name)
        peer = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return f", process {struct.unpack('3i', peer)[0]},"
    return ""


def _commands(fault: str, device: str, address: str) -> list[str]:
    """Commands of ``tc``, for an interface without queues and filters of its own."""
    if _is_queue(fault):
        limited = f"rate {LIMIT_MBIT:g}mbit quantum 65536" if fault == "bandwidth" else _UNLIMITED
        chosen = f'bpf bytecode "{_program(_SOURCE, address, 1.0, _CLASS)}"'
        queue = [
            f"qdisc add dev {device} root handle {_HANDLE} htb default 2",
            f"class add dev {device} parent {_HANDLE} classid {_HANDLE}1 htb {limited}",
            f"class add dev {device} parent {_HANDLE} classid {_HANDLE}2 htb {_UNLIMITED}",
            f"filter add dev {device} parent {_HANDLE} protocol ip {chosen} flowid {_HANDLE}1",
        ]
        late = f"qdisc add dev {device} parent {_HANDLE}1 netem delay {DELAY_MS:g}ms limit 100000"
        return [*queue, late] if fault == "delay" else queue
    share = SHARE if fault == "loss" else 1.0
    return [
        f"qdisc add dev {device} clsact",
        *(
            f"filter add dev {device} {way} protocol ip prio {_PRIORITY} handle 1 bpf da "
            f'bytecode "{_program(field, address, share, _VANISH)}"'
            for way, field in (("egress", _SOURCE), ("ingress", _TARGET))
        ),
    ]


def _is_queue(fault: str) -> bool:
    return fault in ("bandwidth", "delay")


def _options(fault: str) -> str:
    if fault == "delay":
        return "CONFIG_NET_SCH_HTB and CONFIG_NET_SCH_NETEM"
    return "CONFIG_NET_CLS_BPF and " + (
        "CONFIG_NET_SCH_HTB" if fault == "bandwidth" else "CONFIG_NET_SCH_INGRESS"
    )


def _program(field: int, address: str, share: float, result: int) -> str:
    """A classic packet filter that has ``result`` for a share of the packets of an address."""
    draw = [(_LOAD_WORD, 0, 0, _RANDOM), (_IF_AT_LEAST, 1, 0, int(share * 2**32))]
    code = [
        (_LOAD_HALF, 0, 0, _ETHER_TYPE),
        (_IF_EQUAL, 1, 0, _IPV4),
        (_RETURN, 0, 0, _PASS),
        (_LOAD_WORD, 0, 0, field),
        (_IF_EQUAL, 1, 0, int(ipaddress.IPv4Address(address))),
        (_RETURN, 0, 0, _PASS),
        *(draw if share < 1 else []),
        (_RETURN, 0, 0, result),
        (_RETURN, 0, 0, _PASS),
    ]
    return ",".join([str(len(code)), *(" ".join(map(str, one)) for one in code)])


def _own(device: str) -> list[str]:
    """The commands of ``tc`` that remove our filters and our queue."""
    return [
        f"filter del dev {device} egress prio {_PRIORITY}",
        f"filter del dev {device} ingress prio {_PRIORITY}",
        f"qdisc del dev {device} root handle {_HANDLE}",
    ]


def _clear(commands: Sequence[str]) -> None:
    """Remove what ``commands`` name, each although another one fails.

    Raises:
        HeadwayError: ``tc`` does not answer, so that some of it may still be there.
    """
    left = [command for command in commands if not _is_removed(command)]
    if left:
        by_hand = "; ".join(f"tc {command}" for command in left)
        raise HeadwayError(
            f"the network may still be disturbed: tc did not answer within {TOOL_LIMIT_S:g} s, "
            f"{TRIES} times",
            remedy=f"as root, run {by_hand}",
        )


def _is_removed(command: str) -> bool:
    for _ in range(TRIES):
        try:
            _tc([command])
        except subprocess.TimeoutExpired:
            continue
        except OSError:
            return True  # there is none
        return True
    return False


def _device(address: str) -> str:
    """The interface that has the node's address in the ranks' network."""
    if not address:
        raise InputError(
            "the ranks of this node use the loopback, not a network",
            remedy="start the run on several machines, with launch.fabric",
        )
    if ":" in address:
        raise InputError(f"{address} is IPv6, for which this fault is not made", remedy="use IPv4")
    for name, known in psutil.net_if_addrs().items():
        if any(one.address == address for one in known):
            return str(name)
    raise InputError(f"no interface has {address}", remedy="see `ip address`")


def _tc(commands: Sequence[str], *, apart: bool = False) -> str:
    """Run commands of ``tc``, ``apart`` in a network of their own that ends with them."""
    words = [*(("unshare", "--net") if apart else ()), "tc", "-batch", "-"]
    done = subprocess.run(
        words, input="\n".join(commands), capture_output=True, text=True, timeout=TOOL_LIMIT_S
    )
    if done.returncode:
        raise OSError(" ".join(done.stderr.split()) or f"{words[0]} ended with {done.returncode}")
    return str(done.stdout)
