"""Which step does a new generation go back to: the newest one that every rank can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.common.wire.messages.worker import Restore


def choose_restore(
    ranks: Iterable[int], sealed: Mapping[int, Iterable[int]], durable: tuple[int, str] | None
) -> Restore:
    """The restore point of a generation.

    Args:
        ranks: every rank of the grid.
        sealed: rank -> steps of the snapshots in that rank's arena on the node that carries the rank now;
            a rank without an arena (a fresh run, a lost node) is absent.
        durable: step and folder of the newest complete checkpoint, None when there is none.

    A step is never taken from a mixture of arenas and folders: all ranks restore from the same kind.
    """
    holdings = [frozenset(sealed.get(rank, ())) for rank in ranks]
    common = frozenset.intersection(*holdings) if holdings else frozenset()
    newest = max(common, default=-1)
    if durable is not None and durable[0] > newest:
        return Restore(source="durable", step=durable[0], folder=durable[1])
    if newest >= 0:
        return Restore(source="arena", step=newest)
    return Restore(source="init", step=0)
