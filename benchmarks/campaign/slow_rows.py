"""Makes summaries of a run arrive as they do: lost, twice, in any order, of several generations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from headway.common.wire.messages.summaries import StepSum, StepSummary

from benchmarks.campaign.slow_draw import Draw

RANKS_PER_NODE = 4
SPARE = 9999
"""The node that takes the place of another one."""
LOST = (0.0, 0.01, 0.05, 0.2)
SILENT = (0, 0, 10)
"""Steps of which one node has sent nothing."""
REPEATED = 2
"""Steps that an older generation had made, and a newer one makes again."""


def spoiled(draw: Draw, steps: Iterable[StepSum]) -> Iterator[StepSummary]:
    """What a monitor has of these steps."""
    chance = random.Random(f"slow rows {draw.seed}")
    lost, silent = chance.choice(LOST), chance.choice(SILENT)
    silent_node = chance.randrange(draw.layout.grid.world_size) // RANKS_PER_NODE
    silent_from = draw.first_step + chance.randrange(5, 35)
    rows = [row for step in steps for row in _generations(draw, step)]
    chance.shuffle(rows)
    for row in rows:
        node = row.rank // RANKS_PER_NODE
        is_silent = silent_from <= row.step < silent_from + silent
        if chance.random() < lost or (is_silent and node == silent_node):
            continue
        for _ in range(2 if chance.random() < lost else 1):
            yield StepSummary(
                run_id="0badcafe", node=_node(draw, row), pid=1, boot_id="b", sequence=1,
                num_dropped=0, steps=(row,),
            )  # fmt: skip


def _generations(draw: Draw, row: StepSum) -> Iterator[StepSum]:
    begins = draw.first_step + draw.replaced_at
    if row.step < begins:
        yield row
        return
    if row.step < begins + REPEATED:  # were they judged, its rank would be named
        yield row._replace(own_us=row.own_us * (2 if row.rank == draw.rank else 1))
    yield row._replace(generation=1)


def _node(draw: Draw, row: StepSum) -> int:
    node = row.rank // RANKS_PER_NODE
    return SPARE if row.generation and node == draw.rank // RANKS_PER_NODE else node
