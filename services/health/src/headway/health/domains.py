"""What a user may say of the nodes that share a switch, a rack or a power supply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headway.common.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][\w-]{0,62}")


def check_domains(domains: Mapping[str, tuple[int, ...]]) -> None:
    """Check ``health.domains``.

    Raises:
        ConfigError: a name or a node that cannot be, or a domain of fewer than two nodes.
    """
    for name, nodes in domains.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"health.domains has the name {name!r}",
                remedy="use letters, digits, _ and -, at most 63 of them",
            )
        wrong = next((node for node in nodes if node < 0), None)
        if wrong is not None:
            raise ConfigError(
                f"health.domains.{name} has node {wrong}", remedy="nodes are numbered from 0"
            )
        twice = next((node for node in nodes if nodes.count(node) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"health.domains.{name} has node {twice} twice", remedy="name each node once"
            )
        if len(nodes) < 2:
            raise ConfigError(
                f"health.domains.{name} = {list(nodes)} has fewer than two nodes",
                remedy="give the numbers of all nodes that share it, as [0, 1, 2, 3]",
            )
