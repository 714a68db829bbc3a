"""How messages between pipeline stages are addressed: lane, receiver and tag."""

from __future__ import annotations

from headway.common.plan.schedule.actions import Action, Kind
from headway.trainer.comm.p2p import Direction, PipeComm

MessageKey = tuple[Kind, int, int]
"""Key of a message: the kind of its receive, the receiver's chunk, the micro-batch."""

DIRECTIONS: dict[Kind, Direction] = {
    Kind.SEND_FORWARD: "forward",
    Kind.RECV_FORWARD: "forward",
    Kind.SEND_BACKWARD: "backward",
    Kind.RECV_BACKWARD: "backward",
}

TAG_MICRO_BATCHES = 1 << 22
"""Number of micro-batches after which a tag repeats; see ``tag_of``."""


def receiver_of(action: Action, kind: Kind, pipe: PipeComm) -> tuple[int, MessageKey]:
    """Pipeline rank and key of what needs the result of ``action``, a message of kind ``kind``."""
    stage = pipe.stage_map.stage(pipe.rank, action.chunk)
    rank, chunk = pipe.stage_map.place(stage + (1 if kind is Kind.RECV_FORWARD else -1))
    return rank, (kind, chunk, action.micro_batch)


def tag_of(key: MessageKey) -> int:
    """The message's tag, below gloo's limit of 2^31: micro-batch, chunk, direction.

    No two unfinished messages share a tag: a lane's messages are in order, so two whose
    micro-batches are ``TAG_MICRO_BATCHES`` apart are never unfinished at the same time.
    """
    kind, chunk, micro_batch = key
    is_forward = kind is Kind.RECV_FORWARD
    return (micro_batch % TAG_MICRO_BATCHES) << 9 | (chunk & 0xFF) << 1 | is_forward
