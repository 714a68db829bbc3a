"""Detects that a run hangs, and which ranks block it.

In synchronous training one hung rank soon stops all others, which wait for it. So silence is a
property of a whole generation, and a rank that still makes progress proves that the run is
slow, not hung. The culprits are the sinks of the graph of who waits for whom, and a rank whose
process does not run at all, as in a frozen control group, whatever it waits for. Where the graph
leads to no rank, or not for certain, the hang is unexplained and nobody is blamed: all ranks of a
group are in the same operation, or the host of a device only launches work and nothing shows where
the device is. While a rank waits for data, no rank is blamed either: see ``data``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.health import Cause, Evidence
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import fact
from headway.health.detectors.positions import ANYTHING, scene_of
from headway.health.detectors.process import describe_action
from headway.health.detectors.rank_view import TRACED, RankView, still_s
from headway.health.detectors.unexplained import reason_of
from headway.health.diagnosis.diagnosis import ranks_in_words
from headway.health.diagnosis.mismatch import find_mismatch
from headway.health.diagnosis.wait_for import Holdup, find_holdups

ON_DISK = frozenset({Kind.SNAPSHOT_WAIT.name, Kind.SNAPSHOT.name, Kind.FLUSH.name})
"""What a rank does while a copy or a disk is slow: it would meet the same again after a restart."""
NAMING = ("missing", "device")
"""Kinds of holdups that a rank causes by itself."""
ABSENT = ("unreported", "ended")
"""Kinds that do not make it doubtful that another rank is at fault."""
MAX_STACKS = 4
"""Different stacks shown in one verdict."""
_ALONE = "it is the only rank not waiting for another"


@dataclass(frozen=True, slots=True)
class Hang:
    """A generation in which no rank makes progress, or none completes its step."""

    culprits: tuple[RankView, ...]
    """The ranks that block the others for certain; empty if none can be named."""
    silence_s: float
    """For how long nothing has moved; 0 of culprits that cannot recover by themselves."""
    what: str
    """What was observed, for people."""
    cause: Cause = "unknown"
    """Why, as far as it is known."""


def find_hang(views: Collection[RankView], config: HealthConfig) -> Hang | None:
    """Whether the ranks of a generation hang, and because of which ones.

    None while every rank is between actions (a paused run), while one makes progress, while
    one is joining, restoring, evaluating or in its first steps within that limit, while one waits
    for data, and while a debugger holds one.
    """
    heard = [view for view in views if not view.absence]
    if any(view.waits_for_data or view.signals.state == TRACED for view in heard):
        return None
    if all(not view.signals.open_kind for view in heard):
        return None
    if any(still_s(view.signals) < view.stall_s(config) for view in heard):
        return _find_livelock(heard, config)
    if not any(view.beats_over >= config.confirm_beats for view in heard):
        return None
    silence_s = min(still_s(view.signals) for view in heard)
    frozen = tuple(view for view in heard if view.is_frozen(config))
    if frozen:
        return _confirmed(Hang(frozen, 0.0, "its process does not run", "host_stall"), config)
    scene = scene_of(views, config)
    mismatch = find_mismatch(scene)
    if mismatch is not None:  # whatever a rank does then, its program is at fault
        return Hang((), silence_s, str(mismatch), "collective_mismatch")
    holdups = find_holdups(scene)
    if len(heard) == len(views) == 1 and scene.positions[heard[0].signals.rank].is_working:
        found = Hang((heard[0],), silence_s, _ALONE, "host_stall")
        return _confirmed(found, config)
    ranks = _named(holdups)
    if ranks:
        culprits = tuple(view for view in heard if view.signals.rank in ranks)
        if slow := [view for view in culprits if view.signals.open_kind in ON_DISK]:
            what = f"rank {slow[0].signals.rank} waits for its snapshot or checkpoint"
            return Hang((), silence_s, what, "checkpoint_write")
        sure = next(one for one in holdups if one.kind in NAMING)
        why: Cause = "device_hang" if sure.kind == "device" else "host_stall"
        return _confirmed(Hang(culprits, silence_s, _what(sure), why), config)
    cause, reason = reason_of(holdups, [view.signals for view in heard])
    return Hang((), silence_s, reason or f"no rank moved for {silence_s:.1f} s", cause)


def _named(holdups: Collection[Holdup]) -> frozenset[int]:
    """The ranks that are certainly at fault, if nothing else may be."""
    if any(one.kind not in (*NAMING, *ABSENT) for one in holdups):
        return frozenset()
    sure = [one for one in holdups if one.kind in NAMING]
    ranks = frozenset(rank for one in sure for rank in one.ranks)
    is_sure = len(ranks) == 1 or all(one.group != ANYTHING for one in sure)
    return ranks if is_sure else frozenset()


def _what(holdup: Holdup) -> str:
    if holdup.group == ANYTHING:
        return _ALONE
    if holdup.kind == "device":
        return f"its device has not begun operation {holdup.sequence} of the {holdup.group}"
    return f"it never began operation {holdup.sequence} of the {holdup.group}"


def _confirmed(hang: Hang, config: HealthConfig) -> Hang | None:
    """Not culprits that a debugger, for example, has just released."""
    culprits = tuple(one for one in hang.culprits if one.beats_over >= config.confirm_beats)
    return replace(hang, culprits=culprits) if culprits else None


def _find_livelock(views: Collection[RankView], config: HealthConfig) -> Hang | None:
    stuck = [view for view in views if view.is_stuck(config)]
    if not stuck:
        return None
    longest_s = max(view.signals.step_age_s for view in stuck)
    return Hang((), longest_s, f"ranks move, but their step has lasted for {longest_s:.0f} s")


def evidence_of(
    hang: Hang, culprit: RankView | None, views: Collection[RankView], config: HealthConfig
) -> tuple[Evidence, ...]:
    """What shows why a generation hangs.

    It is the culprit's position, limit, process state and stack, and how many others wait; or how
    many ranks are where.
    """
    num_waiting = sum(view.waits_for_others for view in views)
    rows = (
        fact("flight", "why", hang.what),
        fact("flight", "ranks_waiting", str(num_waiting)),
    )
    if culprit is None:
        places = Counter(view.signals.open_kind or "between actions" for view in views)
        text = ", ".join(f"{count} in {place}" for place, count in places.most_common())
        return (*rows, fact("flight", "ranks_by_action", text), *_stacks(views))
    where = culprit.signals.place
    return (
        *([fact("stack", "where", where)] if where else []),
        fact("flight", "last_action", describe_action(culprit.signals)),
        fact("flight", "limit", f"{culprit.limit_s(config):.1f} s"),
        fact("proc", "state", culprit.signals.state),
        *rows,
        *_stacks([view for view in views if view is not culprit]),
    )


def _stacks(views: Collection[RankView]) -> list[Evidence]:
    """Ranks at the same place together, the fewest first: the odd ones tell most."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for view in views:
        if view.signals.place:
            ranks[view.signals.place].append(view.signals.rank)
    groups = sorted(ranks.items(), key=lambda item: (len(item[1]), item[1]))
    return [
        fact("stack", ranks_in_words(sorted(members)), place)
        for place, members in groups[:MAX_STACKS]
    ]
