"""A slower cable: a limit on its rate, by a queue of the kernel."""

from __future__ import annotations

from headway.common.errors import HeadwayError


class CannotError(HeadwayError):
    """This machine's kernel lacks what a fault needs; the message names it."""


def queues(device: str, limit_mbit: float | None) -> list[str]:
    """Commands of ``tc`` for what leaves ``device``, which has no queues of its own yet.

    Args:
        device: name of a network device.
        limit_mbit: megabits per second, None for no limit.
    """
    if limit_mbit is None:
        return []
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb rate {limit_mbit:g}mbit quantum 65536",
    ]
