"""Finds the node that is slow: a rank that moves leaves its trouble behind or takes it along.

A fault of a node that was replaced is over, however late it was seen, and is the old node's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.spans import LEAST_STEPS
from headway.health.slowness.steps import StepTable


def of_its_node(one: Slowness, table: StepTable) -> Slowness:
    """Limit a slowness to the node on which it lasted; on a new one, it began there."""
    if not one.ranks:
        return one
    rows, ranks = table.within(one.since, one.until), list(one.ranks)
    last = table.nodes_of(one.ranks, one.until)
    among = table.nodes[rows][:, ranks]
    elsewhere = np.flatnonzero(((among >= 0) & (among != last)).all(axis=1))
    if len(elsewhere):
        moved = rows.start + int(elsewhere[-1]) + 1
        if rows.stop - moved < LEAST_STEPS:  # too few to blame the new node for
            return replace(one, until=int(table.steps[moved - 1]))
        before = table.nodes_of(one.ranks, int(table.steps[moved - 1]))
        names = ", ".join(map(str, np.unique(before).tolist()))
        why = f"it was slow on node {names} before as well"
        one = replace(one, since=int(table.steps[moved]), why=(*one.why, why))
    now_on = table.now_on[ranks]
    if one.until is None and rows.stop and ((last >= 0) & (last != now_on)).all():
        return replace(one, until=int(table.steps[rows.stop - 1]))
    return one
