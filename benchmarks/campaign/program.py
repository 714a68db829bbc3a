"""What each rank does in a step, from the product's own schedules, one small move after another.

It follows the trainer without torch: which receives are posted ahead and which waits are put off
(``pipeline/executor.py``), what frames the passes (``session/step.py``), and that sums over all
ranks are gathers along one axis after the other (``comm/every_rank.py``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from headway.common.plan.collectives import AXIS_KINDS, LANES, GroupKind, Op, members, memberships
from headway.common.plan.grid import AXES, Grid
from headway.common.plan.schedule import Action, Kind, Schedule, generate, lower
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS

POSTED_AHEAD = 3
MAX_UNFINISHED_SENDS = 4
"""Both as in ``trainer/pipeline/executor.py``, which a benchmark without torch cannot import."""
SMALL, LARGE = 64, 1 << 20
"""Bytes of a sum, and of activations or gradients."""
Key = tuple[GroupKind, int]
"""Kind and number of a group."""


class What(IntEnum):
    """Kinds of moves."""

    BEGIN = 1  # of a record
    END = 2
    ENTER = 3  # a collective or a message: queued, never waited for
    WAIT = 4  # until one that was entered is done
    LEAVE = 5  # the newest one entered is done because this rank says so, as a sum over all ranks
    WORK = 6
    READ = 7  # a value from the device, which the host waits for


class Move(NamedTuple):
    """One move of a rank."""

    what: What
    kind: Kind
    """Of the innermost record that is open."""
    micro_batch: int = -1
    line: int = 0
    """Of the group table."""
    number: int = 0
    op: int = 0
    nbytes: int = 0
    ticket: int = -1
    """Equal for the entry and the wait of one operation of a rank."""

    @property
    def key(self) -> Key:
        """The group; both ends of messages have the same."""
        return GroupKind(self.line >> 1), self.number


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and a schedule."""

    tp: int
    pp: int
    dp: int
    vp: int
    schedule: str
    num_micro_batches: int

    @property
    def grid(self) -> Grid:
        return Grid(self.tp, self.pp, self.dp, self.vp)

    def __str__(self) -> str:
        degrees = f"tp {self.tp} pp {self.pp} dp {self.dp} vp {self.vp}"
        return f"{degrees} {self.schedule} x {self.num_micro_batches}"


@lru_cache(maxsize=256)
def lowered(layout: Layout) -> Schedule:
    """The lists of actions of the pipeline's ranks."""
    count = layout.num_micro_batches
    return lower(generate(layout.schedule, pp=layout.pp, vp=layout.vp, num_micro_batches=count))


def step_of(layout: Layout, rank: int, num_steps: int) -> list[Move]:
    """The moves of one rank in this many steps."""
    writer = _Writer(layout, rank)
    actions = lowered(layout).ranks[layout.grid.coordinates(rank).pp]
    for _ in range(num_steps):
        writer.step(actions)
    return writer.moves


def group_of(grid: Grid, key: Key) -> tuple[int, ...]:
    """The members of a group; of messages, the sender and then the receiver."""
    kind, number = key
    return members(grid, kind << 24 | number)


class _Writer:
    """Writes down what one rank does."""

    def __init__(self, layout: Layout, rank: int) -> None:
        self.moves: list[Move] = []
        grid = layout.grid
        self._lines = {one.line: one for one in memberships(grid, rank)}
        self._pp = grid.coordinates(rank).pp
        self._open: list[Kind] = []
        self._micro_batch, self._num_tickets = -1, 0
        self._gathers: dict[int, int] = {}
        self._reduces: list[int] = []
        self._posted: dict[tuple[Kind, int, int], int] = {}
        self._sent: dict[Kind, deque[int]] = {}
        self._to_post: deque[Action] = deque()
        self._num_posted = self._num_reached = self._num_open = 0

    def step(self, actions: tuple[Action, ...]) -> None:
        self._to_post = deque(one for one in actions if one.kind in RECEIVES)
        self._num_posted = self._num_reached = self._num_open = 0
        self._sent = {kind: deque() for kind in SENDS}
        self._begin(Kind.STEP)
        self._post_ahead()
        for action in actions:
            self._act(action)
        for kind in SENDS:
            self._retire(kind, 0)
        self._end()

    def _act(self, action: Action) -> None:
        kind, chunk = action.kind, action.chunk
        self._micro_batch = action.micro_batch
        if kind in COMPUTE:
            self._compute(action)
        elif kind in SENDS:
            self._begin(kind)
            self._sent[kind].append(self._message(action, receives=False))
            self._end()
            self._retire(kind, MAX_UNFINISHED_SENDS)
        elif kind in RECEIVES:
            self._num_reached += 1
            while self._num_posted < self._num_reached:
                self._post()
        elif kind is Kind.ALL_GATHER:
            self._begin(kind)
            self._gathers[chunk] = self._enter(GroupKind.DP, Op.ALL_GATHER, LARGE + chunk)
            self._end()
        elif kind is Kind.REDUCE_SCATTER:
            self._work()  # where a host may be held before a collective
            self._begin(kind)
            self._reduces.append(self._enter(GroupKind.DP, Op.REDUCE_SCATTER, LARGE + chunk))
            self._end()
        elif kind is Kind.NORM:
            self._norm()
        else:
            self._begin(kind)
            self._work()
            self._end()

    def _compute(self, action: Action) -> None:
        of = Kind.RECV_FORWARD if action.kind is Kind.FORWARD else Kind.RECV_BACKWARD
        received = None
        if action.kind is not Kind.BACKWARD_WEIGHT:
            received = self._posted.pop((of, action.chunk, action.micro_batch), None)
        if received is not None:
            self._wait(of, received)
            self._num_open -= 1
            self._post_ahead()
        self._wait(Kind.ALL_GATHER, self._gathers.pop(action.chunk, -1))
        self._begin(action.kind)
        for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
            self._work()
            if action.kind is not Kind.BACKWARD_WEIGHT:
                self._wait(None, self._enter(GroupKind.TP, op, LARGE))
        self._end()

    def _norm(self) -> None:
        while self._reduces:
            self._wait(Kind.REDUCE_SCATTER, self._reduces.pop(0))
        self._begin(Kind.NORM)
        self._work()
        for kind in (Kind.SUMS, Kind.AGREEMENT):
            self._begin(kind)
            self._enter(GroupKind.EVERY_RANK, Op.ALL_REDUCE, SMALL)
            for axis in AXES:
                self._wait(None, self._enter(AXIS_KINDS[axis], Op.ALL_GATHER, SMALL))
            if 2 * GroupKind.EVERY_RANK in self._lines:
                self._add(What.LEAVE, line=2 * GroupKind.EVERY_RANK, number=0)
            self._add(What.READ)
            self._end()
        self._end()

    def _post_ahead(self) -> None:
        while self._to_post and self._num_open <= POSTED_AHEAD:
            self._post()

    def _post(self) -> None:
        action = self._to_post.popleft()
        key = (action.kind, action.chunk, action.micro_batch)
        self._posted[key] = self._message(action, receives=True)
        self._num_open += 1
        self._num_posted += 1

    def _message(self, action: Action, *, receives: bool) -> int:
        is_forward = action.kind in (Kind.SEND_FORWARD, Kind.RECV_FORWARD)
        upward = self._pp > action.peer if receives else action.peer > self._pp
        kind = LANES["forward" if is_forward else "backward", upward]
        return self._enter(kind, Op.RECV if receives else Op.SEND, LARGE, receives=receives)

    def _retire(self, kind: Kind, limit: int) -> None:
        while len(self._sent[kind]) > limit:
            self._wait(kind, self._sent[kind].popleft())

    def _enter(self, kind: GroupKind, op: Op, nbytes: int, *, receives: bool = False) -> int:
        membership = self._lines.get(2 * kind + receives)
        if membership is None:
            return -1  # a group of one
        self._num_tickets += 1
        line, number = membership.line, membership.number
        self._add(What.ENTER, line=line, number=number, op=int(op), nbytes=nbytes,
                  ticket=self._num_tickets)  # fmt: skip
        return self._num_tickets

    def _wait(self, kind: Kind | None, ticket: int) -> None:
        """Wait in a record of its own, if it has one."""
        if ticket < 0:
            return
        if kind is not None:
            self._begin(kind)
        self._add(What.WAIT, ticket=ticket)
        if kind is not None:
            self._end()

    def _begin(self, kind: Kind) -> None:
        self._open.append(kind)
        self._add(What.BEGIN)

    def _end(self) -> None:
        self._add(What.END)
        self._open.pop()

    def _work(self) -> None:
        self._add(What.WORK)

    def _add(self, what: What, **more: int) -> None:
        self.moves.append(Move(what, self._open[-1], self._micro_batch, **more))
