"""Which snapshot to make durable when no rank can ask for it: the newest that all ranks hold.

A commit on one rank shows that every rank has sealed that step, and no rank overwrites it before
the next commit. So a store that holds the arenas of some ranks takes the newest step that one of
them has committed, and follows the store of another node to a later one. A store with the arenas of
all ranks sees for itself what all have sealed, as a recovery does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headway.ckpt_store.attempts import Attempt, Key
from headway.ckpt_store.folder import FolderView, is_superseded
from headway.ckpt_store.retention import newest_complete


@dataclass(frozen=True)
class Holding:
    """What the arena of one rank holds."""

    committed: int
    """Newest step that this rank knows to be sealed by all ranks, -1 before the first."""
    sealed: frozenset[Key]
    """Without those that the rank doubts: they are for recovery, not for a checkpoint."""


def candidates(
    holdings: Mapping[int, Holding],
    world_size: int,
    view: FolderView,
    given_up: Collection[Key] = (),
) -> list[Key]:
    """The common snapshots of all ranks that are newer than any checkpoint, the newest first.

    Args:
        holdings: of the ranks of this node, by rank.
        world_size: ranks of the run.
        view: the checkpoints folder.
        given_up: attempts that this node could not write.
    """
    if not holdings:
        return []
    attempts = {attempt.key: attempt for attempt in view.attempts}
    common = frozenset.intersection(*(holding.sealed for holding in holdings.values()))
    limit = max(holding.committed for holding in holdings.values())
    durable = (newest_complete(view) or (-1, -1))[0]
    return [
        key
        for key in sorted(common, reverse=True)
        if (len(holdings) >= world_size or key[0] <= limit or key in attempts)
        and key[0] > durable
        and key not in given_up
        and not _cannot_complete(key, attempts.get(key), view)
    ]


def _cannot_complete(key: Key, attempt: Attempt | None, view: FolderView) -> bool:
    if is_superseded(*key, view.marks):
        return True
    return attempt is not None and (attempt.has_given_up or attempt.is_damaged)
