"""Plays a run with what slows it, and sums its steps up as an agent does."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Coordinates
from headway.common.plan.schedule import Kind
from headway.common.plan.schedule.actions import COMPUTE
from headway.common.wire.messages.summaries import GroupSum, StepSum

from benchmarks.campaign.faults import without_fault
from benchmarks.campaign.play import Player, Track, usual_s
from benchmarks.campaign.program import Key, Move, What, group_of
from benchmarks.campaign.slow_draw import EXTRA_AT, NUM_STEPS, SLOW_GROUPS, Draw

SCALE_S = 0.02
CLOCK_OFF_NS = 5_000_000_000
RECORDED_PASSES = 16
"""Waits inside of passes are recorded in one step of so many."""
COLLECTIONS_EVERY = 3
SUMS = 2
"""The last collectives of a step, which are too small for the rate of a link to matter. The one
before is hidden behind no pass."""
SNAPSHOT_SHARE = 0.2
"""Of the passes of a step, for a checkpoint of a clean run."""
_COLUMN = {"garbage_collection": "collection_us", "checkpoint_write": "snapshot_us"}


class SlowPlayer(Player):
    """Ranks that differ a little, and one fault."""

    def __init__(self, draw: Draw) -> None:
        self.trace = without_fault(draw.layout, draw.seed, False, 0, NUM_STEPS)
        super().__init__(self.trace.programs, self.trace.sizes, draw.seed, SCALE_S)
        self._draw, self._grid = draw, draw.layout.grid
        self._chance = random.Random(f"slow play {draw.seed}")
        ranks = range(self._grid.world_size)
        self._pace = [max(0.5, self._chance.gauss(1.0, draw.pace)) for _ in ranks]
        self._step_of = {rank: _steps(moves) for rank, moves in self.trace.programs.items()}
        self._jitter = [
            [self._chance.lognormvariate(0.0, draw.jitter) for _ in range(NUM_STEPS)] for _ in ranks
        ]
        self._hit = [self._chance.randrange(self._grid.world_size) for _ in range(NUM_STEPS)]
        self._longer = [_sequences(self._chance, self._grid.dp) for _ in range(NUM_STEPS)]
        self._spikes = [self._chance.uniform(0.5, 1.5) for _ in range(NUM_STEPS)]
        self._own_s = {rank: self._passes_s(moves) for rank, moves in self.trace.programs.items()}
        self._num_slow = self._slow_operations()
        self.extra_us: dict[tuple[int, int, str], float] = defaultdict(float)
        """By rank, step and column, what is not a move of its own."""
        self._had: set[tuple[int, int]] = set()

    def work_s(self, rank: int, index: int, move: Move) -> float:
        step = self._step_of[rank][index]
        jitter = self._jitter[rank][step] * self._chance.lognormvariate(0.0, 0.02)
        seconds = usual_s(move) * SCALE_S * self._pace[rank] * jitter
        if move.kind in COMPUTE:
            seconds *= 1 + self._draw.ramp * step / NUM_STEPS
            return seconds * self._slowness(rank, step)
        return seconds + self._extra_s(rank, step, move)

    def transfer_s(self, key: Key, number: int) -> float:
        seconds = super().transfer_s(key, number)
        if key not in self._num_slow:
            return seconds
        per_step = self.trace.base[group_of(self._grid, key)[0]][2 * key[0]]
        step, place = divmod(number - 1, per_step)
        is_gradients = key[0] is not GroupKind.DP or place == per_step - SUMS - 1
        if not self._is_slow(step) or not is_gradients:
            return seconds
        extra_s = (self._draw.factor - 1) * self._own_s[self._draw.rank]
        if key[0] is GroupKind.DP:
            return seconds + extra_s
        return seconds + extra_s / per_step / 4

    def _slowness(self, rank: int, step: int) -> float:
        draw, place = self._draw, self._grid.coordinates(rank)
        uneven = draw.uneven[1] if place.pp == draw.uneven[0] else 1.0
        return uneven * self._fault(rank, step, place) if self._is_slow(step) else uneven

    def _is_slow(self, step: int) -> bool:
        return self._draw.since <= step < self._draw.until

    def _fault(self, rank: int, step: int, place: Coordinates) -> float:
        draw = self._draw
        if (draw.kind == "compute" and rank == draw.rank) or place.pp == draw.stage:
            return draw.factor
        if draw.kind == "sequence_imbalance":
            return 1 + (draw.factor - 1) * self._longer[step][place.dp]
        if draw.kind == "host_noise" and self._hit[step] == rank:
            return 1 + 1.5 * (draw.factor - 1) * self._spikes[step]
        return 1.0

    def _extra_s(self, rank: int, step: int, move: Move) -> float:
        """Once per step, in a piece of work of the kind that the fault has."""
        draw, at = self._draw, (rank, step)
        snapshot_s = 0.0
        is_end = move.kind is Kind.OPTIMIZER
        if draw.snapshots and step % draw.snapshots == 5 and is_end:
            snapshot_s = SNAPSHOT_SHARE * self._own_s[rank] * self._spikes[step]
            self.extra_us[rank, step, "snapshot_us"] += snapshot_s * 1e6
        kind = draw.kind
        if kind is None or move.kind is not EXTRA_AT.get(kind) or at in self._had:
            return snapshot_s
        if not self._is_slow(step) or (draw.rank >= 0 and rank != draw.rank):
            return snapshot_s
        self._had.add(at)
        extra_s = (draw.factor - 1) * self._own_s[rank] * self._weight(rank, step)
        if kind in _COLUMN:
            self.extra_us[rank, step, _COLUMN[kind]] += extra_s * 1e6
        return snapshot_s + extra_s

    def _weight(self, rank: int, step: int) -> float:
        if self._draw.kind == "launch_skew":
            return 1.5 * step / NUM_STEPS * self._spikes[step] * (self._hit[step] == rank)
        if self._draw.kind == "garbage_collection":
            if self._draw.rank < 0:  # nothing aligns them
                return 1.0 * (self._hit[step] == rank)
            return COLLECTIONS_EVERY * (step % COLLECTIONS_EVERY == 0)
        return 1.0

    def _passes_s(self, moves: list[Move]) -> float:
        works = [one for one in moves if one.what is What.WORK and one.kind in COMPUTE]
        return sum(map(usual_s, works)) * SCALE_S / NUM_STEPS

    def _slow_operations(self) -> set[Key]:
        if self._draw.kind != "network":
            return set()
        return {
            key for key in self.trace.sizes
            if key[0] in SLOW_GROUPS and self._draw.rank in group_of(self._grid, key)
        }  # fmt: skip


def summaries(draw: Draw) -> Iterator[StepSum]:
    """Play the run, and sum up each step of each rank."""
    player = SlowPlayer(draw)
    played = player.play()
    for rank, track in played.tracks.items():
        offset_ns = random.Random(f"clock {draw.seed} {rank}").randint(-CLOCK_OFF_NS, CLOCK_OFF_NS)
        for step, times, groups in _sums(track, draw.first_step):
            for name in ("snapshot_us", "collection_us"):
                extra = player.extra_us.get((rank, step, name), 0.0)
                times[name] += extra
                times["optimizer_us"] -= extra
            yield StepSum(
                rank, 0, draw.first_step + step, step, round(times.pop("start_us")) * 1000
                + offset_ns, **{name: round(value) for name, value in times.items()},
                groups=groups,
            )  # fmt: skip


def _sums(
    track: Track, first_step: int
) -> Iterator[tuple[int, dict[str, float], tuple[GroupSum, ...]]]:
    """By step: the times of its records, and of its groups."""
    line_of = {move.ticket: move for move in track.moves if move.what is What.ENTER}
    opened: list[tuple[Kind, float]] = []
    times: dict[str, float] = defaultdict(float)
    waits: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    step = 0
    for move, began_s, ended_s in zip(track.moves, track.began, track.ended, strict=True):
        is_inside = move.kind in COMPUTE or move.kind in (Kind.SUMS, Kind.AGREEMENT)
        if move.what is What.BEGIN:
            opened.append((move.kind, began_s))
        elif move.what is What.ENTER and not is_inside:
            counts[move.line] += 1
        elif move.what is What.WAIT:
            line = line_of[move.ticket].line
            if move.kind in (Kind.SUMS, Kind.AGREEMENT):
                waits[2 * GroupKind.EVERY_RANK] += ended_s - began_s
            elif not is_inside or (first_step + step) % RECORDED_PASSES == 0:
                waits[line] += ended_s - began_s
                counts[line] += is_inside
        elif move.what is What.END:
            kind, since_s = opened.pop()
            times[_name(kind)] += (ended_s - since_s) * 1e6
            times["num_passes"] += kind in COMPUTE
            if kind is Kind.STEP:
                yield step, _whole(times, since_s), tuple(
                    GroupSum(line, line_of_number(track, line), counts[line], round(wait_s * 1e6),
                             0, 0, 0)
                    for line, wait_s in sorted(waits.items())
                )  # fmt: skip
                step += 1
                times.clear(), waits.clear(), counts.clear()


def line_of_number(track: Track, line: int) -> int:
    """The number of the group that a line counts."""
    return next((one.number for one in track.moves if one.line == line), 0)


def _whole(times: dict[str, float], start_s: float) -> dict[str, float]:
    names = ("duration_us", "own_us", "data_us", "snapshot_us", "collection_us", "norm_us",
             "optimizer_us", "num_passes")  # fmt: skip
    return {name: times.get(name, 0.0) for name in names} | {"start_us": start_s * 1e6}


def _name(kind: Kind) -> str:
    if kind in COMPUTE:
        return "own_us"
    return {
        Kind.STEP: "duration_us", Kind.DATA: "data_us", Kind.NORM: "norm_us",
        Kind.OPTIMIZER: "optimizer_us",
    }.get(kind, "else")  # fmt: skip


def _steps(moves: list[Move]) -> list[int]:
    found, step = [], 0
    for move in moves:
        found.append(step)
        step += move.what is What.END and move.kind is Kind.STEP
    return found


def _sequences(chance: random.Random, count: int) -> list[float]:
    """How much longer the sequences of each replica are, from 0 to 1, mostly little."""
    drawn = [chance.random() ** 3 for _ in range(count)]
    low, high = min(drawn), max(drawn)
    return [(one - low) / (high - low or 1.0) for one in drawn]
