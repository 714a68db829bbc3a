"""Slower cables: a limit on the rate, a delay, as a tree of queues of the kernel."""

from __future__ import annotations

from collections.abc import Mapping

from headway.common.errors import HeadwayError

_UNLIMITED_MBIT = 100_000
_FROM = "protocol ip prio 1 u32 match ip src {}/32"


class CannotError(HeadwayError):
    """This machine's kernel lacks what a fault needs; the message names it."""


def queues(device: str, limit_mbit: float | None, delays_ms: Mapping[str, float]) -> list[str]:
    """Commands of ``tc`` for what leaves ``device``, which has no queues of its own yet.

    One class bounds the sum (htb); below it, one class per delayed sender (netem), one for the
    rest.

    Args:
        device: name of a network device.
        limit_mbit: megabits per second, None for no limit.
        delays_ms: address of a sender -> milliseconds, one way.
    """
    if limit_mbit is None and not delays_ms:
        return []
    rate = f"htb rate {limit_mbit or _UNLIMITED_MBIT:g}mbit quantum 65536"
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 {rate}",
        f"class add dev {device} parent 1:1 classid 1:2 {rate}",
    ]
    for number, (address, delay_ms) in enumerate(delays_ms.items(), start=0x10):
        lines += [
            f"class add dev {device} parent 1:1 classid 1:{number:x} {rate}",
            f"qdisc add dev {device} parent 1:{number:x} netem delay {delay_ms:g}ms limit 100000",
            f"filter add dev {device} parent 1: {_FROM.format(address)} flowid 1:{number:x}",
        ]
    return lines
