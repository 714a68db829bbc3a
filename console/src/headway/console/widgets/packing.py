"""Flight records as the few bytes that the page draws, thinned to a budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.console.widgets.tail import Records

BAR = np.dtype(
    [
        ("start_us", "<u4"),  # after the second that goes with the bytes
        ("span_us", "<u4"),
        ("rank", "<u2"),
        ("micro_batch", "u1"),  # 255 = none
        ("kind", "u1"),  # plan.schedule.actions.Kind, + 128 for a wait
    ]
)
NO_MICRO_BATCH = 255
WAITS = 128
MAX_BARS = 2500
"""Bars of one picture: 30 kB."""
MAX_BARS_RELOADED = 20_000
"""Bars that a page gets when it is loaded anew."""
HIDDEN = Kind.STEP
"""A frame around the others; it would hide them."""


def pack(records: Records, limit: int = MAX_BARS) -> tuple[float, bytes]:
    """The second on the run's clock that times count from, and rows of ``BAR``.

    Above ``limit`` the longest action of each rank and stretch of time stands for the others there.
    """
    shown = records.where((records.rows["kind"] != HIDDEN) & (records.rows["end_ns"] > 0))
    if not len(shown):
        return 0.0, b""
    start = shown.rows["start_ns"].astype(np.int64)
    span = shown.rows["end_ns"].astype(np.int64) - start
    waits = (shown.rows["flags"] & WAITING) > 0
    chosen = _longest(shown.ranks, waits, start, span, limit)
    shown, start, span, waits = shown.where(chosen), start[chosen], span[chosen], waits[chosen]
    base_ns = int(start.min())
    micro_batch = shown.rows["micro_batch"]
    bars = np.empty(len(shown), BAR)
    bars["start_us"] = np.minimum((start - base_ns) // 1000, 2**32 - 1)
    bars["span_us"] = np.clip(span // 1000, 1, 2**32 - 1)
    bars["rank"] = np.minimum(shown.ranks, 2**16 - 1)
    has_one = (micro_batch >= 0) & (micro_batch < NO_MICRO_BATCH)
    bars["micro_batch"] = np.where(has_one, micro_batch, NO_MICRO_BATCH)
    bars["kind"] = shown.rows["kind"] + np.where(waits, WAITS, 0).astype(np.uint8)
    return base_ns * 1e-9, bars.tobytes()


def pack_window(
    parts: Sequence[Records], from_ns: int, to_ns: int, window_s: float
) -> tuple[dict[str, float], bytes]:
    """The actions between two moments as ``pack`` does: what belongs to the bytes, and the bytes.

    ``since_s`` is the first moment from which all that began is there: what came before
    ``window_s`` is no longer kept, but for long actions that ended later.
    """
    records = Records.merge(parts)
    start, end = (records.rows[name].astype(np.int64) for name in ("start_ns", "end_ns"))
    newest_ns = int(start.max()) if len(start) else to_ns
    since_ns = max(int(start.min()), newest_ns - int(window_s * 1e9)) if len(start) else to_ns
    base_s, bars = pack(records.where((start < to_ns) & (end > from_ns)), MAX_BARS_RELOADED)
    return {"base_s": base_s, "since_s": since_ns * 1e-9}, bars


def _longest(
    ranks: npt.NDArray[np.int64],
    waits: npt.NDArray[np.bool_],
    start: npt.NDArray[np.int64],
    span: npt.NDArray[np.int64],
    limit: int,
) -> npt.NDArray[np.bool_]:
    chosen = np.ones(len(start), bool)
    if len(start) <= limit:
        return chosen
    names, lane = np.unique(ranks * 2 + waits, return_inverse=True)
    since = start - start.min()
    length = int(since.max()) + 1
    # so wide that even full lanes stay within the limit; then narrower, as long as they do
    width = -(-length * len(names) // max(1, limit - len(names)))
    for _ in range(4):
        cell = lane * (length // width + 1) + since // width
        longest = np.zeros(len(names) * (length // width + 1), np.int64)
        np.maximum.at(longest, cell, span)
        place = np.flatnonzero(span == longest[cell])
        _, first = np.unique(cell[place], return_index=True)
        if len(first) > limit and not chosen.all():
            break
        chosen = np.zeros(len(start), bool)
        chosen[place[first]] = True
        if width == 1 or len(first) > limit // 2:
            break
        width = -(-width // 3)
    return chosen
