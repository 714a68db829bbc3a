"""Groups whose collectives take long although all members have entered them: the network.

The member that enters last waits for nobody, so the shortest wait in a group is its transfer. That
needs no clock, and a late rank does not change it.
"""

from __future__ import annotations

import numpy as np
from headway.common.plan.collectives import GroupKind
from headway.health.slowness.findings import Slowness
from headway.health.slowness.parts import Parts
from headway.health.slowness.peers import median, median_of_others
from headway.health.slowness.spans import raised, usual
from headway.health.slowness.steps import Floats, StepTable

LEAST_KNOWN = 2 / 3
"""Share of a group's members that must be known: the missing one may be the last to enter."""
LEAST_TRANSFER = 0.04
"""Least excess as a share of the passes' time: some of a transfer is hidden behind them."""
RECEIVES = (2 * GroupKind.FORWARD + 1, 2 * GroupKind.BACKWARD + 1)


def slow_transfers(table: StepTable, parts: Parts) -> list[Slowness]:
    """Data-parallel groups with long transfers.

    Of each, the rank whose pipeline has late messages as well, if there is one.
    """
    excess = excess_of_transfers(table, parts)
    if excess is None:
        return []
    spans = raised(excess, LEAST_TRANSFER)
    found = []
    for group in np.flatnonzero(spans.is_raised).tolist():
        stage, tp = divmod(group, table.grid.tp)
        start, end = int(spans.start[group]), int(spans.end[group])
        replica = _late_replica(table, parts, tp, start, end)
        members = table.grid.group("dp", stage * table.grid.dp * table.grid.tp + tp)
        ranks = members if replica is None else (members[replica],)
        level = float(spans.level[group])
        name = f"data-parallel group {members[0]}"
        why = [
            f"after its last member has entered, a collective of {name} takes long",
            f"that costs {level:.0%} of the time of the passes more than usual",
        ]
        if replica is not None:
            why.append(f"messages of the same pipeline, of replica {replica}, are late as well")
        found.append(Slowness(
            "network", ranks, level, table.first_step(start), table.last_step(end), 0.97,
            is_one_of=replica is None, place="" if replica is not None else name,
            why=tuple(why),
            alternatives=(("a switch between several of them", 0.6), ("chance", 0.4)),
        ))  # fmt: skip
    return found


def excess_of_transfers(table: StepTable, parts: Parts) -> Floats | None:
    """By step and group, how much longer a transfer takes than in the others; None without any.

    Of a single group, than it usually does. The groups are in the order of stages, and of
    tensor-parallel ranks within.
    """
    if table.grid.dp < 2 or 2 * GroupKind.DP not in table.waits_us:
        return None
    waits = table.by_place(table.waits(2 * GroupKind.DP))
    known = (~np.isnan(waits)).mean(axis=2) >= LEAST_KNOWN
    shortest = np.where(known, np.fmin.reduce(waits, axis=2), np.nan)
    base = median(np.moveaxis(parts.base_us[..., 0], 2, -1), -1)
    transfer = (shortest / base[..., None]).astype(np.float32)
    flat = transfer.reshape(len(transfer), -1)
    others = median_of_others(flat) if flat.shape[1] > 1 else usual(flat)
    return (flat - others).astype(np.float32)


def _late_replica(table: StepTable, parts: Parts, tp: int, start: int, end: int) -> int | None:
    """The only replica whose stages wait longer for each other's messages than others do."""
    late = np.zeros((end - start, table.grid.dp), np.float32)
    for line in RECEIVES:
        if line in table.waits_us:
            waits = table.by_place(table.waits(line))[start:end, :, :, tp]
            excess = (waits - median_of_others(waits)) / parts.base_us[start:end, :, :, 0]
            late += np.nan_to_num(excess).sum(axis=1)
    level: Floats = median(late, 0)
    order = np.argsort(level)
    first, second = float(level[order[-1]]), float(level[order[-2]])
    return int(order[-1]) if first > 0.02 and first > 2 * max(second, 0.0) else None
