"""Which layers each virtual stage has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def stage_layers(layers: int, stages: int, counts: Sequence[int] = ()) -> list[range]:
    """The layers of each stage in order.

    Stage i has ``counts[i]`` layers; without ``counts`` the numbers are as equal as possible, and
    the first stages have one more.

    >>> stage_layers(6, 4)
    [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]
    """
    counts = counts or _even(layers, stages)
    return [range(*both) for both in pairwise((0, *accumulate(counts)))]


def balanced(layers: int, stages: int, head_layers: float) -> list[int]:
    """Layers of each stage such that the slowest is as fast as possible.

    The head takes as long as ``head_layers`` layers; the last stage may have none.

    >>> balanced(8, 4, 2.0)
    [3, 3, 2, 0]
    >>> balanced(10, 4, 2.0)
    [3, 3, 3, 1]
    """
    if stages == 1:
        return [layers]

    def slowest(last: int) -> float:
        return max(last + head_layers, *_even(layers - last, stages - 1))

    most = max(0, layers - (stages - 1))
    last = min(range(min(most, layers // stages) + 1), key=lambda n: (slowest(n), -n))
    return [*_even(layers - last, stages - 1), last]


def _even(layers: int, stages: int) -> list[int]:
    small, num_larger = divmod(layers, stages)
    return [small + (stage < num_larger) for stage in range(stages)]
