"""Which attempts may go. Pure: from a listing to names; the newest complete checkpoint is never among
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headway.ckpt_store.folder import Attempt, FolderView, is_superseded

Key = tuple[int, int]
"""(step, generation)"""


def newest_complete(view: FolderView, corrupt: Collection[Key] = ()) -> Key | None:
    """The checkpoint a recovery would take: the highest (step, generation) that still counts."""
    good = _good(view, corrupt)
    return good[-1] if good else None


def is_dead(key: Key, attempts: Collection[Attempt], marks: Mapping[int, int]) -> bool:
    """Whether an incomplete attempt has no future: nobody will finish it, or it would lead nowhere.

    Ranks flush their snapshots in order. So once a later step of the same or a newer generation is complete,
    whoever had not finished this one has given it up.
    """
    step, generation = key
    if is_superseded(step, generation, marks):
        return True
    return any(
        a.is_complete and a.generation >= generation and (a.step > step or (a.step == step and a.generation
        > generation)) for a in attempts
    )  # fmt: skip


def removable(view: FolderView, keep: int, corrupt: Collection[Key] = ()) -> list[Key]:
    """Complete checkpoints beyond the newest ``keep``, oldest first.

    Marked ones neither go nor count. Corrupt and superseded ones do not count, and go once ``keep`` good ones
    (or, for superseded ones, one of a newer generation) are there.
    """
    good = _good(view, corrupt)
    unmarked = [key for key in good if not _attempt(view, key).is_marked]
    kept = set(unmarked[-keep:])  # the newest is among them, or is marked
    is_full = len(kept) >= keep
    chosen = []
    for attempt in view.attempts:
        if not attempt.is_complete or attempt.is_marked or attempt.key in kept:
            continue
        if attempt.key in good:
            chosen.append(attempt.key)
        elif attempt.key in corrupt:
            if is_full and attempt.key < min(kept):
                chosen.append(attempt.key)
        elif any(generation > attempt.generation for _, generation in good):
            chosen.append(attempt.key)
    return chosen


def dead_attempts(view: FolderView) -> list[Key]:
    """Incomplete attempts that may go, oldest first."""
    return [
        a.key
        for a in view.attempts
        if not a.is_complete and not a.is_marked and is_dead(a.key, view.attempts, view.marks)
    ]


def _good(view: FolderView, corrupt: Collection[Key]) -> list[Key]:
    """Complete, readable as far as known, not superseded, and the newest generation of its step; oldest
    first."""
    latest: dict[int, int] = {}
    for a in view.attempts:
        if a.is_complete and a.key not in corrupt and not is_superseded(*a.key, view.marks):
            latest[a.step] = max(a.generation, latest.get(a.step, -1))
    return sorted(latest.items())


def _attempt(view: FolderView, key: Key) -> Attempt:
    return next(a for a in view.attempts if a.key == key)
