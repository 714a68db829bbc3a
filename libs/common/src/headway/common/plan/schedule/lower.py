"""Adds messages, collectives, data and the optimizer to a compute order.

Messages come from one global sequence: compute actions by their start in unit time, each message at
the end of the action that makes it. The send and its receive enter their ranks' lists at the same
place of that sequence. So the lists finish even if every send waits for its receive: for the first
unfinished message of the sequence, everything before it on either side is done. Both ends of a lane
(two ranks, one direction) list its messages in the same order, so a lane may be a plain queue.

A receive in the list is posted there and waited for where its message is used; a send is issued
after its data was computed, with only receives in between.
"""

from __future__ import annotations

from dataclasses import replace

from headway.common.plan.schedule.actions import COMPUTE, Action, Kind, Schedule
from headway.common.plan.schedule.timeline import Span, unit_timeline

_BACKWARD_MESSAGE, _FORWARD_MESSAGE, _COMPUTE = range(3)  # order of events at the same time
_ENDS_OF_BACKWARD = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT, Kind.SEND_BACKWARD)


def lower(schedule: Schedule, *, all_read: bool = False) -> Schedule:
    """The complete list of every rank; with ``all_read`` each of them takes data.

    A forward-only schedule gets messages and data; a training schedule also the all-gathers and
    reduce-scatters of its chunks and the actions that end a step. Neighbouring chunks on one
    rank need no message.

    Raises:
        ConfigError: the compute order is impossible.
    """
    moments: list[tuple[float, int, int, list[tuple[int, Action]]]] = []
    for span in unit_timeline(schedule):
        moments.append((span.start, _COMPUTE, span.rank, [(span.rank, span.action)]))
        message = _message(schedule, span)
        # Of messages made at the same time, backward ones go first, from rank 0 upwards, then
        # forward ones, from the last rank downwards: without a ring or a V, each rank's send then
        # precedes what its neighbours send to it.
        if message and message[0][1].kind is Kind.SEND_BACKWARD:
            moments.append((span.end, _BACKWARD_MESSAGE, span.rank, message))
        elif message:
            moments.append((span.end, _FORWARD_MESSAGE, -span.rank, message))
    lists: list[list[Action]] = [[] for _ in range(schedule.pp)]
    for _, _, _, entries in sorted(moments, key=lambda moment: moment[:3]):
        for rank, action in entries:
            lists[rank].append(action)
    schedule = replace(schedule, all_read=all_read)
    framed = [_frame(schedule, rank, order) for rank, order in enumerate(lists)]
    return replace(schedule, ranks=tuple(map(tuple, framed)))


def _message(schedule: Schedule, span: Span) -> list[tuple[int, Action]]:
    """The send and the receive that carry an action's result to the next stage.

    The list is empty if the result does not leave the rank.
    """
    action, mb = span.action, span.action.micro_batch
    stage = schedule.stage_map.stage(span.rank, action.chunk)
    if action.kind is Kind.FORWARD:
        target, send, receive = stage + 1, Kind.SEND_FORWARD, Kind.RECV_FORWARD
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        target, send, receive = stage - 1, Kind.SEND_BACKWARD, Kind.RECV_BACKWARD
    else:
        return []
    peer, chunk = schedule.stage_map.place(target)
    if not 0 <= target < schedule.num_stages or peer == span.rank:
        return []
    return [
        (span.rank, Action(send, action.chunk, mb, peer)),
        (peer, Action(receive, chunk, mb, span.rank)),
    ]


def _frame(schedule: Schedule, rank: int, order: list[Action]) -> list[Action]:
    """Insert data, all-gathers and reduce-scatters, and the actions that end the step.

    A chunk's all-gather is issued one chunk ahead, so that it can run under the chunk before.
    """
    training = not schedule.forward_only
    framed: list[Action] = []
    num_gathered = 0
    if training:
        # issued first, so that it runs while data is taken
        framed.append(Action(Kind.ALL_GATHER, 0))
        num_gathered = 1
    if schedule.reads(rank):
        framed.append(Action(Kind.DATA))
    # The chunk's last send comes first: the stage before waits for it, a reduction for replicas.
    last_gradient = {a.chunk: i for i, a in enumerate(order) if a.kind in _ENDS_OF_BACKWARD}
    for index, action in enumerate(order):
        if (
            training
            and action.kind in COMPUTE
            and num_gathered < min(action.chunk + 2, schedule.vp)
        ):
            framed.append(Action(Kind.ALL_GATHER, num_gathered))
            num_gathered += 1
        framed.append(action)
        if last_gradient.get(action.chunk) == index:
            framed.append(Action(Kind.REDUCE_SCATTER, action.chunk))
    if training:
        framed += [Action(Kind.NORM), Action(Kind.OPTIMIZER), Action(Kind.SNAPSHOT)]
    return framed
