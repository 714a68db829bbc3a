"""What the nodes that have the same trouble at the same time share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MOST: Final = 2 / 3
"""Share of the nodes of a domain that must have a trouble, and of those that have it that must be
in the domain: links of some nodes may be idle, and one other node may have a trouble of its own."""
LEAST_FLEET: Final = 4
"""Smallest fleet in which half of the nodes count as many; half of fewer is one or two."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a common trouble is about."""

    name: str = ""
    """Name of the domain, or address of a peer; empty if nothing is known that the nodes share."""
    nodes: frozenset[int] = frozenset()
    """Those that may have it because of this."""
    is_peer: bool = False
    """Whether it is one peer that the others do not reach well."""


def find_scope(
    concerned: Collection[int],
    peers: Mapping[int, Collection[str]],
    num_nodes: int,
    domains: Mapping[str, Collection[int]],
) -> Scope | None:
    """The narrowest thing that explains why these nodes have the same trouble, None without one.

    Args:
        concerned: nodes that have it. peers: node -> addresses that its findings name.
            num_nodes: of the run. domains: as the user names them.

    >>> find_scope({0, 1, 2}, {}, 8, {"switch-a": (0, 1, 2, 3)}).name
    'switch-a'
    >>> find_scope({0, 1, 4, 5}, {}, 8, {}).name
    ''
    >>> find_scope({0, 1, 2}, {}, 8, {}) is None
    True
    """
    nodes = frozenset(concerned)
    is_many = num_nodes >= LEAST_FLEET and 2 * len(nodes) >= num_nodes
    if is_many and (peer := _peer(peers)):
        return Scope(peer, nodes, is_peer=True)
    below = [
        (len(nodes & known) / len(nodes | known), name, known)
        for name, known in ((name, frozenset(found)) for name, found in domains.items())
        if len(nodes & known) >= max(2, MOST * len(known), MOST * len(nodes))
    ]
    if below:
        _, name, known = max(below, key=lambda one: one[:2])
        return Scope(name, known)
    return Scope(nodes=nodes) if is_many else None


def _peer(peers: Mapping[int, Collection[str]]) -> str:
    """The one address that most of the nodes name; empty if they name several or none."""
    counts = Counter(name for names in peers.values() for name in set(names))
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    return name if count >= max(2, MOST * len(peers)) else ""
