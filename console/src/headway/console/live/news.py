"""Journal events as lines for people: one per fault, with its cause and what it cost.

A recovery is printed when all ranks step again. What belongs to it (the loss itself, verdicts about
it, survivors that lost a peer, nodes that moved) is not printed on its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from headway.common.output import counted
from headway.console.folder.samples import Results
from headway.console.live.findings import is_long, sentence
from headway.console.run import Run
from headway.controller.client import JournalEvent

HOLD_S = 5.0
"""A cause is held back this long for the recovery that it explains, then printed by itself."""
ACTED_ON = frozenset({"crash", "stopped"})
"""Verdicts that the driver answers by replacing a worker."""
OF_VICTIMS = frozenset({"collective_timeout", "peer_lost"})
"""Verdicts about ranks that suffer from what happened to another one, which is not known."""

_LINES = {
    "node_silent": "the executor of node {node} has not reported for {silent_s} s; it is started "
    "again",
    "executor_ended": "the init of node {node} has ended; it is started again",
    "executor_restarted": "the executor of node {node} was started again{because}{effect}",
    "init_restarted": "the init of node {node} has ended and was started again; training was not "
    "interrupted",
    "node_returned": "node {node} is back as a spare",
    "checkpoint_damaged": "checkpoint of rank {rank} is damaged and not used: {reason}",
    "snapshot_damaged": "snapshot of rank {rank} on node {node} is damaged and not used: {reason}",
    "journal_damaged": "the journal was damaged, and a new one is begun: {reason}",
    "draining": "node {node} is draining: a checkpoint, then a spare takes over",
    "eviction_refused": "node {node} stays in the run: {reason}",
    "node_replaced": "node {spare} takes over ranks {ranks} of node {node}",
    "machine_ordered": "another machine is ordered for node {node}: {reason}",
    "machine_delivered": "node {node} has another machine",
    "machine_not_delivered": "node {node} has no other machine: {reason}",
    "machine_not_ordered": "no other machine is ordered for node {node}: {reason}",
    "node_unchecked": "node {node} is used unchecked: {reason}",
    "checks_doubted": "the checks {checks} of machines are doubted: {reason}",
    "adopted": "a new driver took over generation {generation}",
    "verdict": "verdict: {kind} on {where}{line}; {remedy}",
    "spike_rollback": "back to step {step}; its data continue behind the spike",
    "spike_rollback_failed": "no checkpoint to go back to after a spike: {reason}",
    "rollback_failed": "the run was not rolled back to step {step}: {reason}",
    "command": "command {sequence}: {operation} {setting}",
    "run_over": "run {outcome}{because}",
}
"""Journal events that are a line by themselves; others are left to `headway logs`."""

_OF_EXECUTORS = ("node_silent", "executor_ended", "executor_restarted")
"""Not printed during a recovery, which they are a part of."""

_PHRASES = {
    "killed": "was killed",
    "killed by the kernel: out of memory": "was killed by the kernel: out of memory",
    "stopped": "was stopped",
    "crash": "crashed",
    "silence": "hung",
    "evicted": "was evicted",
}
_NODE, _RANK, _VERDICT, _SYMPTOM, _VICTIM = range(5)
"""What names the cause of a recovery, the best first."""


@dataclass(frozen=True)
class _Cause:
    order: int
    subject: str
    """``rank`` or ``node``; empty if ``phrase`` is a whole sentence."""
    number: int
    phrase: str
    event: JournalEvent
    line: str
    """What is printed if no recovery follows."""


@dataclass
class _Recovery:
    begun: JournalEvent
    causes: list[_Cause] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    generation: int = -1
    step: int = -1
    source: str = ""

    def cause(self) -> str:
        """The best that is known, several of the same kind together."""
        best = min((cause.order for cause in self.causes), default=_SYMPTOM)
        groups: dict[tuple[str, str], set[int]] = {}
        for cause in self.causes:
            if cause.order == best:
                groups.setdefault((cause.subject, cause.phrase), set()).add(cause.number)
        parts = [_sentence(*key, sorted(numbers)) for key, numbers in groups.items()]
        return "; ".join([*dict.fromkeys(parts), *self.moves])


class News:
    """The lines of a run's journal after event number ``since``, or after now; each once."""

    @classmethod
    def recent(cls, run: Run, number: int = 500) -> News:
        """From about ``number`` events ago, from a moment when all ranks stepped."""
        until = run.records.newest_event() - number
        return cls(run, since=run.records.newest_event("stepping", until=until))

    def __init__(self, run: Run, *, since: int | None = None) -> None:
        self._run = run
        self._seen = since if since is not None else run.records.newest_event()
        self._journal = run.journal_id
        self._results = Results(run)
        self._held: list[_Cause] = []
        self._recovery: _Recovery | None = None
        self._recovered: dict[tuple[str, int], float] = {}

    def read(self) -> list[tuple[float, str]]:
        """(Unix time, line) of what happened since the last call."""
        lines: list[tuple[float, str]] = []
        if self._journal != self._run.journal_id:
            self._journal, self._seen = self._run.journal_id, 0
        for event in self._run.records.events(self._seen):
            self._seen = event.id
            lines += self._release(event.unix_s)
            try:
                lines += [(event.unix_s, line) for line in self._lines(event)]
            except (KeyError, ValueError, TypeError):  # written by another version
                lines.append((event.unix_s, f"{event.name}: {event.fields}"))
        return lines + self._release(time.time()) + self._results.read()

    def _release(self, now_unix_s: float) -> list[tuple[float, str]]:
        """Causes that no recovery has followed."""
        due = [cause for cause in self._held if now_unix_s - cause.event.unix_s >= HOLD_S]
        self._held = [cause for cause in self._held if cause not in due]
        lines: dict[str, tuple[float, str]] = {}
        for cause in due:
            lines.setdefault(cause.line, (cause.event.unix_s, cause.line))
        return [entry for entry in lines.values() if entry[1]]

    def _lines(self, event: JournalEvent) -> Iterator[str]:
        if (cause := _cause_of(event)) is not None:
            self._take(cause)
        elif event.name == "generation":
            yield from self._begin(event)
        elif event.name == "stepping":
            yield from self._end(event)
        elif event.name == "run_over":
            yield from self._over(event)
        elif event.name == "node_replaced" and self._recovery is not None:
            f = event.fields
            self._recovery.moves.append(f"node {f['spare']} took over from node {f['node']}")
        elif event.name in _OF_EXECUTORS and self._recovery is not None:
            pass
        elif event.name == "verdict" and event.fields.get("finding"):
            is_open = event.fields.get("is_open")
            # that it is over as well
            yield sentence(event.fields) if is_open else str(event.fields["finding"])
        elif event.name in _LINES and event.fields.get("is_open", True):
            if event.name == "adopted":  # what became of a driver that was killed on purpose
                self._held = [c for c in self._held if c.event.fields.get("target") != "driver"]
            yield _line(event)

    def _take(self, cause: _Cause) -> None:
        if cause.event.name == "fence":
            if self._recovery is None:
                self._recovery = _Recovery(cause.event, self._held)
                self._held = []
            if cause.phrase:
                self._recovery.causes.append(cause)
        elif self._recovery is not None:
            self._recovery.causes.append(cause)
        elif cause.order not in (_VERDICT, _VICTIM) or not self._is_late(cause):
            self._held.append(cause)

    def _is_late(self, verdict: _Cause) -> bool:
        """About a rank that the driver had replaced before the monitor noticed."""
        at = self._recovered.get((verdict.subject, verdict.number), float("-inf"))
        return verdict.event.unix_s - at < 2 * HOLD_S

    def _begin(self, event: JournalEvent) -> Iterator[str]:
        step, source = int(event.fields["step"]), str(event.fields["source"])
        if self._recovery is None:
            yield "starting" if source == "init" else f"resuming from step {step} ({source})"
            return
        self._recovery.generation = int(event.fields["generation"])
        self._recovery.step, self._recovery.source = step, source

    def _end(self, event: JournalEvent) -> Iterator[str]:
        recovery, self._recovery = self._recovery, None
        if recovery is None:
            return
        known = [cause.event for cause in recovery.causes] + [recovery.begun]
        first = min(known, key=lambda e: e.monotonic_s)
        back_s = max(0.0, event.monotonic_s - first.monotonic_s)
        self._recovered["", -1] = event.unix_s  # what its victims report late is about it
        for cause in recovery.causes:
            self._recovered[cause.subject, cause.number] = event.unix_s
        where = f" from the checkpoint of step {recovery.step}" * (recovery.source == "durable")
        repeated = self._run.records.repeated(recovery.generation, recovery.step)
        steps = counted(repeated, "step") if repeated else "no step"
        back = "back in the pause" if event.fields.get("paused") else "back"
        yield f"{recovery.cause()}; {back} after {back_s:.1f} s{where}, {steps} repeated"

    def _over(self, event: JournalEvent) -> Iterator[str]:
        recovery, self._recovery, self._held = self._recovery, None, []
        if recovery is not None and event.fields.get("outcome") != "failed":
            yield f"{recovery.cause()}; the run ended before all ranks were back"
        yield _line(event)


def _cause_of(event: JournalEvent) -> _Cause | None:
    """The event as the cause of a recovery; None if it cannot be one."""
    f, name = event.fields, event.name

    def cause(order: int, subject: str, number: int, phrase: str, line: str = "") -> _Cause:
        line = line or _sentence(subject, phrase, [number])
        return _Cause(order, subject, number, phrase, event, line)

    match name:
        case "fence":
            reason = str(f["reason"])
            for subject in ("rank", "node"):
                head, _, what = reason.partition(" is lost: ")
                if what and head.startswith(f"{subject} ") and head.split()[-1].isdigit():
                    order = _NODE if subject == "node" else _RANK
                    return cause(order, subject, int(head.split()[-1]), _phrase(what))
            return cause(_SYMPTOM if f.get("is_symptom") else _RANK, "", -1, reason)
        case "worker_lost" if f["rank"] is not None:
            weak = str(f["reason"]).startswith("did not")  # a survivor that hung because of another
            return cause(_SYMPTOM if weak else _RANK, "rank", int(f["rank"]), _phrase(f["reason"]))
        case "worker_lost":
            line = f"standby worker {f['worker']} {_phrase(f['reason'])}"
            return cause(_SYMPTOM, "", -1, line)
        case "worker_failed":
            return cause(_RANK, "rank", int(f["rank"]), f"failed: {f['reason']}")
        case "node_lost":
            return cause(_NODE, "node", int(f["node"]), _phrase(f["reason"]))
        case "evicted":
            return cause(_NODE, "node", int(f["node"]), _phrase("evicted"))
        case "injected":
            where = f"rank {f['rank']}" if f["target"] == "worker" else f"node {f['node']}"
            line = f"injected: {f['fault']} of {f['target']} ({where})"
            # it says when, not what became of it
            return cause(_SYMPTOM, "", -1, line, line)
        case "verdict" if f.get("is_open", True) and f.get("kind") == "unexplained_hang":
            line = "the ranks hang, and which one causes it is not known; if that lasts, all of "
            return cause(_SYMPTOM, "", -1, "the ranks hung", line + "them start again")
        case "verdict" if f.get("is_open", True) and f.get("kind") == "silence":
            why = f" ({f['why']})" if f.get("why") else ""
            line = (
                f"rank {f['rank']} hangs while the others wait for it{why}; if that lasts, it is "
                "replaced"
            )
            line = sentence(f) if is_long(f) else line
            return cause(_VERDICT, "rank", int(f["rank"]), _phrase("silence"), line)
        case "verdict" if f.get("is_open", True) and f.get("kind") in ACTED_ON:
            return cause(_VERDICT, "rank", int(f["rank"]), _phrase(f["kind"]), _line(event))
        case "verdict" if f.get("is_open", True) and f.get("kind") in OF_VICTIMS:
            said = str(f.get("finding") or f["kind"])
            return cause(_VICTIM, "", -1, said, said)
        case _:
            return None


def _line(event: JournalEvent) -> str:
    f = event.fields
    more: dict[str, str] = {}
    match event.name:
        case "verdict":
            rank = f", rank {f['rank']}" if f["rank"] >= 0 else ""
            more |= {"where": f"node {f['node']}{rank}", "line": _log_line(f)}
        case "command":
            more["setting"] = _setting(f)
        case "executor_restarted":
            more["because"] = f": {f['reason']}" if f["reason"] else ""
            more["effect"] = "; training was not interrupted" * bool(f["is_training"])
        case "run_over":
            more["because"] = f": {f['detail']}" if f["detail"] else ""
    return _LINES[event.name].format(**{**f, **more}).strip()


def _log_line(verdict: dict[str, Any]) -> str:
    """Where a verdict from a log line has it from."""
    if not verdict.get("line"):
        return ""
    file = PurePath(str(verdict["file"])).name
    return f", from {file} ({verdict.get('program') or 'unknown'}): {str(verdict['line'])!r}"


def _setting(command: dict[str, Any]) -> str:
    match command["operation"]:
        case "set":
            return f"{command['name']}={command['value']:g}"
        case "extend":
            return f"to {command['count']} steps"
        case _:
            return str(command["name"])


def _phrase(reason: str) -> str:
    return _PHRASES.get(reason, f"was lost ({reason})")


def _sentence(subject: str, phrase: str, numbers: list[int]) -> str:
    if not subject:
        return phrase
    if len(numbers) == 1:
        return f"{subject} {numbers[0]} {phrase}"
    listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    return f"{subject}s {listed} {phrase.replace('was ', 'were ', 1)}"
