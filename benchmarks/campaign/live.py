"""Judges a trace as a run is judged: agents' beats go through the whole state of a monitor."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule import Kind
from headway.common.wire.group_table import unpack
from headway.common.wire.messages.health import AgentBeat, Verdict, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.responses import OBSERVE, response
from headway.health.state import MonitorState

from benchmarks.campaign.faults import HOST, Trace, draw
from benchmarks.campaign.outcome import Outcome
from benchmarks.campaign.play import Played, Player
from benchmarks.campaign.program import What
from benchmarks.campaign.sight import Sight
from benchmarks.campaign.truth import PROGRAM, truth_of

RUN_ID = "0badcafe"
CONFIG = HealthConfig()
BEAT_S = CONFIG.beat_interval_s
CLOCK_OFF_S = 5.0
"""Nodes differ in their clocks by up to this much; beats carry ages, which do not show it."""
MORE_BEATS = 8
"""Beats after the first verdict in which others may follow."""
GIVE_UP_S = 150.0
KILLS = frozenset({"kill_worker", "replace_worker", "replace_node"})
NAMED = frozenset({*HOST, "device", "stopped", "frozen", "gone"})
HANGS = frozenset({"silence", "stopped", "crash", "unexplained_hang", "data_stall", "node_silent"})
_CLASSES = (
    dict.fromkeys((*HOST, "device", "frozen"), "silence")
    | {"data": "data_stall", "stopped": "stopped", "gone": "crash"}
    | dict.fromkeys(PROGRAM, "collective_mismatch")
    | {"device unknown": "unexplained_hang", "transport": "network", "deadlock": "deadlock",
       "ended": "ended_early", "unreported": "unreported"}
)  # fmt: skip


@dataclass
class Fates:
    """What is wrong with the beats of each rank: 1 to 10 % of the ranks are affected."""

    of: Mapping[int, str]
    """Rank -> ``missing``, ``no table``, ``late`` or ``twice``."""
    _last: dict[int, WorkerSignals] = field(default_factory=dict)

    @classmethod
    def drawn(cls, chance: random.Random, ranks: Iterator[int]) -> Fates:
        share = chance.uniform(0.01, 0.10)
        kinds = ("missing", "no table", "late", "twice")
        return cls({rank: chance.choice(kinds) for rank in ranks if chance.random() < share})

    def of_signals(self, signals: WorkerSignals) -> WorkerSignals | None:
        """What arrives of them."""
        fate = self.of.get(signals.rank, "")
        if fate == "missing":
            return None
        if fate == "no table":
            return msgspec.structs.replace(signals, packed_groups=b"")
        if fate == "late":
            before, self._last[signals.rank] = self._last.get(signals.rank), signals
            return before
        return signals


class Cluster:
    """Nodes that beat about a played run, and the monitor that hears them."""

    def __init__(
        self, trace: Trace, played: Played, fates: Fates, chance: random.Random, step_s: float
    ) -> None:
        self._trace, self._fates = trace, fates
        queue = chance.choice((8, 40, 1 << 30))
        self._sights = {rank: Sight(trace, played, rank, queue, step_s) for rank in trace.programs}
        ranks = sorted(trace.programs)
        self._per_node = chance.choice((1, 2, 4, 8))
        count = -(-len(ranks) // self._per_node)
        self._phases_s = sorted(chance.uniform(0.0, BEAT_S) for _ in range(count))
        self._sequence = 0
        self.state = MonitorState(CONFIG, RUN_ID)

    def node_of(self, rank: int) -> int:
        return rank // self._per_node

    def beat(self, now_s: float) -> list[Verdict]:
        """One beat of each node, and the monitor's own tick."""
        self._sequence += 1
        verdicts: list[Verdict] = []
        for node, phase_s in enumerate(self._phases_s):
            beat = self._beat(node, now_s + phase_s)
            verdicts += self.state.on_beat(beat, now_s + phase_s)
            if any(self._fates.of.get(one.rank) == "twice" for one in beat.workers):
                verdicts += self.state.on_beat(beat, now_s + phase_s)
        return verdicts + self.state.tick(now_s + BEAT_S)

    def shows_mismatch(self, now_s: float, ranks: list[int]) -> bool:
        """Whether two members have different operations as the newest of a group."""
        found: dict[tuple[int, int, int], set[tuple[int, int]]] = defaultdict(set)
        for rank in ranks:
            for row in unpack(self._sights[rank].at(now_s).packed_groups):
                if row.line < 2 * GroupKind.EVERY_RANK:
                    found[row.line, row.number, row.entered].add((row.op, row.nbytes))
        return any(len(one) > 1 for one in found.values())

    def _beat(self, node: int, now_s: float) -> AgentBeat:
        first = node * self._per_node
        workers = []
        for rank in range(first, min(first + self._per_node, len(self._sights))):
            signals = self._sights[rank].at(now_s)
            is_unreported = self._trace.faults.get(rank) == "unreported" and self._sights[
                rank
            ].is_halted(now_s)
            seen = None if is_unreported else self._fates.of_signals(signals)
            if seen is not None:
                workers.append(seen)
        return AgentBeat(run_id=RUN_ID, node=node, pid=100 + node, start_ticks=1,
                         sequence=self._sequence, workers=tuple(workers))  # fmt: skip


def play_live(trace: Trace, chance: random.Random) -> tuple[Played, float]:
    """The run, scaled to steps of 0.4 to 4 s, and the length of a healthy step."""
    step_s = chance.choice((0.4, 1.0, 2.0, 4.0))
    healthy = max(
        sum(move.what is What.WORK for move in moves) for moves in trace.programs.values()
    )
    scale_s = step_s / max(healthy, 1)
    played = Player(trace.programs, trace.sizes, trace.seed, scale_s, trace.halts, trace.stuck)
    return played.play(), step_s


def judge_live(seed: int, most: int) -> Outcome:
    """Draw, play and judge one trace of up to ``most`` ranks."""
    trace = draw(seed, most)
    chance = random.Random(f"live {seed}")
    played, step_s = play_live(trace, chance)
    fates = Fates.drawn(chance, iter(sorted(trace.programs)))
    cluster = Cluster(trace, played, fates, chance, step_s)
    is_clean = not trace.faults and not trace.stuck
    given: list[Verdict] = []
    first_s = -1.0
    start_s, until_s = max(0.0, played.end_s - 4.0), played.end_s + GIVE_UP_S
    now_s = 0.0 if is_clean else start_s
    while now_s < (played.end_s - BEAT_S if is_clean else until_s):
        found = alarms(cluster.beat(now_s))
        given += found
        first_s = now_s if found and first_s < 0 else first_s
        if first_s >= 0 and now_s > first_s + MORE_BEATS * BEAT_S:
            break
        now_s += BEAT_S
    return _outcome(trace, played, cluster, fates, given, is_clean=is_clean, first_s=first_s)


def _outcome(
    trace: Trace, played: Played, cluster: Cluster, fates: Fates, given: list[Verdict], *,
    is_clean: bool, first_s: float,
) -> Outcome:  # fmt: skip
    hidden = ("missing", "no table")
    seen = [rank for rank in trace.programs if fates.of.get(rank) not in hidden]
    truth = truth_of(trace, played, seen)
    newest = {verdict.id: verdict for verdict in given}
    acted = [one for one in given if response(one) != OBSERVE]
    named = frozenset(one.rank for one in acted if one.rank >= 0)
    faulty = frozenset(trace.faults)
    nodes = {cluster.node_of(rank) for rank in faulty}
    said = {class_of(one) for one in newest.values() if one.is_open}
    classes = {_CLASSES[kind] for kind in trace.faults.values()}
    classes |= {"network"} if trace.stuck else set()
    is_data_right = all(one.node in nodes for one in given if one.kind == "data_stall")
    is_warm = trace.first_step >= CONFIG.first_steps
    return Outcome(
        trace.seed, trace.kind, str(trace.layout), " and ".join(sorted(said)),
        not said if is_clean else bool(said) and said <= classes,
        truth.culprits, named, truth.can_be_known and _shows(trace, cluster, played, seen),
        _to_be_named(trace, truth.culprits) <= named <= faulty and is_data_right
        and (is_clean or bool(said)),
        innocents=named - faulty,
        killed=frozenset(one.rank for one in acted if response(one) in KILLS) - faulty,
        is_clean=is_clean,
        beats=round((first_s - played.end_s) / BEAT_S) if first_s >= 0 and is_warm else -1,
    )  # fmt: skip


def _to_be_named(trace: Trace, culprits: frozenset[int]) -> frozenset[int]:
    """Ranks that the first verdicts have to name.

    A process that does not run, or data that do not come, explain a hang. So others are judged only
    after what is done about these, which is beyond a trace.
    """
    kinds = set(trace.faults.values())
    if trace.stuck or not kinds <= NAMED:
        return frozenset()
    for first in (("stopped", "gone"), ("data",), ("frozen",)):
        if kinds & set(first):
            return frozenset(
                rank for rank in culprits
                if trace.faults[rank] in first and trace.faults[rank] != "data"
            )  # fmt: skip
    return culprits


def _shows(trace: Trace, cluster: Cluster, played: Played, seen: list[int]) -> bool:
    """Whether beats carry what a fault is known by."""
    kinds = set(trace.faults.values())
    if "device unknown" in kinds:
        return False
    if "device" in kinds and trace.layout.tp > 1:
        # a device in a pass may as well wait for its neighbours
        [rank] = trace.faults
        return trace.programs[rank][trace.halts[rank]].kind is Kind.OPTIMIZER
    if kinds & set(PROGRAM):
        return cluster.shows_mismatch(played.end_s + BEAT_S, seen)
    return not (trace.on_device and (trace.stuck or "deadlock" in kinds))


def alarms(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that say that a run has stopped."""
    return [one for one in verdicts if one.kind in HANGS and one.is_open]


def class_of(verdict: Verdict) -> str:
    """The kind of a verdict, or the cause that an unexplained hang states."""
    is_stated = verdict.kind == "unexplained_hang" and verdict.cause != "unknown"
    return verdict.cause if is_stated else verdict.kind
