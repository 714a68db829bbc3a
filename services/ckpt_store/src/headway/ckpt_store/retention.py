"""Chooses what to remove: pure functions of a listing; never the newest complete checkpoint."""

from __future__ import annotations

from collections.abc import Collection

from headway.ckpt_store.attempts import Attempt, Key
from headway.ckpt_store.folder import FolderView, is_superseded

LATER_ATTEMPTS = 2
"""Number of later steps after which an attempt with missing parts counts as given up."""


def newest_complete(view: FolderView, corrupt: Collection[Key] = ()) -> Key | None:
    """The checkpoint that a recovery would restore: the highest valid (step, generation)."""
    good = _good(view, corrupt)
    return good[-1] if good else None


def is_overtaken(key: Key, view: FolderView) -> bool:
    """Whether this step would be obsolete even if it were completed.

    Ranks write their snapshots in order. So once a later step of the same or a newer generation is
    complete, ranks that had not finished this one have given it up.
    """
    step, generation = key
    if is_superseded(step, generation, view.marks):
        return True
    return any(
        a.is_complete
        and a.generation >= generation
        and (a.step > step or (a.step == step and a.generation > generation))
        for a in view.attempts
    )


def is_dead(
    attempt: Attempt,
    view: FolderView,
    wanted: Collection[Key] = (),
    later: int = LATER_ATTEMPTS,
) -> bool:
    """Whether an incomplete attempt will not be finished, or would be obsolete.

    A node that cannot write cannot always leave a note that it gave up, and the others must not
    fill the disk. So an attempt also counts as given up once ``later`` later ones of the same start
    of the job are in the folder or, of this node's ranks, ``wanted``.
    """
    if is_overtaken(attempt.key, view):
        return True
    if attempt.has_all_parts:
        return False
    step, generation = attempt.key
    begun = {
        a.step
        for a in view.attempts
        if a.generation >= generation and a.incarnation == attempt.incarnation
    }
    begun |= {s for s, g in wanted if g >= generation}
    return attempt.has_given_up or sum(s > step for s in begun) >= later


def removable(
    view: FolderView, keep: int, corrupt: Collection[Key] = (), own: Collection[Key] = ()
) -> list[Key]:
    """Complete checkpoints beyond the newest ``keep``, oldest first.

    Pinned ones are neither removed nor counted. Corrupt and superseded ones do not count, and are
    removed once ``keep`` valid ones (or, for superseded ones, one of a newer generation) exist. Of
    those that a start from scratch superseded, the newest stay until ``keep`` new ones exist.
    ``own``: what the asking start has saved, which goes last, and never for older starts' steps.
    """
    good = _good(view, corrupt)
    unmarked = [a.key for a in view.attempts if a.key in good and not a.is_marked]
    latest = set(unmarked[-1:])
    order = sorted(unmarked, key=lambda key: (key in latest, key in own, key))
    kept = latest | set(order[-keep:]) | set([k for k in unmarked if k in own][-keep:])
    is_full = len(kept) >= keep
    earlier = [a.key for a in view.attempts if _is_of_earlier_start(a, view)]
    earlier = [key for key in earlier if key not in corrupt]
    spared = set(earlier[-(keep - len(kept)) :]) if good and not is_full else set()
    chosen = []
    for attempt in view.attempts:
        if not attempt.is_complete or attempt.is_marked or attempt.key in kept | spared:
            continue
        if attempt.key in good:
            chosen.append(attempt.key)
        elif attempt.key in corrupt or attempt.is_damaged:
            if is_full and attempt.key < min(kept):
                chosen.append(attempt.key)
        elif any(generation > attempt.generation for _, generation in good):
            chosen.append(attempt.key)
    return chosen


def dead_attempts(
    view: FolderView, wanted: Collection[Key] = (), later: int = LATER_ATTEMPTS
) -> list[Key]:
    """Incomplete attempts that may be removed, oldest first."""
    return [
        a.key
        for a in view.attempts
        if not a.is_complete and not a.is_marked and is_dead(a, view, wanted, later)
    ]


def missing_ranks(view: FolderView, key: Key) -> list[int]:
    """Ranks without a part in an attempt that died silently: neither given up nor superseded."""
    attempt = view.find(key)
    if attempt is None or attempt.is_complete or attempt.has_given_up or attempt.has_all_parts:
        return []
    if is_overtaken(key, view):
        return []
    return sorted(set(range(attempt.world_size or 0)) - attempt.ranks)


def _good(view: FolderView, corrupt: Collection[Key]) -> list[Key]:
    """Complete, readable, not superseded, the newest generation of each step; oldest first."""
    latest: dict[int, int] = {}
    for a in view.attempts:
        is_sound = a.is_complete and not a.is_damaged and a.key not in corrupt
        if is_sound and not is_superseded(*a.key, view.marks):
            latest[a.step] = max(a.generation, latest.get(a.step, -1))
    return sorted(latest.items())


def _is_of_earlier_start(attempt: Attempt, view: FolderView) -> bool:
    """Whether only a start from scratch has made it obsolete."""
    if not attempt.is_complete or attempt.is_marked or attempt.is_damaged:
        return False
    resumed = {g: restart for g, restart in view.marks.items() if restart >= 0}
    is_obsolete = is_superseded(*attempt.key, view.marks)
    return is_obsolete and not is_superseded(*attempt.key, resumed)
