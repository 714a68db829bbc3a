"""What each rank did beyond what others of the same work do, part by part of a step.

Passes of tensor-parallel ranks contain the waits for each other: a group of them is compared as
one, by the shortest time of its members, as one whose data come late keeps only the others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from headway.common.plan.collectives import GroupKind
from headway.health.slowness.peers import median, median_of_others
from headway.health.slowness.steps import Floats, StepTable

Part = Literal["own", "data", "collection", "snapshot", "other"]
RECORDED: tuple[Part, ...] = ("data", "collection", "snapshot")
PARTS: tuple[Part, ...] = ("own", *RECORDED, "other")
_IN_OTHERS = (GroupKind.TP, GroupKind.EVERY_RANK, GroupKind.STAGE)
"""Their waits are inside of passes and of the norm."""
LEAST_MEMBERS = 1 / 2
"""Share of a tensor-parallel group that must be known in a step, and of each member's steps.
A missing one may be the one with the shortest time: where it is missing in few steps, what these
show is not lasting."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Excesses as a share of the usual time of the passes.

    By step, stage, replica and tensor-parallel rank. ``own`` is the same for all ranks of a
    tensor-parallel group.
    """

    excess: dict[Part, Floats]
    base_us: Floats
    """The usual time of the passes, by step, stage, replica and one."""
    unit_us: Floats
    """Time of the passes, by step, stage and replica."""
    stage_us: Floats
    """The median time of the passes, by step and stage."""


def parts_of(table: StepTable) -> Parts:
    """The excess of each part; NaN where it is not known, or there is nobody to compare with."""
    scale = _scale(table)
    own = np.asarray(table.by_place(table.times["own_us"]) * scale, np.float32)
    has_time = ~np.isnan(own)
    is_known = has_time.mean(axis=3) >= LEAST_MEMBERS
    is_known &= has_time.mean(axis=0).min(axis=-1, keepdims=False) >= LEAST_MEMBERS
    unit = np.where(is_known, np.fmin.reduce(own, axis=3), np.nan).astype(np.float32)
    others = median_of_others(unit)
    stage_us = median(unit, 2)
    base_us = np.where(np.isnan(others), stage_us[:, :, None], others)
    base_us = np.where(base_us > 0, base_us, np.nan)[..., None].astype(np.float32)
    own_excess = ((unit - others) / base_us[..., 0]).astype(np.float32)
    excess: dict[Part, Floats] = {"own": np.broadcast_to(own_excess[..., None], own.shape)}
    for part in RECORDED:
        values = table.by_place(table.times[f"{part}_us"])
        values = values * scale if part == "data" else values
        excess[part] = np.asarray((values - _usual(values)) / base_us, np.float32)
    other = table.by_place(_unrecorded(table)) * scale
    excess["other"] = np.asarray((other - _of_stage(other)) / base_us, np.float32)
    return Parts(excess, base_us, unit, stage_us)


def _scale(table: StepTable) -> Floats:
    """What times that grow with the passes are multiplied by: replicas may have unequally many.

    Every stage makes equally many, so the median of all does not depend on which rank is missing.
    """
    passes = table.by_place(table.times["num_passes"])
    known = np.where(passes > 0, passes, np.nan)
    usual = median(known.reshape(len(known), -1), 1)[:, None, None, None]
    return np.asarray(np.nan_to_num(usual / known, nan=1.0), np.float32)


def _usual(values: Floats) -> Floats:
    """By others of the stage, else by all others, else nothing."""
    flat = values.reshape(len(values), -1)
    # only the first and the last stage read data
    everybody = median_of_others(np.where(flat > 0, flat, np.nan)).reshape(values.shape)
    of_stage = _of_stage(values)
    return np.nan_to_num(np.where(np.isnan(of_stage), everybody, of_stage))


def _of_stage(values: Floats) -> Floats:
    """By others of the stage."""
    flat = values.reshape(*values.shape[:2], -1)
    return median_of_others(flat).reshape(values.shape)


def _unrecorded(table: StepTable) -> Floats:
    """Time of a step in which a rank neither worked nor waited, as far as is recorded."""
    times = table.times
    left = times["duration_us"].copy()
    for name in ("own_us", "data_us", "snapshot_us", "collection_us", "norm_us", "optimizer_us"):
        left -= times[name]
    for line, waits_us in table.waits_us.items():
        if line >> 1 not in _IN_OTHERS:
            left -= np.nan_to_num(waits_us)
    return left
