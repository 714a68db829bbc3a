"""The building blocks of a schedule: everything in a step that takes time is an Action.

A chunk is one of the ``vp`` model chunks of a pipeline rank; ``plan.stage_map`` says which virtual
stage it is. Micro-batches are numbered locally to one data-parallel replica, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headway.common.plan.stage_map import StageMap


class Kind(IntEnum):
    """What an action does. The numbers are written into flight records: never reuse one."""

    FORWARD = 1
    BACKWARD = 2  # input and weight gradient together
    BACKWARD_INPUT = 3
    BACKWARD_WEIGHT = 4
    SEND_FORWARD = 5
    RECV_FORWARD = 6
    SEND_BACKWARD = 7
    RECV_BACKWARD = 8
    ALL_GATHER = 9  # parameters of one chunk, over data parallelism
    REDUCE_SCATTER = 10  # gradients of one chunk, over data parallelism
    DATA = 11
    NORM = 12  # the two world all-reduces that end a step
    OPTIMIZER = 13
    SNAPSHOT = 14
    EVAL = 15
    STEP = 16  # a whole optimizer step, written when it completes
    RESTORE = 17
    JOIN = 18  # building the groups of a generation
    SAMPLE = 19
    SUMS = 20  # the first all-reduce of a NORM: norm, loss and tokens
    AGREEMENT = 21  # the second one, or that of a control round
    SNAPSHOT_WAIT = 22  # until the snapshot under way is sealed
    GARBAGE_COLLECTION = 23  # a full one of Python's
    FLUSH = 24  # until the last checkpoint is on disk
    TENSOR_PARALLEL = 25  # waiting for one collective inside a pass, in some steps only


COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
SENDS = frozenset({Kind.SEND_FORWARD, Kind.SEND_BACKWARD})
RECEIVES = frozenset({Kind.RECV_FORWARD, Kind.RECV_BACKWARD})


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of a rank's list.

    ``peer`` is the pipeline rank at the other end of a send or receive.
    """

    kind: Kind
    chunk: int = 0
    micro_batch: int = -1
    peer: int = -1

    def __str__(self) -> str:
        where = f"@{self.peer}" if self.peer >= 0 else ""
        return f"{self.kind.name}[{self.chunk}:{self.micro_batch}]{where}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each pipeline rank does in one step, in order.

    ``ranks[r]`` is rank ``r``'s list. A computed schedule holds compute actions only; ``lower``
    adds communication and the actions that frame a step.
    """

    name: str
    pp: int
    vp: int
    num_micro_batches: int
    forward_only: bool
    ranks: tuple[tuple[Action, ...], ...]
    all_read: bool = False
    """Whether ranks without the first or the last stage take data too."""
    is_v: bool = False
    """Whether chunks are placed in a V; see ``StageMap``."""

    def reads(self, rank: int) -> bool:
        """Whether ``rank`` takes data: tokens for the first stage, labels for the last."""
        return self.all_read or rank in self.stage_map.ends

    @property
    def stage_map(self) -> StageMap:
        """Which virtual stage each chunk of a rank is."""
        return StageMap(self.pp, self.is_v)

    @property
    def num_stages(self) -> int:
        """Virtual stages: ``pp * vp``."""
        return self.pp * self.vp
