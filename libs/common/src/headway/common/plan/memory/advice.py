"""Which settings lower the memory of the rank that needs most, and by how many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.common.errors import ConfigError
from headway.common.plan.memory.predict import RankMemory, worst
from headway.common.plan.memory.shape import MemoryShape

MOST = 3
"""Suggestions that a message names."""


@dataclass(frozen=True)
class Saving:
    """One change of the configuration; ``nbytes`` of the worst rank that it saves."""

    change: str
    nbytes: int


def advise(shape: MemoryShape, most: int = MOST) -> list[Saving]:
    """The changes that save most, the largest first; none that saves nothing.

    Each is judged alone, by the same formula as the prediction. Changes of the grid need other
    numbers of ranks.
    """
    now = worst(shape).total
    found = []
    for change, other in _changes(shape):
        try:
            found.append(Saving(change, now - worst(other).total))
        except (ConfigError, ZeroDivisionError):
            continue  # this schedule or model does not divide so
    useful = [saving for saving in found if saving.nbytes > 0]
    return sorted(useful, key=lambda saving: -saving.nbytes)[:most]


def describe(memory: RankMemory) -> str:
    """The parts on one line: ``activations 276.5 MiB, optimizer ...``."""
    return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in memory.parts().items() if nbytes)


def size(nbytes: int) -> str:
    """A size for people, in MiB or GiB."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 10 << 30 else f"{nbytes / 2**20:.0f} MiB"


def _changes(shape: MemoryShape) -> Iterator[tuple[str, MemoryShape]]:
    grid, model = shape.grid, shape.model
    if shape.micro_batch_size % 2 == 0:
        half = shape.micro_batch_size // 2
        smaller = replace(
            shape, micro_batch_size=half, num_micro_batches=2 * shape.num_micro_batches
        )
        yield f"train.micro_batch_size={half}", smaller
    for mode in ("selective", "full"):
        if shape.recompute != "full" and mode != shape.recompute:
            yield f"train.recompute={mode}", replace(shape, recompute=mode, recompute_layers=())
    sizes = (shape.heads, model.ffn, model.vocab_size, model.seq_len)
    tp, kv_heads = 2 * grid.tp, model.kv_heads or shape.heads
    if not any(n % tp for n in sizes) and (kv_heads % tp == 0 or tp % kv_heads == 0):
        yield f"parallel.tp={tp}", replace(shape, grid=replace(grid, tp=tp))
    if model.layers % (2 * grid.pp * grid.vp) == 0:
        yield f"parallel.pp={2 * grid.pp}", replace(shape, grid=replace(grid, pp=2 * grid.pp))
    if shape.num_micro_batches % 2 == 0:
        wider = replace(grid, dp=2 * grid.dp)
        fewer = replace(shape, grid=wider, num_micro_batches=shape.num_micro_batches // 2)
        yield f"parallel.dp={2 * grid.dp}", fewer
    if shape.schedule in ("zb-h1", "gpipe"):
        yield "parallel.schedule=1f1b", replace(shape, schedule="1f1b")
    if shape.schedule == "zb-v":
        whole = replace(grid, vp=1, is_v=False)
        yield "parallel.schedule=1f1b", replace(shape, schedule="1f1b", grid=whole)
