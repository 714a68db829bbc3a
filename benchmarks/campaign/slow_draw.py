"""Draws what slows a played run, how much and since when: the truth that findings are held to."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule import Kind

from benchmarks.campaign.faults import draw_layout
from benchmarks.campaign.program import Layout

Slow = Literal[
    "compute", "data", "garbage_collection", "checkpoint_write", "host_stall", "network",
    "stage_imbalance", "sequence_imbalance", "host_noise", "launch_skew",
]  # fmt: skip
SLOW: tuple[Slow, ...] = (
    "compute", "compute", "compute", "network", "data", "garbage_collection", "checkpoint_write",
    "host_stall", "stage_imbalance", "sequence_imbalance", "host_noise", "launch_skew",
)  # fmt: skip
"""Stragglers that compute slowly are the most frequent."""
PARTS = ("data", "garbage_collection", "checkpoint_write")
"""They are drawn on all ranks, too."""
OF_RANK = ("compute", "host_stall", "network", *PARTS)
FACTORS = (1.1, 1.2, 1.5, 2.0)
NUM_STEPS = 50
ONSETS = (12, 30)
ALWAYS = 0.3
FATES = ("lasts", "lasts", "ends", "replaced")
"""Of what one rank does: the node of one that is replaced is another one in a new generation."""
LASTED = (14, 22)
"""Steps after which what ends has ended."""
REPLACED = (30, 36)
JITTERS = (0.003, 0.01, 0.02, 0.04)
UNEVEN = (1.0, 1.0, 1.15, 1.3)
"""How many times as long passes of the first or the last stage are, from the beginning."""
MAX_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Draw:
    """One run."""

    seed: int
    layout: Layout
    first_step: int
    kind: Slow | None
    """None of a clean run."""
    factor: float = 1.0
    """How many times as long the passes of a step seem to take."""
    rank: int = -1
    """-1 where no rank is at fault."""
    stage: int = -1
    since: int = 0
    """Of the steps that are played."""
    until: int = NUM_STEPS
    """The first step after it."""
    replaced_at: int = NUM_STEPS
    """The first step of a new generation, in which the rank's node is another one."""
    uneven: tuple[int, float] = (-1, 1.0)
    """A stage that has more to do, whatever else happens, and how much."""
    jitter: float = 0.01
    """By which a rank's steps differ."""
    pace: float = 0.01
    """By which ranks differ."""
    ramp: float = 0.0
    """Growth of all passes over the whole run, as of longer sequences."""
    snapshots: int = 0
    """Steps between checkpoints for which all ranks wait; 0 without."""

    @property
    def ranks(self) -> frozenset[int]:
        """Who may be named: of a pass, any of those that wait for each other in it."""
        grid = self.layout.grid
        if self.rank < 0:
            return frozenset()
        if self.kind == "compute":
            return frozenset(grid.group("tp", self.rank))
        if self.kind == "network":
            return frozenset(grid.group("dp", self.rank))
        return frozenset({self.rank})


def draw(seed: int, most: int, *, clean: float = 0.4) -> Draw:
    """The run of a seed, of up to ``most`` ranks."""
    chance = random.Random(f"slow {seed}")
    is_clean = chance.random() < clean
    kind, factor = chance.choice(SLOW), chance.choice(FACTORS)
    for _ in range(MAX_TRIES):
        layout = draw_layout(chance, most)
        if is_clean or _has_room(layout, kind):
            break
    made = Draw(
        seed, layout, chance.choice((0, 7, 400)), None, uneven=_uneven(chance, layout),
        jitter=chance.choice(JITTERS), pace=chance.choice((0.003, 0.01)),
        ramp=chance.choice((0.0, 0.0, 0.5)), snapshots=chance.choice((0, 10)),
    )  # fmt: skip
    return made if is_clean else _slowed(chance, made, kind, factor)


def _slowed(chance: random.Random, made: Draw, kind: Slow, factor: float) -> Draw:
    grid = made.layout.grid
    stage, rank = chance.randrange(grid.pp), chance.randrange(grid.world_size)
    is_everywhere = kind not in OF_RANK or (kind in PARTS and chance.random() < 0.3)
    if kind == "data" and not is_everywhere:
        rank = chance.randrange(grid.tp * grid.dp)  # of the first stage, which reads
    fate = "lasts" if is_everywhere else chance.choice(FATES)
    # without replicas a rank is known by its own time before or after alone
    needs_history = kind == "network" or (kind == "compute" and grid.dp == 1)
    is_always = kind == "stage_imbalance" or is_everywhere or (
        chance.random() < ALWAYS and (not needs_history or fate == "ends")
    )  # fmt: skip
    since = 0 if is_always else chance.randint(*ONSETS)
    until = replaced_at = NUM_STEPS
    if fate == "ends":
        since = min(since, 16)
        until = since + chance.randint(*LASTED)
    elif fate == "replaced":
        since = min(since, 14)
        until = replaced_at = chance.randint(*REPLACED)
    is_of_stage = kind == "stage_imbalance"
    return replace(
        made, kind=kind, factor=factor, rank=-1 if is_everywhere else rank,
        stage=stage if is_of_stage else -1, since=since, until=until, replaced_at=replaced_at,
        uneven=(-1, 1.0) if is_of_stage else made.uneven,
    )  # fmt: skip


def _uneven(chance: random.Random, layout: Layout) -> tuple[int, float]:
    factor, stage = chance.choice(UNEVEN), chance.choice((0, layout.pp - 1))
    return (stage, factor) if layout.pp > 1 and factor > 1 else (-1, 1.0)


def _has_room(layout: Layout, kind: Slow) -> bool:
    """Whether it can be known by what is recorded."""
    if kind == "compute":
        return layout.dp > 1 or layout.pp > 1
    if kind in ("host_noise", "launch_skew"):
        return layout.dp > 1 and layout.dp * layout.pp > 3
    if kind == "sequence_imbalance":  # stages that are slow together show it, or many replicas
        return layout.dp > 1 and (layout.pp > 1 or layout.dp > 3)
    if kind == "network":
        return layout.dp > 1
    if kind == "stage_imbalance":
        return layout.pp > 1
    return kind in PARTS or layout.tp * layout.dp > 1


EXTRA_AT: dict[Slow, Kind] = {
    "data": Kind.DATA, "garbage_collection": Kind.OPTIMIZER, "checkpoint_write": Kind.OPTIMIZER,
    "host_stall": Kind.STEP, "launch_skew": Kind.STEP,
}  # fmt: skip
"""In which work of a step the time is lost that is not lost in passes."""
SLOW_GROUPS = (GroupKind.DP, GroupKind.FORWARD, GroupKind.BACKWARD)
"""Those of a rank whose network is slow."""
