"""The workers of a node, and the warm standbys kept beside them.

The table holds who they are and what they last said.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headway.common.backoff import Backoff
from headway.common.decide import Action, Log
from headway.common.errors import InputError
from headway.common.node.process import DEAD, ProcessId
from headway.common.wire.messages.driver import WorkerGone
from headway.common.wire.messages.executor import LeftGeneration, WorkerBeat
from headway.common.wire.messages.health import EndKind, WorkerEnd
from headway.controller.executor.node_events import (
    AskForFork,
    ClearAway,
    Exit,
    Fork,
    Kill,
    NoteEnd,
    Send,
)

# a worker beats twice a second; ten beats missed after a restart mean that it hangs
REJOIN_LIMIT_S = 5.0
IDLE_SILENT_S = 15.0
"""A standby that sends no beats for so long hangs; of a rank that is for the monitor to judge."""
YOUNG_S = 10.0
"""A standby that ends sooner after its first beat counts as a failed fork."""
FORK_PAUSE_S = (0.5, 30.0)  # first and longest pause after failed forks
NAME = re.compile(r"n(\d{1,9})w(\d{1,9})")


@dataclass
class Member:
    """One worker process and its newest beat."""

    process: ProcessId
    beat: WorkerBeat
    since: float
    beat_at: float
    is_proven: bool = False
    """It was assigned a rank, or lived for ``YOUNG_S``: its fork was a success."""
    is_killed: bool = False


@dataclass
class _Asked:
    at: float
    process: ProcessId | None = None


class WorkerTable:
    """Times are those of the executor's own clock, see ``Guardian``."""

    def __init__(
        self,
        node: int,
        fork_limit_s: float,
        *,
        next_worker: int = 0,
        orphans: Mapping[str, ProcessId] | None = None,
    ) -> None:
        self._node, self._fork_limit_s = node, fork_limit_s
        self.members: dict[str, Member] = {}
        self.asked: dict[str, _Asked] = {}
        """Forks that were asked for and have not said hello."""
        self.orphans = dict(orphans or {})
        """Workers of the executor before this one that have not reported yet."""
        self.next_worker = next_worker
        self.backoff = Backoff(*FORK_PAUSE_S)
        self.why = ""
        """Why the last fork failed."""

    # ---- what is known ------------------------------------------------------------------------
    @property
    def is_settled(self) -> bool:
        """False after a restart until every worker of the executor before has reported or is dead.

        Before that the node's beat would look as if they were gone.
        """
        return not self.orphans

    def beats(self) -> tuple[WorkerBeat, ...]:
        """The newest beat of every living worker."""
        return tuple(member.beat for member in self.members.values())

    def processes(self) -> dict[str, ProcessId]:
        """Worker -> its process, of all that are known: orphans and unborn ones too."""
        asked = {n: a.process for n, a in self.asked.items() if a.process is not None}
        return {**asked, **self.orphans, **{n: m.process for n, m in self.members.items()}}

    def step(self) -> int:
        """Completed steps: the least of the workers in the newest generation."""
        newest = max((m.beat.generation for m in self.members.values()), default=-1)
        own = [m.beat.step for m in self.members.values() if m.beat.generation == newest]
        return min(own, default=0) if newest >= 0 else 0

    # ---- what happens -------------------------------------------------------------------------
    def receive(self, beat: WorkerBeat, now: float) -> None:
        """Take a beat.

        Raises:
            InputError: no worker of this node has such a name.
        """
        match = NAME.fullmatch(beat.worker)
        if match is None or int(match[1]) != self._node:
            raise InputError(
                f"{beat.worker[:40]!r} is not a worker of node {self._node}",
                remedy="workers are started by the node's zygote only; end that process",
            )
        self.asked.pop(beat.worker, None)
        self.orphans.pop(beat.worker, None)
        process = ProcessId(beat.pid, beat.start_ticks)
        member = self.members.get(beat.worker)
        if member is None or member.process != process:
            member = self.members[beat.worker] = Member(process, beat, now, now)
        member.beat, member.beat_at = beat, now

    def forked(self, forks: Collection[Fork], now: float) -> list[Action]:
        """Take in how the zygote answered requests."""
        actions: list[Action] = []
        for fork in forks:
            asked = self.asked.get(fork.worker)
            if asked is None or asked.process is not None:
                continue
            asked.process = fork.process
            if fork.process is None:
                actions += self.not_forked(fork.worker, fork.error, now)
        return actions

    def not_forked(self, worker: str, error: str, now: float) -> list[Action]:
        """A fork failed; the next one waits."""
        if self.asked.pop(worker, None) is None:
            return []
        return [self._failed(worker, f"a worker could not be forked: {error}", now)]

    def kill(self, worker: str, why: str) -> list[Action]:
        """End a worker at once; its death is found like any other."""
        member = self.members.get(worker)
        if member is None:
            return []
        noted = [] if member.is_killed else _note_end(member, "ordered", why)
        member.is_killed = True
        return [*noted, Kill(member.process, signal.SIGKILL, f"{worker}: {why}")]

    def left(self, left: LeftGeneration) -> list[Action]:
        """Take in that a worker left its generation, which for an error is noted.

        A damaged copy of the state is not the fault of the rank that has read it.
        """
        member = self.members.get(left.worker)
        if member is None or left.reason != "error" or left.bad_checkpoint or left.bad_snapshot:
            return []
        return _note_end(member, "raised", left.detail, generation=left.generation)

    def zygote_ended(self) -> None:
        """What was asked of it and not begun will never come."""
        self.asked = {n: a for n, a in self.asked.items() if a.process is not None}

    # ---- time passes --------------------------------------------------------------------------
    def look(
        self, states: Mapping[ProcessId, str], words: Mapping[str, Exit], now: float
    ) -> list[Action]:
        """Find the dead; end the stopped, since a frozen rank holds up all others."""
        actions: list[Action] = []
        for name, member in list(self.members.items()):
            state = states.get(member.process, "R")
            if state in DEAD:
                ended = words.get(name, Exit())
                actions += _note_end(member, _how(ended), ended.reason, code=ended.code)
                actions += self._abandon(name, str(ended), now)
            elif state == "T":
                # noted first: a beat that shows it killed must also show why
                actions += _note_end(member, "stopped")
                actions.append(Kill(member.process, signal.SIGKILL, f"{name}: it was stopped"))
                actions += self._abandon(name, "stopped", now)
            else:
                actions += self._watch(name, member, now)
        for name, process in list(self.orphans.items()):
            state = states.get(process, "R")
            if state in DEAD:
                del self.orphans[name]
            elif state == "T" or (now > REJOIN_LIMIT_S and state != "t"):  # t: under a debugger
                why = f"{name}: it did not speak to a new executor"
                actions.append(Kill(process, signal.SIGKILL, why))
        return actions + self._watch_forks(states, words, now)

    def _watch(self, name: str, member: Member, now: float) -> list[Action]:
        is_idle = member.beat.status == "idle"
        if not member.is_proven and (not is_idle or now - member.since > YOUNG_S):
            member.is_proven = True
            self.backoff.succeed()
        if is_idle and not member.is_killed and now - member.beat_at > IDLE_SILENT_S:
            return self.kill(name, "a standby that sends no beats")
        return []

    def _watch_forks(
        self, states: Mapping[ProcessId, str], words: Mapping[str, Exit], now: float
    ) -> list[Action]:
        actions: list[Action] = []
        for name, asked in list(self.asked.items()):
            is_late = now - asked.at > self._fork_limit_s
            if asked.process is None:
                continue
            if states.get(asked.process, "R") in DEAD:
                del self.asked[name]
                reason = f"a worker ended before its first beat: {words.get(name, Exit())}"
                actions.append(self._failed(name, reason, now))
            elif is_late:
                actions.append(Kill(asked.process, signal.SIGKILL, f"{name}: no beat came from it"))
        return actions

    def unanswered(self, now: float) -> str | None:
        """A fork that the zygote has not answered for too long."""
        return next(
            (
                name
                for name, asked in self.asked.items()
                if asked.process is None and now - asked.at > self._fork_limit_s
            ),
            None,
        )

    def refill(self, wanted: int, now: float) -> list[Action]:
        """Ask for forks until ``wanted`` workers exist or are on their way.

        After a failure it asks for one at a time.
        """
        actions: list[Action] = []
        while self._num_coming() < wanted and self.backoff.is_over(now):
            if self.backoff.failures and self.asked:
                break
            name = self._new_name()
            self.asked[name] = _Asked(now)
            actions.append(AskForFork(name))
        return actions

    def _num_coming(self) -> int:
        return len(self.members) + len(self.asked) + len(self.orphans)

    def _new_name(self) -> str:
        name = f"n{self._node}w{self.next_worker}"
        self.next_worker += 1
        return name if name not in self.members and name not in self.orphans else self._new_name()

    def _abandon(self, name: str, reason: str, now: float) -> list[Action]:
        member = self.members.pop(name)
        gone = WorkerGone(
            node=self._node,
            worker=name,
            pid=member.process.pid,
            rank=member.beat.rank,
            generation=member.beat.generation,
            reason=reason,
        )
        fields = {"worker": name, "rank": member.beat.rank, "reason": reason}
        actions: list[Action] = [Send(gone), Log("worker is gone", fields, level="warning")]
        if not member.is_proven and not member.is_killed and member.beat.status == "idle":
            actions.append(
                self._failed(name, f"a standby ended soon after its start: {reason}", now)
            )
        return [*actions, self._clear_away()]

    def _failed(self, name: str, why: str, now: float) -> Action:
        pause_s = self.backoff.pause_s
        self.backoff.fail(now)
        self.why = why
        return Log(
            "a fork failed", {"worker": name, "reason": why, "pause_s": pause_s}, level="warning"
        )

    def _clear_away(self) -> ClearAway:
        return ClearAway(frozenset([*self.members, *self.asked, *self.orphans]))

    def trouble(self, wanted: int) -> list[str]:
        """Sentences about workers that are missing; stable while nothing changes."""
        if self.orphans:
            return ["waiting for the workers of the executor before this one to speak"]
        if len(self.members) < wanted and self.backoff.failures:
            return [f"forks fail ({self.backoff.failures} in a row): {self.why}"]
        return []


def _how(ended: Exit) -> EndKind:
    if ended.code is not None:
        return "exited"
    return "out_of_memory" if ended.is_out_of_memory else "killed"


def _note_end(
    member: Member,
    how: EndKind,
    reason: str = "",
    *,
    code: int | None = None,
    generation: int | None = None,
) -> list[Action]:
    """Nothing for a standby, and only the order for what was ended by one."""
    beat = member.beat
    if beat.rank < 0 or (member.is_killed and how != "ordered"):
        return []
    end = WorkerEnd(
        worker=beat.worker,
        rank=beat.rank,
        generation=beat.generation if generation is None else generation,
        pid=member.process.pid,
        start_ticks=member.process.start_ticks,
        how=how,
        exit_code=code,
        reason=reason,
    )
    return [NoteEnd(end)]
