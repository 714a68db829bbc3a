"""Pipeline schedules as data: generate the compute order, lower it, validate it.

Not lazy, unlike other packages: ``generate``, ``lower`` and ``validate`` share names with their
modules, and only a function bound here, after its module was imported, stays the function. All of
it is a few small pure files.
"""

from __future__ import annotations

from headway.common.plan.schedule.actions import Action, Kind, Schedule
from headway.common.plan.schedule.generate import (
    bubble_fraction,
    forward_only,
    generate,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from headway.common.plan.schedule.lower import lower
from headway.common.plan.schedule.timeline import unit_timeline
from headway.common.plan.schedule.validate import Proof, validate

__all__ = [
    "Action",
    "Kind",
    "Proof",
    "Schedule",
    "bubble_fraction",
    "forward_only",
    "generate",
    "gpipe",
    "interleaved_1f1b",
    "lower",
    "one_f_one_b",
    "unit_timeline",
    "validate",
    "zb_h1",
    "zb_v",
]
