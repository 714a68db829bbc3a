"""The cables of a bed: one from each node to a bridge, which has a network namespace of its own.

Each node has two addresses at its cable, in a network for control and one for the fabric.

Nothing of it is visible on the host, so nothing can be left there: the namespace disappears with
the processes that use it. The host is not part of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headway.testkit.bed import black_hole
from headway.testkit.bed.black_hole import Cut, Plane, Rule, as_bytecode, program
from headway.testkit.bed.namespace import Namespace
from headway.testkit.bed.relay import Path, Relay
from headway.testkit.bed.shaping import CannotError, queues

BRIDGE = "bridge"
_FABRIC = "10.250"
"""First bytes of the addresses in the fabric; those for control stay below."""
_FIRST = 10
"""Last byte of the first node's address."""
MAX_NODES = 200


@dataclass
class _Faults:
    cuts: set[Cut] = field(default_factory=set)
    delays_ms: dict[tuple[int, int], float] = field(default_factory=dict)
    """(from, to) -> delay, one way."""
    limits_mbit: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    """Node -> share of the packets from it and to it that vanish in the fabric."""


class Network:
    """Cables and what is wrong with them. Faults stay while a node is down and boots again."""

    def __init__(self, subnet: str) -> None:
        """``subnet`` is the first three bytes of all addresses for control, as "10.7.1"."""
        self.subnets: dict[Plane, str] = {
            "control": subnet, "fabric": f"{_FABRIC}.{subnet.rpartition('.')[2]}"
        }  # fmt: skip
        self.switch = Namespace.new()
        """Where the bridge is."""
        self._plugged: dict[int, Namespace] = {}
        self._faults = _Faults()
        self._relay: Relay | None = None
        bridge = f"{BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        self.switch.batch("ip", [f"link add {bridge}", f"link set {BRIDGE} up"])

    def address(self, index: int, plane: Plane = "control") -> str:
        return f"{self.subnets[plane]}.{_FIRST + index}"

    # ---- cables -------------------------------------------------------------------------------
    def plug(self, index: int, pid: int) -> None:
        """Connect a node that has just started; ``pid`` is its process 1.

        Its hardware address is the same at each boot: peers remember it for a while.
        """
        cable = _cable(index)
        hardware = f"02:be:d0:00:00:{index:02x}"
        node = self._plugged[index] = Namespace.of(pid)
        self.switch.batch(
            "ip",
            [
                f"link add {cable} type veth peer name eth0 address {hardware} netns {pid}",
                f"link set {cable} master {BRIDGE} up",
            ],
        )
        addresses = [self.address(index, plane) for plane in self.subnets]
        own = [f"addr add {address}/24 dev eth0" for address in addresses]
        own += ["link set eth0 up", "link set lo up"]
        node.batch("ip", own)
        self.switch.batch("tc", [f"qdisc add dev {cable} clsact"])
        if self._rules(index):
            self._filter(index)
        if self._faults.losses:
            self._refilter(set(self._plugged))
        if index in self._faults.limits_mbit:
            self._shape(index)
        self._carry()

    def pull(self, index: int) -> None:
        """The cable carries nothing any more, so that nobody learns what happens to the node."""
        if index in self._plugged:
            self.switch.batch("ip", [f"link set {_cable(index)} down"])

    def unplug(self, index: int) -> None:
        """The node has ended."""
        if index in self._plugged:
            # Until it is closed the node's network, and with it the cable, cannot disappear.
            self.switch.batch("ip", [f"link del {_cable(index)}"])
            self._plugged.pop(index).close()
            self._carry()

    def close(self) -> None:
        """Close all cables, and with them the bridge."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        for node in self._plugged.values():
            node.close()
        self.switch.close()

    # ---- faults -------------------------------------------------------------------------------
    def set_cuts(self, change: Callable[[set[Cut]], set[Cut]]) -> None:
        """Replace the cuts by ``change(cuts)``; cables that it does not concern are left alone."""
        before, self._faults.cuts = self._faults.cuts, change(self._faults.cuts)
        self._refilter({cut.source for cut in before ^ self._faults.cuts})

    def set_delay(self, a: int, b: int, delay_ms: float) -> None:
        """See ``Bed.delay``."""
        for pair in ((a, b), (b, a)):
            self._faults.delays_ms[pair] = delay_ms
            if not delay_ms:
                del self._faults.delays_ms[pair]
        self._refilter({a, b})

    def set_limit(self, index: int, limit_mbit: float | None) -> None:
        """See ``Bed.limit``."""
        limits = self._faults.limits_mbit
        before = limits.pop(index, None)
        if limit_mbit is not None:
            limits[index] = limit_mbit
        try:
            self._shape(index)
        except OSError as error:
            limits.pop(index, None)
            if before is not None:
                limits[index] = before
            raise CannotError(
                f"the kernel cannot slow a cable down: {error}",
                remedy="it needs CONFIG_NET_SCH_HTB",
            ) from error

    def set_loss(self, index: int, share: float) -> None:
        """See ``Bed.lose``."""
        self._faults.losses[index] = share
        if not share:
            del self._faults.losses[index]
        self._refilter(set(self._plugged))

    def heal(self) -> None:
        """Remove all faults, so that the network is as it was at first."""
        faults, self._faults = self._faults, _Faults()
        if faults.losses:
            self._refilter(set(self._plugged))
        self._refilter({cut.source for cut in faults.cuts} | {a for a, _ in faults.delays_ms})
        for index in faults.limits_mbit:
            self._shape(index)

    def _rules(
        self, index: int, *, cut: int = black_hole.DROP, delayed: int = black_hole.DROP
    ) -> list[Rule]:
        """What becomes of packets of a node: the results for those that are cut and delayed."""
        cuts = sorted(
            (cut for cut in self._faults.cuts if cut.source == index),
            key=lambda cut: (cut.target, str(cut.ports), str(cut.plane)),
        )
        gone = [
            Rule(self.address(one.target, plane), one.ports, cut)
            for one in cuts
            for plane in self.subnets
            if one.plane in (plane, None)
        ]
        late = [Rule(address, None, delayed) for address in self._delays_s(index)]
        return gone + self._lossy(index, cut) + late

    def _lossy(self, index: int, cut: int) -> list[Rule]:
        """What chance takes of a node's packets; of those to others where it is the lossy one."""
        losses = self._faults.losses
        shares = {
            other: max(losses.get(index, 0.0), losses.get(other, 0.0))
            for other in sorted(self._plugged.keys() - {index})
        }
        return [
            Rule(self.address(other, "fabric"), None, cut, share)
            for other, share in shares.items()
            if share
        ]

    def _delays_s(self, index: int) -> dict[str, float]:
        """Address -> delay of what the node sends to it."""
        return {
            self.address(target, plane): delay_ms / 1000
            for (source, target), delay_ms in sorted(self._faults.delays_ms.items())
            if source == index
            for plane in self.subnets
        }

    def _refilter(self, indices: set[int]) -> None:
        for index in sorted(indices & self._plugged.keys()):
            self._filter(index)
        self._carry()

    def _filter(self, index: int) -> None:
        bytecode = as_bytecode(program(self._rules(index)))
        where = f"dev {_cable(index)} ingress protocol all prio 1 handle 1"
        self.switch.batch("tc", [f'filter replace {where} bpf da bytecode "{bytecode}"'])

    def _carry(self) -> None:
        """Have what is delayed carried by a relay, from the cables that there are now."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        take = {"cut": black_hole.IGNORE, "delayed": black_hole.TAKE}
        paths = [
            Path(_cable(index), delays_s, program(self._rules(index, **take)))
            for index in sorted(self._plugged)
            if (delays_s := self._delays_s(index))
        ]
        if paths:
            self._relay = Relay(self.switch, BRIDGE, paths)

    def _shape(self, index: int) -> None:
        """Both ends of the cable: each bounds what it sends."""
        if index not in self._plugged:
            return
        limit, cable = self._faults.limits_mbit.get(index), _cable(index)
        for namespace, device in ((self.switch, cable), (self._plugged[index], "eth0")):
            anew = [f"qdisc replace dev {device} root pfifo", f"qdisc del dev {device} root"]
            namespace.batch("tc", [*anew, *queues(device, limit)])


def _cable(index: int) -> str:
    """The host's end."""
    return f"node{index}"
