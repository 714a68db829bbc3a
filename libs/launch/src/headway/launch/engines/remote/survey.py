"""The machines of a cluster, each asked what it is and has: the answers and what is wrong."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from headway.launch.engines.remote.judge import Answer, Trouble, judge

SMALLEST_NETWORK = 24


@dataclass(frozen=True)
class Surveyed:
    """One machine."""

    name: str
    answer: Answer | None
    """None if it did not answer."""
    troubles: tuple[Trouble, ...] = ()

    @property
    def trouble(self) -> str:
        """All that is wrong with it, on one line; empty if nothing is."""
        return "; ".join(map(str, self.troubles))

    def line(self) -> str:
        """The machine and what is wrong with it."""
        return f"{self.name}: {self.trouble}"


def surveyed(found: Mapping[str, Answer | Trouble], shared: str) -> list[Surveyed]:
    """The machines in their order, each with its answer or with why there is none, and judged."""
    answers = {name: one for name, one in found.items() if isinstance(one, Answer)}
    judged = judge(answers, shared)
    return [
        Surveyed(name, one, tuple(judged[name]))
        if isinstance(one, Answer)
        else Surveyed(name, None, (one,))
        for name, one in found.items()
    ]


def network_of(machines: list[Surveyed]) -> str:
    """The smallest network, of at least 256 addresses, with every machine; empty if not known."""
    texts = [one.answer.facts.address if one.answer is not None else "" for one in machines]
    try:
        numbers = [int(ipaddress.IPv4Address(text)) for text in texts]
    except ValueError:
        return ""
    differing = max((one ^ numbers[0] for one in numbers), default=0).bit_length()
    prefix = min(32 - differing, SMALLEST_NETWORK)
    return str(ipaddress.IPv4Network((numbers[0], prefix), strict=False)) if numbers else ""
