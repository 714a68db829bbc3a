"""Compares values with the median of the others that do the same work."""

from __future__ import annotations

import numpy as np
from headway.health.slowness.steps import Floats


def median_of_others(values: Floats) -> Floats:
    """Median of the others for each value along the last axis; NaN without any.

    NaNs count for nobody, and their place gets NaN.
    """
    order = np.argsort(values, axis=-1)  # NaNs come last
    ordered = np.take_along_axis(values, order, -1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(values.shape[-1]), order.shape), -1)
    left = (~np.isnan(values)).sum(-1, keepdims=True) - 1
    low, high = np.maximum(left - 1, 0) // 2, np.maximum(left, 0) // 2
    pair = [
        np.take_along_axis(ordered, np.minimum(at + (at >= place), values.shape[-1] - 1), -1)
        for at in (low, high)
    ]
    found = np.asarray((pair[0] + pair[1]) / 2, np.float32)
    found[np.isnan(values) | (left < 1)] = np.nan
    return found


def median(values: Floats, axis: int) -> Floats:
    """The median without NaNs; NaN where nothing is known.

    ``numpy.nanmedian`` takes a call per row where an axis is short.
    """
    ordered = np.sort(values, axis=axis)
    known = np.expand_dims((~np.isnan(values)).sum(axis), axis)
    if not values.shape[axis]:
        return np.full(known.squeeze(axis).shape, np.nan, np.float32)
    low, high = np.maximum(known - 1, 0) // 2, np.minimum(known // 2, values.shape[axis] - 1)
    pair = np.take_along_axis(ordered, low, axis), np.take_along_axis(ordered, high, axis)
    return np.asarray((pair[0] + pair[1]) / 2, np.float32).squeeze(axis)


def spread(values: Floats) -> float:
    """Standard deviation by the median of distances from the median; 0 if nothing is known."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0
    return 1.4826 * float(np.median(np.abs(known - np.median(known))))
