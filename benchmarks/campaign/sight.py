"""What an agent would see of a played rank at a moment: its flight ring and its group table.

On a CPU the host does the moves itself. On a GPU the device does, and the host has queued what
follows up to the next value that it reads, or up to as much as the queue takes. Finished there is
what the device has waited for in a record, as in ``trainer/device/device_recorder.py``.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from itertools import pairwise

from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule import Kind
from headway.common.wire.group_table import GroupRow, pack
from headway.common.wire.messages.health import DevicePlace, WorkerSignals
from headway.health.config import HealthConfig

from benchmarks.campaign.faults import Trace
from benchmarks.campaign.play import NEVER, Played, Track
from benchmarks.campaign.program import Move, What

ASKED_S = 0.1
"""Since a device was last asked where it is."""
UNKNOWN_S = 60.0
"""The same where what asks it waits for its driver."""
WINDOW = HealthConfig().median_window_steps
ON_DEVICE = ("device", "device unknown")
"""Faults that halt a device and not its host."""
_SUMS = (Kind.SUMS, Kind.AGREEMENT)
"""Their records name the sum over all ranks, not the gathers that it is made of."""


class Sight:
    """One rank of a trace that was played."""

    def __init__(self, trace: Trace, played: Played, rank: int, queue: int, step_s: float) -> None:
        """``queue``: pieces of work that a host may be ahead of its device; ``step_s``: of a
        healthy step."""
        self.rank, self._trace, self._played = rank, trace, played
        self._track = played.tracks[rank]
        self._queue, self._step_s = queue, step_s
        self._fault, self._halt = trace.faults.get(rank, ""), trace.halts.get(rank, -1)
        self._open, self._heads = _records(self._track)
        self._entered = _by_line(self._track)
        self._seen_done = _seen_done(trace, self._track) if trace.on_device else {}
        self._left_s, self._steps_s = _times(self._track)

    def at(self, now_s: float) -> WorkerSignals:
        """Its beat."""
        place = max(1, bisect.bisect_right(self._track.began, now_s))
        host = self.host(place, now_s) if self._trace.on_device else place
        is_over = self._is_over(now_s)
        move = self._track.moves[host - 1]
        steps = bisect.bisect_right(self._steps_s, now_s)
        base = self._trace.first_step
        median_s = self._median_s(steps)
        halted_s = now_s - self._track.began[self._halt] if self.is_halted(now_s) else -1.0
        is_frozen = self._fault == "frozen" and halted_s > 0
        open_kind, micro_batch = self._open[host - 1]
        return WorkerSignals(
            rank=self.rank,
            pid=1000 + self.rank,
            start_ticks=1,
            state=self._state(halted_s, is_over=is_over),
            generation=0,
            head=self._heads[host - 1],
            step=base + steps - 1,
            step_s=median_s,
            num_steps=base + steps,
            median_step_s=median_s,
            age_s=max(0.0, now_s - self._changed_s(place, host, now_s)),
            open_kind=open_kind,
            open_micro_batch=micro_batch,
            waits=self._waits(move, place, now_s),
            alive_age_s=halted_s if is_frozen else 0.2,
            data_wait="daemon" if open_kind == Kind.DATA.name else "",
            data_age_s=now_s - self._track.began[host - 1] if open_kind == Kind.DATA.name else 0.1,
            packed_groups=pack(self._rows(host, now_s)),
            device=self._device(place, now_s),
        )

    def is_halted(self, now_s: float) -> bool:
        """Whether its fault has begun."""
        track, halt = self._track, self._halt
        return 0 <= halt < len(track.began) and track.began[halt] <= now_s

    def _is_over(self, now_s: float) -> bool:
        track = self._track
        return len(track.began) == len(track.moves) and track.ended[-1] <= now_s

    def _state(self, halted_s: float, *, is_over: bool) -> str:
        if halted_s > 0 and self._fault in ("stopped", "gone"):
            return "T" if self._fault == "stopped" else "gone"
        return "done" if is_over and self._fault == "ended" else "S"

    def _median_s(self, steps: int) -> float:
        ends = [0.0, *self._steps_s[:steps]]
        measured = [end - before for before, end in pairwise(ends)]
        durations = [self._step_s] * self._trace.first_step + measured
        return statistics.median(durations[-WINDOW:]) if durations else 0.0

    def host(self, place: int, now_s: float) -> int:
        """Number of moves that the host has begun, while the device is at ``place``."""
        moves, queued = self._track.moves, 0
        is_there = self._track.ended[place - 1] > now_s
        for index in range(place - 1 if is_there else place, len(moves)):
            move = moves[index]
            if index == self._halt and self._fault not in ON_DEVICE:
                return index + 1
            if move.what is What.READ:
                return index + 1
            if move.what is What.WORK and move.kind is Kind.DATA and index == place - 1:
                return index + 1
            queued += move.what is What.WORK
            if queued > self._queue:
                return index + 1
        return len(moves)

    def _waits(self, move: Move, place: int, now_s: float) -> str:
        if self.is_halted(now_s) and self._fault not in ON_DEVICE:
            return ""
        if not self._trace.on_device:
            is_inside = move.what is What.WAIT and self._track.ended[place - 1] > now_s
            return "others" if is_inside else ""
        if move.what is What.READ:
            return "others"  # it polls
        return "" if move.kind is Kind.DATA else "device"

    def _changed_s(self, place: int, host: int, now_s: float) -> float:
        """When a record, or a wait of the host, last began or ended."""
        track = self._track
        if host == place or not self._trace.on_device:
            return track.began[place - 1]
        move = track.moves[host - 1]
        if move.what is not What.READ:
            return track.began[place - 1]
        # it polls since it has read the value before, or taken the data
        for index in range(place - 1, -1, -1):
            one = track.moves[index]
            is_sync = one.what is What.READ or (one.what is What.WORK and one.kind is Kind.DATA)
            if is_sync and track.ended[index] <= now_s:
                return track.ended[index]
        return track.began[0]

    def _rows(self, host: int, now_s: float) -> tuple[GroupRow, ...]:
        base, rows = self._trace.base[self.rank], []
        for line, indices in sorted(self._entered.items()):
            before = self._trace.first_step * base[line]
            count = bisect.bisect_left(indices, host)
            last = self._track.moves[indices[count - 1]] if count else None
            done = min(self._done(line, now_s), count)
            first = self._track.moves[indices[0]]
            size = self._trace.sizes[first.key]
            rows.append(GroupRow(
                line, first.number, size, last.op if last else 0, last.nbytes if last else 0,
                before + count, before + done, 1000, 1000,
            ))  # fmt: skip
        return tuple(rows)

    def _done(self, line: int, now_s: float) -> int:
        if self._trace.on_device:
            return bisect.bisect_right(self._seen_done.get(line, []), now_s)
        if line == 2 * GroupKind.EVERY_RANK:
            return bisect.bisect_right(self._left_s, now_s)
        key = self._track.moves[self._entered[line][0]].key
        return bisect.bisect_right(self._played.done.get(key, []), now_s)

    def _device(self, place: int, now_s: float) -> DevicePlace | None:
        if not self._trace.on_device:
            return None
        if "device unknown" in self._trace.faults.values():
            return DevicePlace("FORWARD", -1, 0, False, 2 * UNKNOWN_S, UNKNOWN_S)
        moves, track = self._track.moves, self._track
        for index in range(place - 1, -1, -1):
            if moves[index].what in (What.BEGIN, What.END):
                is_end = moves[index].what is What.END
                step = self._trace.first_step
                name, mb = moves[index].kind.name, moves[index].micro_batch
                return DevicePlace(name, step, mb, is_end, now_s - track.began[index], ASKED_S)
        return DevicePlace("", -1, -1, False, now_s, ASKED_S)


def _records(track: Track) -> tuple[list[tuple[str, int]], list[int]]:
    """The innermost open record, and the number of records begun, after each move."""
    found, heads, stack = [], [], []
    for move in track.moves:
        if move.what is What.BEGIN:
            stack.append((move.kind.name, move.micro_batch))
        elif move.what is What.END:
            stack.pop()
        heads.append((heads[-1] if heads else 0) + (move.what is What.BEGIN))
        found.append(stack[-1] if stack else ("", -1))
    return found, heads


def _by_line(track: Track) -> dict[int, list[int]]:
    """Places of the entries."""
    found: dict[int, list[int]] = defaultdict(list)
    for index, move in enumerate(track.moves):
        if move.what is What.ENTER:
            found[move.line].append(index)
    return dict(found)


def _times(track: Track) -> tuple[list[float], list[float]]:
    """When each sum over all ranks, and each step, ended."""
    left_s, steps_s = [], []
    for move, ended_s in zip(track.moves, track.ended, strict=False):
        if move.what is What.LEAVE:
            left_s.append(ended_s)
        elif move.what is What.END and move.kind is Kind.STEP:
            steps_s.append(ended_s)
    return left_s, steps_s


def _seen_done(trace: Trace, track: Track) -> dict[int, list[float]]:
    """When each operation of a line was seen to be done: with a recorded wait for it or a later
    one. Waits inside passes are recorded in one step of 16."""
    of = {move.ticket: move.line for move in track.moves if move.what is What.ENTER}
    counts: dict[int, int] = defaultdict(int)
    numbers = {}
    for move in track.moves:
        if move.what is What.ENTER:
            counts[move.line] += 1
            numbers[move.ticket] = counts[move.line]
    found: dict[int, list[float]] = defaultdict(list)
    in_pass = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT)
    step = trace.first_step
    for index in range(len(track.began)):
        move, ended_s = track.moves[index], track.ended[index]
        step += move.what is What.END and move.kind is Kind.STEP
        if move.what is What.LEAVE and ended_s < NEVER:
            found[move.line].append(ended_s)
        if move.what is not What.WAIT or ended_s == NEVER:
            continue
        is_recorded = step % 16 == 0 if move.kind in in_pass else move.kind not in _SUMS
        if is_recorded:
            times = found[of[move.ticket]]
            times += [ended_s] * (numbers[move.ticket] - len(times))
    return dict(found)
