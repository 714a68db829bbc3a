"""Which copies of the state there are.

They are sealed in arenas, durable in the folder, or known to be bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from headway.common.wire.messages.driver import Seals
from headway.common.wire.messages.worker import Restore


class Copies:
    """What the nodes report of their arenas, less what proved bad.

    Args:
        bad_checkpoints: steps of checkpoints that cannot be restored.
        bad_snapshots: (rank, step) of snapshots that do not match their digest.
    """

    def __init__(
        self, bad_checkpoints: Iterable[int] = (), bad_snapshots: Iterable[tuple[int, int]] = ()
    ) -> None:
        self.bad_checkpoints = set(bad_checkpoints)
        self.bad_snapshots = dict.fromkeys((rank, step) for rank, step in bad_snapshots)
        self._doubts: dict[int, tuple[int, int]] = {}
        """Step -> (generation, rank): whose part one reader could not read, and when."""
        self.unread: dict[int, None] = {}
        """Nodes whose snapshots are not known yet."""
        self._sealed: dict[int, dict[int, tuple[int, ...]]] = {}

    def begin(self, nodes: Iterable[int]) -> None:
        """Read the snapshots of ``nodes`` anew."""
        self.unread = dict.fromkeys(nodes)
        self._sealed = {}

    def take(self, seals: Seals) -> None:
        """Take in the snapshots of a node; those in a damaged arena count as absent."""
        if seals.node in self.unread:
            del self.unread[seals.node]
            self._sealed[seals.node] = {
                rank: steps for rank, steps in seals.sealed.items() if rank not in seals.damaged
            }

    def give_up(self, node: int) -> None:
        """The node does not answer: it counts as having no snapshots."""
        self.unread.pop(node, None)

    def bad_snapshot(self, rank: int, step: int) -> None:
        """Never restore this one again."""
        self.bad_snapshots[rank, step] = None

    def unreadable(self, generation: int, restore: Restore, rank: int, part: int) -> bool:
        """Note that ``rank`` could not read the part of rank ``part``.

        Returns whether that condemns the checkpoint, so that it is never restored again: it does if
        this was the second reader of a part in doubt. Else the part is in doubt from now on, since
        the cause may be in this rank or its node.
        """
        if rank == restore.reader and part == restore.doubted:
            self.bad_checkpoints.add(restore.step)
            self._doubts.pop(restore.step, None)
            return True
        noted_in, _ = self._doubts.get(restore.step, (-1, 0))
        if noted_in != generation:  # of several reports in one generation the first counts
            self._doubts[restore.step] = (generation, part)
        return False

    def with_reader(self, restore: Restore, rank_nodes: Mapping[int, int]) -> Restore:
        """Name a second reader for a part in doubt.

        It is on another node than the rank whose part it is, or else another process; that rank
        itself reads only if the run has no other.
        """
        if restore.source != "durable" or restore.step not in self._doubts:
            return restore
        _, part = self._doubts[restore.step]
        home = rank_nodes[part]
        order = sorted(rank_nodes, key=lambda r: (rank_nodes[r] == home, r == part, r))
        return msgspec.structs.replace(restore, doubted=part, reader=order[0])  # type: ignore[type-var]

    def choose(self, rank_nodes: Mapping[int, int], durable: tuple[int, str] | None) -> Restore:
        """The restore point of a generation whose ranks run on these nodes."""
        return choose_restore(rank_nodes, self._usable(rank_nodes), durable)

    def _usable(self, rank_nodes: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """Rank -> steps of the good snapshots on the node that carries the rank now."""
        return {
            rank: tuple(
                step
                for step in self._sealed.get(home, {}).get(rank, ())
                if (rank, step) not in self.bad_snapshots
            )
            for rank, home in rank_nodes.items()
        }

    def restarted(self, step: int) -> None:
        """Forget bad checkpoints beyond ``step``, at which a generation restarts.

        That generation has marked them obsolete, and one of the same step that it writes is another
        one.
        """
        self.bad_checkpoints = {bad for bad in self.bad_checkpoints if bad <= step}

    def renewed(self) -> bool:
        """Forget bad snapshots and parts in doubt, and return whether a snapshot was bad.

        Called once every rank has restored another copy, which frees the slots of newer ones, or
        could read its part.
        """
        found = bool(self.bad_snapshots)
        self.bad_snapshots.clear()
        self._doubts.clear()
        return found


def choose_restore(
    ranks: Iterable[int], sealed: Mapping[int, Iterable[int]], durable: tuple[int, str] | None
) -> Restore:
    """The restore point of a generation: the newest step that every rank can have.

    Args:
        ranks: every rank of the grid.
        sealed: rank -> steps of the snapshots in that rank's arena on the node that carries the
            rank now; a rank without an arena (a fresh run, a lost node) is absent.
        durable: step and folder of the newest complete checkpoint, None when there is none.

    A step is never taken from a mixture of arenas and folders: all ranks restore from one kind.
    """
    holdings = [frozenset(sealed.get(rank, ())) for rank in ranks]
    common = frozenset.intersection(*holdings) if holdings else frozenset()
    newest = max(common, default=-1)
    if durable is not None and durable[0] > newest:
        return Restore(source="durable", step=durable[0], folder=durable[1])
    if newest >= 0:
        return Restore(source="arena", step=newest)
    return Restore(source="init", step=0)
