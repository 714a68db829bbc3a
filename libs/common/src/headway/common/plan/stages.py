"""Which layers each virtual stage has."""

from __future__ import annotations


def stage_layers(layers: int, stages: int) -> list[range]:
    """The layers of each stage in order, as equal as possible; the first ones have one more.

    >>> stage_layers(6, 4)
    [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]
    """
    small, num_larger = divmod(layers, stages)
    found, start = [], 0
    for stage in range(stages):
        stop = start + small + (stage < num_larger)
        found.append(range(start, stop))
        start = stop
    return found
