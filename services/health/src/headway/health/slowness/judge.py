"""Judges a table of steps: one diagnosis for each thing that slows the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from headway.health.diagnosis.diagnosis import Diagnosis
from headway.health.slowness.findings import Slowness
from headway.health.slowness.moving import moving
from headway.health.slowness.nodes import of_its_node
from headway.health.slowness.notes import Note
from headway.health.slowness.parts import parts_of
from headway.health.slowness.sentences import diagnosis
from headway.health.slowness.spans import LEAST_STEPS
from headway.health.slowness.stages import slow_stages
from headway.health.slowness.steps import StepTable
from headway.health.slowness.stragglers import slow_units, stragglers
from headway.health.slowness.transfers import slow_transfers


def judge_steps(table: StepTable, notes: Sequence[Note] = ()) -> list[Diagnosis]:
    """What slows the run, the worst first; empty if the evidence does not suffice.

    What one straggler explains is not blamed on its stage, on the network or on noise.
    """
    return [diagnosis(one, table) for one in slowness_of(table, notes)]


def slowness_of(table: StepTable, notes: Sequence[Note] = ()) -> list[Slowness]:
    """The same, not yet in words."""
    if len(table.steps) < LEAST_STEPS:
        return []
    parts = parts_of(table)
    named = stragglers(table, parts)
    if named:
        parts = parts_of(_without(table, set(slow_units(named, table))))
    found = [*named, *slow_stages(table, parts), *slow_transfers(table, parts)]
    if not any(one.ranks for one in found):
        found += moving(table, parts)
    found.sort(key=lambda one: -one.excess)
    return [noted(of_its_node(one, table), table, notes) for one in found]


def _without(table: StepTable, units: set[int]) -> StepTable:
    """The table without the times of some tensor-parallel groups."""
    tp = table.grid.tp
    columns = [rank for unit in units for rank in range(unit * tp, (unit + 1) * tp)]
    times = {}
    for name, values in table.times.items():
        times[name] = values.copy()
        times[name][:, columns] = np.nan
    return replace(table, times=times)


def noted(one: Slowness, table: StepTable, notes: Sequence[Note]) -> Slowness:
    """Add what agents found on the nodes of these ranks, if it explains the cause."""
    nodes = set(table.nodes_of(one.ranks, one.until).tolist())
    fitting = tuple(note.text for note in notes if note.cause == one.cause and note.node in nodes)
    if not fitting:
        return one
    return replace(one, notes=fitting[:4], certainty=(1 + one.certainty) / 2)
