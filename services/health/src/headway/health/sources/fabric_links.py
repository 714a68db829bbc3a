"""The ways through the ranks' network to each peer, by what the kernel counts per connection.

Only the ranks' own connections from this node's address in that network are looked at, once a
second. Nothing is sent, and no process is touched.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection

from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Lasting, again_s, changed
from headway.health.sources.connections import sockets_of
from headway.health.sources.fabric_signs import RULES, Link, Rule
from headway.health.sources.tcp_info import TcpInfo, connections


class FabricLinks:
    """Compares each connection of the ranks with what was usual for it.

    Args:
        own: this node's address in the ranks' network.
        pids: the ranks of this node at present, which share the agent's network namespace.
        ask: lists the connections of the machine.
    """

    def __init__(
        self,
        own: str,
        pids: Callable[[], Collection[int]],
        config: HealthConfig,
        clock_s: Callable[[], float] = time.monotonic,
        ask: Callable[[], list[TcpInfo]] = connections,
    ) -> None:
        self._own, self._pids, self._config = ipaddress.ip_address(own), pids, config
        self._clock_s, self._ask = clock_s, ask
        self._ranks: frozenset[int] = frozenset()
        self._owned: dict[tuple[int, int], bool] = {}
        """Whether a connection, by its cookie and inode, is one of a rank."""
        self._links: dict[int, Link] = {}
        self._states: dict[tuple[Rule, str], Lasting] = {}

    def read(self) -> list[Finding]:
        """The peers to which the network has become worse, each with the worst connection.

        Raises:
            OSError: the kernel does not list its connections.
        """
        now_s = self._clock_s()
        signs: dict[tuple[Rule, str], str] = {}
        links: dict[int, Link] = {}
        for info in self._of_ranks():
            link = links[info.cookie] = self._links.get(info.cookie) or Link(info, now_s)
            if link.read_s < now_s and (sign := link.judge(info, now_s)):
                signs.setdefault((sign.rule, str(info.peer)), sign.what)
        self._links = links
        return self._report(signs, now_s)

    def close(self) -> None:
        """Nothing is held."""

    def _report(self, signs: dict[tuple[Rule, str], str], now_s: float) -> list[Finding]:
        found = []
        for key in sorted(self._states.keys() | signs.keys(), key=_order):
            state = self._states.setdefault(key, Lasting(again_s=again_s(self._config)))
            if state.is_due(key in signs, now_s):
                found.append(self._finding(*key, signs[key]))
            elif state.is_off:
                del self._states[key]
        return found

    def _finding(self, rule: Rule, peer: str, what: str) -> Finding:
        line = f"{self._own} to {peer}: {what}"
        return changed(rule, "net", "peer", line, name=peer, detail=f"from {self._own}")

    def _of_ranks(self) -> list[TcpInfo]:
        pids = frozenset(self._pids())
        if pids != self._ranks:
            self._ranks, self._owned = pids, {}
        if not pids:
            return []
        rows = [one for one in self._ask() if one.own == self._own and one.peer != self._own]
        keys = {(one.cookie, one.inode) for one in rows if one.inode}
        self._owned = {key: is_rank for key, is_rank in self._owned.items() if key in keys}
        if new := keys - self._owned.keys():
            sockets = sockets_of(pids)
            self._owned |= {key: key[1] in sockets for key in new}
        return [one for one in rows if self._owned.get((one.cookie, one.inode))]


def _order(key: tuple[Rule, str]) -> tuple[int, str]:
    return RULES.index(key[0]), key[1]
