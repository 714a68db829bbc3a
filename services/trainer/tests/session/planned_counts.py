"""How often a training step enters each of a rank's groups, from its plan alone.

Counted from the schedule's actions and the layers, not from what the code calls: per block one
gather and one sum in each of attention and MLP, and what their gradients need.
"""

from __future__ import annotations

from collections import Counter

from headway.common.plan.collectives import LANES, GroupKind
from headway.common.plan.schedule.actions import Action, Kind
from headway.trainer.config import RunConfig
from headway.trainer.pipeline.schedules import training_schedule

FORWARD_OF_A_LAYER = {"serial": 4, "parallel": 2}
BACKWARD_OF_A_LAYER = {"serial": 6, "parallel": 3}
"""What the forward needs, in reverse, and to gather again what enters a layer."""
INPUT_GRADIENT_OF_A_LAYER = {"serial": 4, "parallel": 2}
WEIGHT_GRADIENT_OF_A_LAYER = {"serial": 4, "parallel": 3}
"""Later on, what the input's gradient has gathered is gathered again, by each product."""
GATHERED_AGAIN = {"serial": 2, "parallel": 1}
"""Of the backward's: what enters a layer, which is there already if the whole is kept."""


def planned_counts(config: RunConfig, rank: int) -> dict[int, int]:
    """Collectives and messages of one step by line of the group table; without those at zero."""
    parallel, grid = config.parallel, config.parallel.grid
    place = grid.coordinates(rank)
    number = config.micro_batches_of(config.train.global_batch_size, place.dp)
    schedule = training_schedule(
        parallel.schedule, grid, number, all_read=config.model.every_stage_reads
    )
    found: Counter[int] = Counter()

    def enter(kind: GroupKind, size: int, count: int = 1, *, receives: bool = False) -> None:
        if size > 1:
            found[2 * kind + receives] += count

    def over_axes(kind: GroupKind, **sizes: int) -> None:
        enter(kind, max(sizes.values()))
        for axis, size in sizes.items():
            enter(GroupKind[axis.upper()], size)

    for action in schedule.ranks[place.pp]:
        match action.kind:
            case Kind.ALL_GATHER:
                enter(GroupKind.DP, grid.dp, _buckets(config, place.pp, action))
            case Kind.REDUCE_SCATTER:
                enter(GroupKind.DP, grid.dp, _buckets(config, place.pp, action))
                # the gradients that every tp rank holds
                enter(GroupKind.TP, grid.tp, _buckets(config, place.pp, action))
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                way = "forward" if action.kind is Kind.SEND_FORWARD else "backward"
                enter(LANES[way, action.peer > place.pp], 2)
            case Kind.RECV_FORWARD | Kind.RECV_BACKWARD:
                way = "forward" if action.kind is Kind.RECV_FORWARD else "backward"
                enter(LANES[way, place.pp > action.peer], 2, receives=True)
            case Kind.NORM:
                for _ in ("sums", "agreement"):
                    over_axes(GroupKind.EVERY_RANK, tp=grid.tp, dp=grid.dp, pp=grid.pp)
            case Kind.OPTIMIZER if config.optim.name == "lamb":
                over_axes(GroupKind.STAGE, tp=grid.tp, dp=grid.dp)
            case _:
                enter(GroupKind.TP, grid.tp, _of_pass(config, place.pp, action))
    if config.exchanges_table and place.pp in (0, grid.pp - 1):
        enter(GroupKind.TIED_TABLE, 2, receives=place.pp > 0)
        enter(GroupKind.TIED_GRADIENT, 2, receives=place.pp == 0)
    return {line: count for line, count in found.items() if count}


def _buckets(config: RunConfig, pp: int, action: Action) -> int:
    """A chunk has one at least, and no more than it has layers."""
    layers = len(config.stages[config.parallel.grid.stage_map.stage(pp, action.chunk)])
    return max(1, min(layers, config.parallel.num_buckets))


def _of_pass(config: RunConfig, pp: int, action: Action) -> int:
    """Of tensor parallelism in one forward or backward pass of a chunk."""
    grid, block = config.parallel.grid, config.model.architecture.block
    stage = grid.stage_map.stage(pp, action.chunk)
    layers = len(config.stages[stage])
    is_first, is_last = stage == 0, stage == len(config.stages) - 1
    keeps_whole = config.parallel.tp_keep == "whole"
    match action.kind:
        case Kind.FORWARD:
            # the table's sum; before the loss a gather, in it another, after it its gradient's sum
            return FORWARD_OF_A_LAYER[block] * layers + is_first + 3 * is_last
        case Kind.BACKWARD:
            again = GATHERED_AGAIN[block] if keeps_whole else 0
            return (BACKWARD_OF_A_LAYER[block] - again) * layers + is_first
        case Kind.BACKWARD_INPUT:
            return INPUT_GRADIENT_OF_A_LAYER[block] * layers + is_first
        case Kind.BACKWARD_WEIGHT:
            return 0 if keeps_whole else WEIGHT_GRADIENT_OF_A_LAYER[block] * layers
    return 0
