"""Plays the programs of all ranks until nothing moves, with the time of each move.

A rank continues by itself until it waits, and what it waits for is done when all members have
entered it, so the result does not depend on the order in which ranks are played.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule import Kind

from benchmarks.campaign.program import Key, Move, What

NEVER = float("inf")
_SECONDS = {Kind.FORWARD: 1.0, Kind.DATA: 0.2, Kind.SNAPSHOT: 0.2, Kind.STEP: 0.05}
"""Of work in an action, before it is scaled; others take twice as long as a forward."""


@dataclass
class Track:
    """The moves of one rank, and when they began and ended. The last one may never have ended."""

    moves: Sequence[Move]
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    entered: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By line of the group table."""
    tickets: dict[int, tuple[Key, int]] = field(default_factory=dict)
    """Which operation of which group, from 1 on."""

    @property
    def blocked_in(self) -> tuple[Key, int] | None:
        """What it waits for in the end."""
        if not self.ended or self.ended[-1] < NEVER:
            return None
        move = self.moves[len(self.began) - 1]
        return self.tickets[move.ticket] if move.what is What.WAIT else None


@dataclass
class _Operation:
    num_entered: int = 0
    last_s: float = 0.0
    kinds: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Played:
    """All ranks, and when the operations of each group were done."""

    tracks: dict[int, Track]
    done: dict[Key, list[float]]

    @property
    def end_s(self) -> float:
        """When the last rank began its last move."""
        return max(track.began[-1] for track in self.tracks.values())


def usual_s(move: Move) -> float:
    """How long a piece of work takes, in units of that of a forward pass."""
    return _SECONDS.get(move.kind, 2.0)


class Player:
    """One play.

    Args:
        programs: the moves by rank. sizes: members of each group. halts: rank -> index of the move
            that it never ends. stuck: group -> operation from which on its transport stands.
        scale_s: seconds of one forward. pauses: (rank, index of a move) -> seconds more.
    """

    def __init__(
        self,
        programs: Mapping[int, Sequence[Move]],
        sizes: Mapping[Key, int],
        seed: int,
        scale_s: float,
        halts: Mapping[int, int] | None = None,
        stuck: Mapping[Key, int] | None = None,
        pauses: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        self._tracks = {rank: Track(moves) for rank, moves in programs.items()}
        self._sizes, self._halts, self._stuck = sizes, halts or {}, stuck or {}
        self._scale_s, self._pauses = scale_s, pauses or {}
        self._chances = {rank: random.Random(f"{seed} {rank}") for rank in programs}
        self._paces = {rank: one.uniform(0.9, 1.3) for rank, one in self._chances.items()}
        self._operations: dict[Key, list[_Operation]] = defaultdict(list)
        self._done: dict[Key, list[float]] = defaultdict(list)
        self._waiting: dict[Key, list[int]] = defaultdict(list)
        self._ready: deque[int] = deque(programs)

    def play(self) -> Played:
        while self._ready:
            self._run(self._ready.popleft())
        for track in self._tracks.values():
            track.ended += [NEVER] * (len(track.began) - len(track.ended))
        return Played(self._tracks, self._done)

    def _run(self, rank: int) -> None:
        track, halt = self._tracks[rank], self._halts.get(rank, -1)
        began, ended, moves = track.began, track.ended, track.moves
        now_s = ended[-1] if ended else self._chances[rank].uniform(0.0, 0.01)
        if len(began) > len(ended):  # it waits for what may be done now
            now_s = self._wait(rank, track, moves[len(ended)], began[-1])
            if now_s == NEVER:
                return
            ended.append(now_s)
        for index in range(len(began), len(moves)):
            move = moves[index]
            began.append(now_s)
            if index == halt:
                return
            if move.what is What.WORK:
                now_s += self.work_s(rank, index, move) + self._pauses.get((rank, index), 0.0)
            elif move.what is What.ENTER:
                self._enter(track, move, now_s)
            elif move.what is What.WAIT:
                now_s = self._wait(rank, track, move, now_s)
                if now_s == NEVER:
                    return
            ended.append(now_s)

    def work_s(self, rank: int, index: int, move: Move) -> float:
        """How long a piece of work takes."""
        del index
        jitter = self._chances[rank].lognormvariate(0.0, 0.2)
        return usual_s(move) * self._scale_s * self._paces[rank] * jitter

    def transfer_s(self, key: Key, number: int) -> float:
        """How long operation ``number`` of a group takes after its last member has entered it."""
        del key, number
        return 0.001 * self._scale_s

    def _enter(self, track: Track, move: Move, now_s: float) -> None:
        times = track.entered[move.line]
        times.append(now_s)
        key = move.key
        track.tickets[move.ticket] = key, len(times)
        if key[0] is GroupKind.EVERY_RANK:
            return
        operations = self._operations[key]
        while len(operations) < len(times):
            operations.append(_Operation())
        one = operations[len(times) - 1]
        one.num_entered += 1
        one.last_s = max(one.last_s, now_s)
        one.kinds.add((move.op if key[0] < GroupKind.FORWARD else 0, move.nbytes))
        if one.num_entered == self._sizes[key]:
            self._finish(key)

    def _finish(self, key: Key) -> None:
        done, operations = self._done[key], self._operations[key]
        before = len(done)
        while len(done) < len(operations):
            one = operations[len(done)]
            is_stuck = len(done) + 1 >= self._stuck.get(key, len(done) + 2)
            if one.num_entered < self._sizes[key] or len(one.kinds) > 1 or is_stuck:
                break
            begin_s = max(one.last_s, done[-1] if done else 0.0)
            done.append(begin_s + self.transfer_s(key, len(done) + 1))
        if len(done) > before:
            self._ready.extend(self._waiting.pop(key, ()))

    def _wait(self, rank: int, track: Track, move: Move, now_s: float) -> float:
        """When it is done, and never as far as is known; then the rank is called again."""
        key, number = track.tickets[move.ticket]
        done = self._done[key]
        if len(done) >= number:
            return max(now_s, done[number - 1])
        self._waiting[key].append(rank)
        return NEVER
