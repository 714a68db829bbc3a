"""What the store does next: (state, event, now) -> (state, actions), without files or clocks.

One job on the disk at a time, chosen in this order: commit a step whose parts are complete;
flush the oldest wanted snapshot; clean up what failed; check the newest checkpoint and apply
retention. Every action may be repeated, so a daemon that dies between an action and its event
restarts from what it observes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from headway.ckpt_store.attempts import Key
from headway.ckpt_store.events import (
    Action,
    Announce,
    ArenasSeen,
    Check,
    DropParts,
    EmptyTrash,
    Event,
    FlushSlot,
    FolderSeen,
    FolderUnseen,
    Job,
    JobDone,
    JobFailed,
    ReleaseSlot,
    Remove,
    Report,
    Slot,
    WriteManifest,
)
from headway.ckpt_store.folder import FolderView, is_superseded
from headway.ckpt_store.retention import (
    dead_attempts,
    is_overtaken,
    missing_ranks,
    newest_complete,
    removable,
)

RETRY_S = 5.0
"""Pause after a failed commit or removal. (A failed flush is not repeated: its
snapshot is given up.)"""


@dataclass(frozen=True)
class State:
    """Everything the decisions rest on."""

    keep: int
    ranks: frozenset[int] = frozenset()
    generation: int = 0
    wanted: tuple[Slot, ...] = ()
    view: FolderView | None = None
    """None until the folder has been listed; nothing is decided about it before."""
    is_unseen: bool = False
    """Whether the last listing failed. Snapshots are flushed anyway, so no slot stays pinned."""
    job: Job | None = None
    given_up: frozenset[Key] = frozenset()
    """Attempts that this node has given up: a rank could not be flushed, or its parts were dropped
    because the attempt will not be completed."""
    dropped: tuple[Slot, ...] = ()
    """The last slot of each rank that was released because its attempt had been given up."""
    to_drop: tuple[Key, ...] = ()
    sound: Key | None = None
    """The newest checkpoint that was verified."""
    corrupt: frozenset[Key] = frozenset()
    announced: Key | None = None
    retry_at_s: float = field(default=0.0)


def decide(state: State, event: Event, now_s: float) -> tuple[State, list[Action]]:
    """Process ``event`` and return the actions. ``now_s`` is a monotonic clock."""
    actions: list[Action] = []
    match event:
        case ArenasSeen():
            state = _arenas_seen(state, event)
        case FolderSeen():
            state, actions = _folder_seen(state, event.view)
        case FolderUnseen():
            state, actions = _folder_unseen(state, event)
        case JobDone():
            state, actions = _done(state, event.job)
        case JobFailed():
            state, actions = _failed(state, event, now_s)
    state, released = _release_incomplete(state)
    state, job = _next_job(state, now_s)
    reports = _incomplete(state, job) if job else []
    return state, [*actions, *released, *reports, *([job] if job else [])]


def _arenas_seen(state: State, event: ArenasSeen) -> State:
    """A rank that seals a step again after it was given up wants it, so it is flushed."""
    last_seals = {(slot.key, slot.rank): slot.seal for slot in state.dropped}
    again = {
        slot.key
        for slot in event.wanted
        if last_seals.get((slot.key, slot.rank), slot.seal) != slot.seal
    }
    return replace(
        state,
        ranks=event.ranks,
        generation=event.generation,
        wanted=tuple(sorted(event.wanted)),
        given_up=state.given_up - again,
        dropped=tuple(slot for slot in state.dropped if slot.key not in again),
    )


def _folder_unseen(state: State, event: FolderUnseen) -> tuple[State, list[Action]]:
    report = Report("folder_unseen", event.message, event.remedy)
    actions: list[Action] = [] if state.is_unseen else [report]
    return replace(state, view=None, is_unseen=True), actions


def _folder_seen(state: State, view: FolderView) -> tuple[State, list[Action]]:
    newest = newest_complete(view)
    state = replace(state, view=view, is_unseen=False)
    if newest is None:
        return replace(state, announced=None), []
    if newest == state.announced:
        return state, []
    given_up = frozenset(key for key in state.given_up if key > newest)
    return replace(state, announced=newest, given_up=given_up), [Announce(newest)]


def _done(state: State, job: Job) -> tuple[State, list[Action]]:
    state = replace(state, job=None)
    match job:
        case FlushSlot(slot):
            # The listing is older than this part, and a drain must wait for the manifest
            # that may be due now.
            return replace(_without(state, [slot]), view=None), [ReleaseSlot(slot)]
        case Check(key):
            return replace(state, sound=key), []
        case Remove() | WriteManifest() | DropParts() | EmptyTrash():
            # The listing is outdated; folders are decided on with the next one.
            return replace(state, view=None), []


def _failed(state: State, event: JobFailed, now_s: float) -> tuple[State, list[Action]]:
    state, job = replace(state, job=None), event.job
    if isinstance(job, FlushSlot):
        return _flush_failed(state, event, job.slot)
    if event.is_stale:
        return replace(state, view=None), []
    if isinstance(job, Check):
        text = f"{event.message}: nothing is removed until a newer checkpoint is intact"
        corrupt = state.corrupt | {job.key}
        return replace(state, corrupt=corrupt), [Report("corrupt", text, event.remedy, job.key)]
    key = None if isinstance(job, EmptyTrash) else job.key
    code: Literal["manifest_failed", "remove_failed"]
    code = "manifest_failed" if isinstance(job, WriteManifest) else "remove_failed"
    state = replace(state, view=None, retry_at_s=now_s + RETRY_S)
    return state, [Report(code, event.message, event.remedy, key)]


def _flush_failed(state: State, event: JobFailed, slot: Slot) -> tuple[State, list[Action]]:
    if event.is_stale:
        return _without(state, [slot]), [ReleaseSlot(slot)]
    code: Literal["no_space", "flush_failed"] = "no_space" if event.is_no_space else "flush_failed"
    state = replace(state, given_up=state.given_up | {slot.key}, to_drop=(*state.to_drop, slot.key))
    return _dropping(_without(state, [slot]), [slot]), [
        Report(code, event.message, event.remedy, slot.key),
        ReleaseSlot(slot),
    ]


def _release_incomplete(state: State) -> tuple[State, list[Action]]:
    """Release slots that need no flush: attempts that are given up, dead, or already complete."""
    flushing = state.job.slot if isinstance(state.job, FlushSlot) else None
    hopeless = [s for s in state.wanted if s != flushing and _cannot_complete(state, s.key)]
    given_up = [slot for slot in hopeless if slot.key in state.given_up]
    return _dropping(_without(state, hopeless), given_up), [ReleaseSlot(s) for s in hopeless]


def _cannot_complete(state: State, key: Key) -> bool:
    if key in state.given_up:
        return True
    if state.view is None:
        return False
    is_complete = any(a.key == key and a.is_complete for a in state.view.attempts)
    return is_complete or is_overtaken(key, state.view)


def _dropping(state: State, slots: list[Slot]) -> State:
    ranks = {slot.rank for slot in slots}
    kept = [slot for slot in state.dropped if slot.rank not in ranks]
    return replace(state, dropped=(*kept, *slots))


def _without(state: State, slots: list[Slot]) -> State:
    return replace(state, wanted=tuple(s for s in state.wanted if s not in slots))


def _next_job(state: State, now_s: float) -> tuple[State, Job | None]:
    if state.job is not None:
        return state, None
    job = _commit(state, now_s) or _flush(state) or _clear_up(state, now_s)
    if isinstance(job, DropParts):
        to_drop = tuple(key for key in state.to_drop if key != job.key)
        state = replace(state, to_drop=to_drop, given_up=state.given_up | {job.key})
    return replace(state, job=job), job


def _commit(state: State, now_s: float) -> Job | None:
    if state.view is None or now_s < state.retry_at_s:
        return None
    for a in reversed(state.view.attempts):
        is_ready = a.has_all_parts and not a.is_complete and a.key not in state.given_up
        is_own = a.generation <= state.generation
        if is_ready and is_own and not is_superseded(*a.key, state.view.marks):
            return WriteManifest(a.key)
    return None


def _flush(state: State) -> Job | None:
    # Without a listing a restarted daemon might flush what is already complete:
    # harmless but useless.
    is_ready = state.view is not None or state.is_unseen
    return FlushSlot(state.wanted[0]) if state.wanted and is_ready else None


def _clear_up(state: State, now_s: float) -> Job | None:
    if state.to_drop:
        return DropParts(state.to_drop[0], tuple(sorted(state.ranks)), gave_up=True)
    if state.view is None or now_s < state.retry_at_s:
        return None
    if max(state.view.marks, default=0) > state.generation:
        return None  # the run continues without these ranks, or they have not saved in it yet
    dead = dead_attempts(state.view, _wanted_keys(state))
    # Only one node of a run removes whole folders: the one that carries rank 0.
    if 0 not in state.ranks:
        return _drop_dead(state, dead)
    if state.view.trash:
        return EmptyTrash(state.view.trash)
    if dead:
        return Remove(dead[0], is_dead=True)
    surplus = removable(state.view, state.keep, state.corrupt)
    newest = newest_complete(state.view)
    if not surplus or newest is None or newest in state.corrupt:
        return None
    return Remove(surplus[0]) if newest == state.sound else Check(newest)


def _drop_dead(state: State, dead: list[Key]) -> Job | None:
    """Free this node's part of the disk, since rank 0's node may be the one that cannot write."""
    assert state.view is not None
    for attempt in state.view.attempts:
        ours = frozenset() if attempt.has_all_parts else attempt.ranks & state.ranks
        if ours and attempt.key in dead and attempt.key not in state.given_up:
            return DropParts(attempt.key, tuple(sorted(ours)))
    return None


def _incomplete(state: State, job: Job) -> list[Action]:
    """Report an attempt that is removed because some rank wrote neither its part nor a reason."""
    if not isinstance(job, Remove | DropParts) or state.view is None:
        return []
    is_known = job.gave_up if isinstance(job, DropParts) else job.key in state.given_up
    if is_known:
        return []
    missing = missing_ranks(state.view, job.key)
    if not missing:
        return []
    text = f"step {job.key[0]} was not completed: no parts from ranks {missing}"
    remedy = (
        "check that all nodes write to the same folder and that their checkpoint stores are running"
    )
    return [Report("incomplete", text, remedy, job.key)]


def _wanted_keys(state: State) -> frozenset[Key]:
    """Steps that this node's ranks have begun to save, including those given up."""
    return frozenset(slot.key for slot in state.wanted) | state.given_up
