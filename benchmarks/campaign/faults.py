"""Draws what goes wrong in a trace, and where: the truth that verdicts are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.common.plan.collectives import GroupKind, Op
from headway.common.plan.grid import AXES
from headway.common.plan.schedule import Kind

from benchmarks.campaign.program import Key, Layout, Move, What, group_of, step_of

NUM_STEPS = 2
"""Steps that are played: the fault is in the first, and ranks that pass it stop in the second."""
HOST = ("forward", "before collective", "data")
"""Where the host of a rank is held."""
PROCESS = ("stopped", "frozen", "gone")
FAULTS = (*HOST, "device", "device unknown", *PROCESS, "unreported", "op", "size", "skipped",
          "deadlock", "transport", "ended")  # fmt: skip
PAIRS = (*HOST, "stopped", "frozen", "gone")
"""Faults of which two at once are drawn."""
MAX_TRIES = 1000


@dataclass
class Trace:
    """A run with its fault."""

    seed: int
    layout: Layout
    programs: dict[int, list[Move]]
    sizes: dict[Key, int]
    base: dict[int, dict[int, int]]
    """Operations in one step, by rank and line."""
    on_device: bool = False
    """Whether hosts only launch work."""
    first_step: int = 0
    """The number of steps before."""
    faults: dict[int, str] = field(default_factory=dict)
    """Rank -> what happens to it; empty of a clean run, or if a group is at fault."""
    halts: dict[int, int] = field(default_factory=dict)
    stuck: dict[Key, int] = field(default_factory=dict)
    """Group -> operation, counted from the first of the steps that are played."""

    @property
    def kind(self) -> str:
        """For tables."""
        kinds = sorted(set(self.faults.values()))
        if self.stuck:
            kinds.append("transport")
        return " and ".join(kinds) if len(kinds) > 1 else (kinds or ["clean"])[0]


def draw_layout(chance: random.Random, most: int) -> Layout:
    """Degrees of 1 to 8 of at least 2 and ``most`` ranks, with a schedule that serves them."""
    for _ in range(MAX_TRIES):
        tp, pp, dp = (chance.randint(1, 8) for _ in range(3))
        if 2 <= tp * pp * dp <= most:
            break
    schedule = chance.choice(("gpipe", "1f1b", "zb-h1", "interleaved"))
    has_chunks = schedule == "interleaved" or (schedule == "1f1b" and pp == 1)
    vp = chance.randint(1, 4) if has_chunks else 1
    count = pp * chance.randint(1, 2) if has_chunks else chance.randint(1, 2 * pp)
    return Layout(tp, pp, dp, vp, schedule, count)


def draw(seed: int, most: int, *, clean: float = 0.4, pairs: float = 0.1) -> Trace:
    """The trace of a seed: ``clean`` and ``pairs`` are shares of all traces."""
    chance = random.Random(f"trace {seed}")
    share = chance.random()
    for _ in range(MAX_TRIES):
        trace = _without_fault(chance, seed, most)
        if share < clean:
            return trace
        is_pair = share < clean + pairs
        wanted = chance.sample(PAIRS, 2) if is_pair else [chance.choice(FAULTS)]
        if _put(chance, trace, wanted):
            return trace
    raise ValueError(f"seed {seed}: no layout has room for the fault")


def _without_fault(chance: random.Random, seed: int, most: int) -> Trace:
    layout = draw_layout(chance, most)
    return without_fault(layout, seed, chance.random() < 0.5, chance.choice((0, 1, 5, 40)))


def without_fault(
    layout: Layout, seed: int, on_device: bool, first_step: int, num_steps: int = NUM_STEPS
) -> Trace:
    """A clean run of a layout."""
    grid = layout.grid
    ranks = range(grid.world_size)
    programs = {rank: step_of(layout, rank, num_steps) for rank in ranks}
    keys = {move.key for moves in programs.values() for move in moves if move.what is What.ENTER}
    sizes = {key: len(group_of(grid, key)) for key in sorted(keys)}
    trace = Trace(seed, layout, programs, sizes, {}, on_device, first_step)
    for rank, moves in programs.items():
        counts: dict[int, int] = {}
        for move in moves:
            if move.what is What.ENTER:
                counts[move.line] = counts.get(move.line, 0) + 1
        trace.base[rank] = {line: count // num_steps for line, count in counts.items()}
    return trace


def _put(chance: random.Random, trace: Trace, wanted: Sequence[str]) -> bool:
    """Put the faults into a clean trace; False if it has no place for one."""
    ranks = chance.sample(sorted(trace.programs), min(len(wanted), len(trace.programs)))
    if len(ranks) < len(wanted):
        return False
    return all(
        _put_one(chance, trace, kind, rank) for kind, rank in zip(wanted, ranks, strict=True)
    )


def _put_one(chance: random.Random, trace: Trace, kind: str, rank: int) -> bool:
    if kind in ("device", "device unknown"):
        trace.on_device = True
    if kind == "deadlock":
        return _deadlock(chance, trace)
    if kind == "transport":
        return _transport(chance, trace)
    trace.faults[rank] = kind
    moves = trace.programs[rank]
    if kind in ("op", "size", "skipped"):
        return _other_program(chance, moves, kind)
    if kind == "ended":
        trace.programs[rank] = moves[: len(moves) // NUM_STEPS]
        return True
    places = [index for index in range(len(moves) // NUM_STEPS) if _fits(moves[index], kind)]
    if places:
        trace.halts[rank] = chance.choice(places)
    return bool(places)


def _fits(move: Move, kind: str) -> bool:
    """Whether a rank may be halted in a move by a fault of this kind."""
    if move.what is not What.WORK:
        return False
    if kind == "data":
        return move.kind is Kind.DATA
    if kind == "before collective":
        return move.kind is Kind.STEP
    if kind in ("forward", "device", "device unknown"):
        return move.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.OPTIMIZER)
    return True


def _other_program(chance: random.Random, moves: list[Move], kind: str) -> bool:
    """Change or leave out a collective of a group of more than one rank."""
    places = [
        index
        for index in range(len(moves) // NUM_STEPS)
        if moves[index].what is What.ENTER
        and moves[index].line < 2 * GroupKind.FORWARD
        and moves[index].key[0] is not GroupKind.EVERY_RANK
    ]
    if not places:
        return False
    index = chance.choice(places)
    move = moves[index]
    if kind == "op":
        other = Op.ALL_GATHER if move.op == Op.REDUCE_SCATTER else Op.REDUCE_SCATTER
        moves[index] = move._replace(op=int(other))
    elif kind == "size":
        moves[index] = move._replace(nbytes=move.nbytes // 2)
    else:
        moves[:] = [one for one in moves if one.ticket != move.ticket]
    return True


def _deadlock(chance: random.Random, trace: Trace) -> bool:
    """Two ranks across two axes gather along them in the other order at the end of the step."""
    grid = trace.layout.grid
    axes = [axis for axis in AXES if grid.degree(axis) > 1]
    if len(axes) < 2:
        return False
    one, other = sorted(chance.sample(range(len(axes)), 2))
    if other - one > 1:
        return False  # the axis between them would be in another order, too
    place = {axis: chance.randrange(grid.degree(axis)) for axis in AXES}
    shifted = dict(place)
    for axis in (axes[one], axes[other]):
        shifted[axis] = (place[axis] + 1) % grid.degree(axis)
    for coordinates in (place, shifted):
        rank = grid.rank(**coordinates)
        trace.faults[rank] = "deadlock"
        moves = trace.programs[rank]
        # of SUMS: the entry and the wait of each axis follow each other
        at = [i for i, m in enumerate(moves) if m.kind is Kind.SUMS and m.what is What.ENTER][1:]
        first, second = at[one], at[other]
        moves[first : second + 2] = moves[second : second + 2] + moves[first : first + 2]
    return True


def _transport(chance: random.Random, trace: Trace) -> bool:
    keys = [key for key in trace.sizes if key[0] is not GroupKind.EVERY_RANK]
    if not keys:
        return False
    key = chance.choice(sorted(keys))
    # lines differ between both ends of messages, but both have as many
    rank = group_of(trace.layout.grid, key)[0]
    trace.stuck[key] = chance.randint(1, trace.base[rank][2 * key[0]])
    return True
