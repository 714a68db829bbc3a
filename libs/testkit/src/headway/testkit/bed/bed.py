"""Nodes on one host that share nothing but a network, and what can go wrong between them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from headway.testkit.bed import freezer
from headway.testkit.bed.black_hole import Cut, Plane
from headway.testkit.bed.capture import Capture
from headway.testkit.bed.listening import Listener, listeners
from headway.testkit.bed.network import BRIDGE, MAX_NODES, Network
from headway.testkit.bed.node import Node
from headway.testkit.bed.probe import missing
from headway.testkit.bed.view import View

_count = itertools.count()


class Bed:
    """``with Bed(folder, nodes=5) as bed: bed.node(0).run(["hostname"])``.

    When the process that made it ends in whatever way, so does everything on the nodes, and no
    network device, mount or namespace is left. Several beds can be up at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        shared: Iterable[Path] = (),
        visible: Iterable[Path] = (),
    ) -> None:
        """Make a bed of ``nodes`` nodes.

        Args:
            folder: for the disks; must exist. Each node sees only its own one in it.
            nodes: how many.
            shared: folders that every node may read and write at the same path, as on a network
                file system.
            visible: code and data that nodes read, if it lies below /tmp, /var/tmp, /run,
                /dev/shm or ``folder``. This Python, its import path and the working directory
                are always visible. Everything elsewhere is visible and read-only.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise ValueError(f"nodes={nodes} is not between 1 and {MAX_NODES}")
        self._folder = folder.resolve()
        self.disk = self._folder / "disk"
        """Leads to the node's own disk on every node: the same path, other files. On the host a
        disk is ``Node.root``."""
        self._shared = [str(path.resolve()) for path in shared]
        self._visible = _visible_code([*visible, Path.cwd()])
        self._size = nodes
        self.nodes: list[Node] = []
        self._network: Network | None = None
        self._groups: tuple[freezer.Hierarchy, Path] | None = None

    @staticmethod
    def missing() -> str:
        """What keeps a bed from running here, "" if nothing does. The first call takes a moment."""
        return missing()

    # ---- up and down --------------------------------------------------------------------------
    def __enter__(self) -> Bed:
        number = next(_count)
        second, third = divmod(os.getpid() + 4099 * number, 250)
        self._network = Network(f"10.{second % 250}.{third}")
        try:
            usable = freezer.hierarchies()
            for hierarchy in usable:
                freezer.sweep(hierarchy)
            if usable:
                self._groups = (usable[0], freezer.folder_for_bed(usable[0]))
            self.nodes = [self._make(index) for index in range(self._size)]
            for node in self.nodes:
                node.power_on()
            for node in self.nodes:
                node.finish_boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Power off all nodes; returns once nothing of them is left but their disks."""
        for node in self.nodes:
            if node.has_power:
                node.kill()
        if self._groups:
            freezer.remove(self._groups[1])
            self._groups = None
        if self._network:
            self._network.close()
            self._network = None

    def _make(self, index: int) -> Node:
        disk = self._folder / f"node-{index}"
        disk.mkdir(exist_ok=True)
        network = self._up
        names = [(network.address(other), f"node-{other}") for other in range(self._size)]
        hosts = "".join(f"{a} {name}\n" for a, name in [("127.0.0.1", "localhost"), *names])
        view = View(
            folder=str(self._folder),
            disk=str(disk),
            disk_alias=str(self.disk),
            shared=self._shared,
            visible=self._visible,
        )
        return Node(index, view, {"/etc/hosts": hosts}, network, self._groups)

    @property
    def fabric(self) -> str:
        """The nodes' second network, such as ``10.250.7.0/24``."""
        return f"{self._up.subnets['fabric']}.0/24"

    def node(self, index: int) -> Node:
        return self.nodes[index]

    @property
    def _up(self) -> Network:
        if self._network is None:
            raise ValueError("the bed is closed; use it in its `with` block")
        return self._network

    # ---- faults of the network ----------------------------------------------------------------
    def cut(
        self,
        a: int,
        b: int,
        *,
        ports: range | None = None,
        plane: Plane | None = None,
        one_way: bool = False,
    ) -> None:
        """A black hole between two nodes: packets vanish, nobody gets a FIN, RST or error.

        Args:
            a: index of a node.
            b: index of another one.
            ports: only TCP and UDP with one of these ports on either side.
            plane: only in the network for control, or only in the fabric.
            one_way: only what ``a`` sends.
        """
        self._check(a, b)
        pairs = [(a, b)] if one_way else [(a, b), (b, a)]
        new = {Cut(*pair, ports, plane) for pair in pairs}
        self._up.set_cuts(lambda cuts: cuts | new)

    def isolate(self, a: int, *, ports: range | None = None, plane: Plane | None = None) -> None:
        """``cut`` between one node and all others."""
        self._check(a)
        others = [one for one in range(self._size) if one != a]
        new = {Cut(*pair, ports, plane) for b in others for pair in ((a, b), (b, a))}
        self._up.set_cuts(lambda cuts: cuts | new)

    def join(self, a: int, b: int) -> None:
        """End all cuts between two nodes."""
        self._check(a, b)
        self._up.set_cuts(lambda cuts: {cut for cut in cuts if {cut.source, cut.target} != {a, b}})

    def delay(self, a: int, b: int, delay_ms: float) -> None:
        """Packets between two nodes arrive later, in each direction; 0 ends it."""
        self._check(a, b)
        self._up.set_delay(a, b, delay_ms)

    def limit(self, a: int, limit_mbit: float | None) -> None:
        """Bound what a node sends and what it receives, megabits per second; None ends it.

        Raises:
            CannotError: the kernel lacks a queue for it (CONFIG_NET_SCH_HTB).
        """
        self._check(a)
        self._up.set_limit(a, limit_mbit)

    def lose(self, a: int, share: float) -> None:
        """Lose a share of the packets of the fabric from and to a node, 0 to 1; 0 ends it.

        What the kernel hands over in one piece, up to 64 KiB of a connection, is lost as a whole.
        """
        self._check(a)
        if not 0 <= share <= 1:
            raise ValueError(f"share={share} is not between 0 and 1")
        self._up.set_loss(a, share)

    def heal(self) -> None:
        """End all cuts, delays, limits and losses."""
        self._up.heal()

    def _check(self, *indices: int) -> None:
        wrong = [index for index in indices if not 0 <= index < self._size]
        if wrong or len(set(indices)) != len(indices):
            raise ValueError(f"{indices} are not different nodes of 0..{self._size - 1}")

    # ---- evidence -----------------------------------------------------------------------------
    def capture(self, path: Path) -> Capture:
        """Record all frames that cross the bridge from now on; see ``streams``."""
        return Capture(path, self._up.switch, BRIDGE)

    def listening(self) -> list[Listener]:
        """Every TCP socket that listens on a node which is up."""
        up = [node for node in self.nodes if node.is_up]
        return [found for node in up for found in listeners(node.index, node.pid)]


def _visible_code(more: Iterable[Path]) -> list[str]:
    paths = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path), *map(str, more)}
    return sorted(str(Path(path).resolve()) for path in paths if Path(path).is_dir())
