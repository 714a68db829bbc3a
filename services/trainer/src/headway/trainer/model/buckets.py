"""Neighbouring layers of a chunk whose gradients travel together.

A chunk that is a whole pipeline stage would begin to reduce its gradients when its last backward
has ended, with nothing left to hide them under. Cut into buckets of whole layers, the gradients of
the last layers travel while those of the first are computed, as with Megatron-LM's and DDP's
buckets (Li et al., arXiv 2006.15704, section 3.2.3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.trainer.state.params import ParamSpec

BucketHook = Callable[[int], object]
"""Called with the number of a bucket in its chunk."""


@dataclass(frozen=True)
class Bucket:
    """Layers ``blocks`` of a chunk; the first bucket also has the embedding, the last the head."""

    blocks: range
    params: list[ParamSpec]
    """In the order of the flat buffers: split ones first, then those that tp replicates."""


def cut(specs: Mapping[ParamSpec, int], num_blocks: int, num_buckets: int) -> list[Bucket]:
    """Buckets of as many layers each, the last ones at most one more; one bucket has one at least.

    ``specs`` gives the layer of each parameter, counted in the chunk from 0.
    """
    count = min(num_buckets, max(1, num_blocks))
    starts = [number * num_blocks // count for number in range(count)]
    found: list[list[ParamSpec]] = [[] for _ in starts]
    for spec, block in specs.items():
        found[bisect_right(starts, block) - 1].append(spec)
    stops = [*starts[1:], num_blocks]
    return [
        Bucket(range(start, stop), sorted(params, key=lambda spec: spec.is_replicated))
        for start, stop, params in zip(starts, stops, found, strict=True)
    ]


@dataclass(slots=True)
class BucketComplete:
    """Waits on a tape behind the last weight gradient of a bucket, and calls ``hook`` there."""

    hook: BucketHook
    bucket: int

    def add(self) -> None:
        """Call it; everything that was queued before has been added."""
        self.hook(self.bucket)
