"""What slows a run although no rank stays slow: somebody else in every step, or all at once."""

from __future__ import annotations

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.parts import RECORDED, Part, Parts
from headway.health.slowness.peers import median
from headway.health.slowness.spans import LEAST, noise
from headway.health.slowness.steps import Floats, StepTable
from headway.health.slowness.stragglers import CAUSES, WORDS

LEAST_SPREAD = 0.03
"""Least spread of replicas' passes in one step: less is the jitter of a healthy machine."""
NOISY = 0.12
"""Spread of passes that no healthy machine has, whether or not single steps stand out."""
LEAST_OF_ONE = 0.8
"""Share of the time lost to a part from which on one rank alone is named for it."""
LEAST_SECOND = 0.12
"""Share of the longest replica's excess in a step that the second has, if lengths differ."""
OVER_JITTER = 1.5
"""How many times what symmetric jitter would cost the replicas of one stage lose, if lengths
differ: most sequences are short, and few are long."""
SPIKE = 4.0
"""Standard deviations from which on a step of a rank is a spike."""
LEAST_GROWTH, LEAST_SKEW_GROWTH = 0.02, 0.06
"""Least growths of steps, and of how much later the last rank is than the first one.

Steps grow less where pipeline bubbles hide a late rank."""
LEAST_ORDER = 0.45
"""Rank correlation of a growth with the number of the step."""
MOVING_STEPS = 10
CERTAINTY = 0.97
"""Certainty of these findings: 35 of 36 were right in played runs (``benchmarks.campaign``, seeds
from 5000)."""
LEAST_TIMES, LEAST_SPAN = 3, 6
"""How often a part takes long, and over how many steps, to be more than chance."""


def moving(table: StepTable, parts: Parts) -> list[Slowness]:
    """At most one for each of: the passes, the recorded parts, and a growth of all steps."""
    if len(table.steps) < MOVING_STEPS:
        return []
    found = [one for part in RECORDED if (one := _of_part(table, parts, part)) is not None]
    # what grows is noise as well, and more
    found += [one for one in [_decline(table, parts) or _of_passes(table, parts)] if one]
    return sorted(found, key=lambda one: -one.excess)


def _of_part(table: StepTable, parts: Parts, part: Part) -> Slowness | None:
    """A part that takes long in some steps of a rank, on all ranks, or on others every time.

    Ranks wait for the slowest of them, so each step loses the largest time of any.
    """
    values = table.by_place(table.times[f"{part}_us"]) / parts.base_us
    known = values.reshape(len(values), -1)
    flat = np.nan_to_num(known)
    by_rank = flat.sum(axis=0)
    worst = int(by_rank.argmax())
    is_of_one = flat.shape[1] > 1 and by_rank[worst] >= LEAST_OF_ONE * by_rank.sum()
    if is_of_one and (one := _of_one(table, part, known[:, worst], worst)) is not None:
        return one
    largest = flat.max(axis=1)
    lost = float(largest.mean())
    count = int((largest > LEAST).sum())
    if lost < LEAST or count < LEAST_TIMES:
        return None
    reads = flat[:, by_rank > 0]
    is_common = float(np.median(reads, axis=1).mean()) > lost / 2
    who = "on all ranks alike" if is_common else f"on other ranks in each of {count} steps"
    return Slowness(
        CAUSES[part], (), lost, None, None, CERTAINTY, why=(f"{_cost(part, lost)}, {who}",),
        alternatives=(("a few ranks that are slow now and then", 1.0),),
    )  # fmt: skip


def _of_one(table: StepTable, part: Part, values: Floats, rank: int) -> Slowness | None:
    """A part that takes long on one rank, from first to last; unknown steps do not count."""
    times = np.flatnonzero(np.nan_to_num(values) > LEAST)
    if len(times) < LEAST_TIMES or times[-1] - times[0] < LEAST_SPAN:
        return None
    first, last = int(times[0]), int(times[-1])
    lost = float(np.nanmean(values[first:last]))  # as many times as pauses between them
    if lost < LEAST:
        return None
    return Slowness(
        CAUSES[part], (rank,), lost, table.first_step(first),
        int(table.steps[last]) if last < len(values) - MOVING_STEPS else None, CERTAINTY,
        why=(f"{_cost(part, lost)} in {len(times)} steps of this rank alone",),
        alternatives=(("chance", 1.0),),
    )  # fmt: skip


def _cost(part: Part, lost: float) -> str:
    return f"{WORDS[part]} cost {lost:.0%} of the time of the passes"


def _of_passes(table: StepTable, parts: Parts) -> Slowness | None:
    """Passes of which the slowest replica differs from step to step."""
    own = parts.excess["own"][..., 0]
    if table.grid.dp < 2:
        return None
    host = _with_other(parts)
    flat = host.reshape(len(host), -1)
    lost = float(np.nan_to_num(np.fmax.reduce(flat, axis=1)).mean())
    if lost < LEAST:
        return None
    passes = own.reshape(len(own), -1)
    sigma = noise(passes)
    together = _together(own)
    if together is None:  # one stage does not show what a replica's stages have in common
        is_lengths = lost > OVER_JITTER * _symmetric(passes) and not _has_spikes(passes)
    else:
        is_lengths = together >= 0.5
    if sigma >= LEAST_SPREAD and is_lengths:
        return Slowness(
            "sequence_imbalance", (), lost, None, None, CERTAINTY,
            why=(f"passes of replicas differ by {sigma:.0%} within a step, and no rank stays slow",
                 f"each step loses {lost:.0%} to the slowest of them",
                 *(() if together is None else
                   (f"the stages of a replica are slow together (correlation {together:.2f})",))),
            alternatives=(("noise of the hosts", 1.0),),
        )  # fmt: skip
    spikes = _spikes(flat)
    if float(np.where(spikes, flat, 0).max(1).mean()) >= LEAST:
        what = f"{int(spikes.sum())} single steps of {int(spikes.any(0).sum())} ranks took longer"
    elif together is not None and sigma >= NOISY:  # and no replica's stages are slow together
        what = f"passes of each rank differ by {sigma:.0%} from step to step"
    else:
        return None
    return Slowness(
        "host_noise", (), lost, None, None, CERTAINTY,
        why=(what, f"each step loses {lost:.0%} to them, and no rank stays slow"),
        alternatives=(("data of very different lengths", 1.0),),
    )  # fmt: skip


def _with_other(parts: Parts) -> Floats:
    """The excess of passes and of what no record names, together."""
    other = np.nan_to_num(parts.excess["other"].max(axis=3))
    return np.asarray(parts.excess["own"][..., 0] + other, np.float32)


def _spikes(flat: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    limit = max(SPIKE * max(_jitter(flat), 0.01), LEAST)
    return np.asarray(np.nan_to_num(flat) > limit)


def _jitter(flat: Floats) -> float:
    """Standard deviation of most values, by the quarter of them that is next to the median.

    Of two replicas half of the values may be spikes: each makes the other one look as short.
    """
    known = flat[~np.isnan(flat)]
    if not len(known):
        return 0.0
    # a quarter of normal values are within 0.32 deviations
    return float(np.quantile(np.abs(known - np.median(known)), 0.25)) / 0.3186


def _symmetric(passes: Floats) -> float:
    """What a step loses to jitter that is as far above the others as the shortest is below them."""
    return float(-np.nan_to_num(np.fmin.reduce(passes, axis=1)).mean())


def _has_spikes(flat: Floats) -> bool:
    """Whether only one replica is longer in each step, of more than two."""
    if flat.shape[1] < 3:
        return False
    second, first = np.moveaxis(np.sort(np.nan_to_num(flat), axis=1)[:, -2:], 1, 0)
    return float(np.median(second / np.maximum(first, LEAST))) < LEAST_SECOND


def _together(own: Floats) -> float | None:
    """Correlation of a replica's stages in the same step; None of a single stage."""
    if own.shape[1] < 2:
        return None
    first = own[:, :-1].ravel()
    second = own[:, 1:].ravel()
    known = ~np.isnan(first) & ~np.isnan(second)
    if known.sum() < MOVING_STEPS:
        return None
    # of ranks, which no spike dominates
    pair = [_order(values[known]) for values in (first, second)]
    return float(np.corrcoef(pair[0], pair[1])[0, 1])


def _order(values: Floats) -> Floats:
    found = np.empty(len(values), np.float32)
    found[np.argsort(values)] = np.arange(len(values))
    return found


def _decline(table: StepTable, parts: Parts) -> Slowness | None:
    """Steps that grow while passes do not: ranks launch collectives ever further apart."""
    duration = median(table.times["duration_us"], 1)
    passes = median(parts.stage_us, 1)
    other = parts.excess["other"].reshape(len(duration), -1)
    skew = np.fmax.reduce(other, axis=1)
    third = len(duration) // 3
    grown_us = _middle(duration[-third:]) - _middle(duration[:third])
    own_us = _middle(passes[-third:]) - _middle(passes[:third])
    growth = float((grown_us - own_us) / max(_middle(passes), 1.0))
    skew_growth = float(_middle(skew[-third:]) - _middle(skew[:third]))
    known = ~np.isnan(duration) & ~np.isnan(skew)
    if known.sum() < MOVING_STEPS:
        return None
    number = np.arange(known.sum(), dtype=np.float32)
    order = float(np.corrcoef(_order(skew[known]), number)[0, 1])
    if growth < LEAST_GROWTH or skew_growth < LEAST_SKEW_GROWTH or order < LEAST_ORDER:
        return None
    latest = len(np.unique(np.nanargmax(np.nan_to_num(other[-third:]), axis=1)))
    if latest < 3 and other.shape[1] > 2:
        return None
    return Slowness(
        "launch_skew", (), growth, None, None, CERTAINTY,
        why=(f"steps, but not passes, grew by {growth:.0%} of the passes in {len(duration)} steps",
             f"the last rank enters collectives ever later after the others (by {skew_growth:.0%})",
             f"it is another one each time ({latest} ranks in the last {third} steps)"),
        alternatives=(("noise of the hosts", 0.7), ("chance", 0.3)),
    )  # fmt: skip


def _middle(values: Floats) -> float:
    return float(np.nanmedian(values)) if not np.isnan(values).all() else 0.0
