"""Why a process has ended: what its machine or its own last words show about that time.

A finding explains the end of a process if it names its pid or its rank; or, if it names only the
node, if processes end in this way by it: an oom-kill leaves no last words, a lost GPU leaves none
or an error of CUDA. A finding of the node alone is never as certain as one that names the process.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec
from headway.common.wire.messages.health import (
    Evidence,
    EvidenceSource,
    Finding,
    FindingKind,
    Verdict,
    VerdictSubject,
    WorkerSignals,
)
from headway.health.causes import SURE
from headway.health.detectors.episodes import Episodes, Key, fact
from headway.health.error_words import ErrorWords, cause_of_error, words_of
from headway.health.policy import ADVICE, advice
from headway.health.responses import response
from headway.health.rulebook import Rule

BEFORE_S: Final = 60.0
"""A finding this long before the end of a process may be why it ended: a driver retries for a
while before it gives up a GPU."""
AFTER_S: Final = 5.0
"""And this long after it: logs are read later than processes are seen."""
OF_NODE: Final = 0.95
"""How certain a finding about the node is of one of its processes, as a share."""
MAX_KEPT: Final = 64
"""Findings and ends that are kept of a node, the newest."""
MAX_SHOWN: Final = 160
"""Characters of a line that are shown."""

Words = ErrorWords | Literal["none"]

_BY_NODE: Final[Mapping[Words, frozenset[FindingKind]]] = {
    "none": frozenset({"gpu_fault", "out_of_memory", "memory_error", "pcie_error"}),
    "device": frozenset({"gpu_fault", "pcie_error"}),
    "memory": frozenset({"out_of_memory"}),
    "disk": frozenset({"disk_fault", "disk_full"}),
    "others": frozenset({"network_fault"}),
    "program": frozenset(),
}
"""By the last words of a process, what about its node may explain its end."""
_EXPLAINING: Final = frozenset().union(*_BY_NODE.values()) | {"user_error"}
_OF_MACHINE: Final = frozenset({"gpu_fault", "memory_error", "pcie_error", "network_fault"})
"""Kinds that would end the next process there as well."""
_MACHINE_SOURCES: Final = frozenset({"kernel", "gpu", "nic", "net"})
_CERTAINTY: Final[Mapping[Words, float]] = {
    "memory": 0.8, "disk": 0.8, "program": 0.85, "device": 0.6,
}  # fmt: skip
"""Certainty by last words alone, as in ``folder.errors``; ``device`` may be the program's fault."""
_OF_COUNTER: Final = 0.8
"""The counter of a control group does not say which of its processes was killed."""
_PID = re.compile(r"(?:\bpid=|Killed process |\w\[|Sending SIGBUS to [^:\s]{1,64}:)(\d{1,9})\b")


class Same(NamedTuple):
    """A finding that is a sign of another problem and nothing more."""

    sign: Key
    of: Key
    line: str
    """Line of the finding: its problem may have begun with another one."""


@dataclass(slots=True)
class _Seen:
    key: Key
    rule: Rule
    found: Finding
    at_s: float


@dataclass(slots=True)
class _Ended:
    key: Key
    worker: WorkerSignals
    at_s: float
    words: Words
    certainty: float = 0.0
    """Certainty of the best explanation so far."""


class CrashCauses:
    """Follows what has ended lately, and what was found lately, in whichever order they come."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._seen: defaultdict[int, deque[_Seen]] = defaultdict(_kept)
        self._ended: defaultdict[int, deque[_Ended]] = defaultdict(_kept)
        """Both by node."""
        self._same: list[Same] = []

    def on_end(
        self,
        key: Key,
        node: int,
        worker: WorkerSignals,
        pids: Collection[int],
        at_s: float,
        now_s: float,
        *,
        is_out_of_memory: bool = False,
    ) -> list[Verdict]:
        """Explain a process that ended at ``at_s``; ``pids`` are those of the ranks of its node.

        ``is_out_of_memory``: the kernel counted a kill for memory in its control group.
        """
        words: Words = "none" if worker.exit_code is None else words_of(worker.reason)
        known = next((one for one in self._ended[node] if one.key == key), None)
        ended = known or _Ended(key, worker, at_s, words)
        if known is None:
            self._ended[node].append(ended)
        verdicts = self._by_words(ended) if known is None else []
        if is_out_of_memory:
            verdicts += self._by_counter(ended)
        for seen in self._seen[node]:
            if now_s - seen.at_s <= BEFORE_S:
                verdicts += self._by_finding(ended, seen, pids)
        return verdicts

    def on_finding(
        self,
        key: Key,
        node: int,
        rule: Rule,
        found: Finding,
        pids: Collection[int],
        now_s: float,
    ) -> list[Verdict]:
        """Take in a finding, which may explain a process that has ended already."""
        if rule.kind not in _EXPLAINING or rule.confidence < SURE or rule.symptom:
            return []
        seen = _Seen(key, rule, found, now_s - found.age_s)
        self._seen[node].append(seen)
        return [
            verdict
            for ended in self._ended[node]
            if seen.at_s - ended.at_s <= AFTER_S and now_s - ended.at_s <= BEFORE_S
            for verdict in self._by_finding(ended, seen, pids)
        ]

    def take_same(self) -> list[Same]:
        """Findings that are the end of a process and nothing more, each with that end."""
        same, self._same = self._same, []
        return same

    def _by_words(self, ended: _Ended) -> list[Verdict]:
        certainty = _CERTAINTY.get(ended.words, 0.0)
        if not certainty:
            return []
        ended.certainty = certainty
        cause, remedy = cause_of_error(ended.worker.reason)
        is_program = ended.words == "program"
        return self._episodes.amend(
            ended.key,
            cause=cause,
            subject="program" if is_program else "rank",
            alternatives=_otherwise(certainty),
            remedy=remedy,
        )

    def _by_counter(self, ended: _Ended) -> list[Verdict]:
        if ended.certainty >= _OF_COUNTER:
            return []
        ended.certainty = _OF_COUNTER
        cause, remedy = cause_of_error("out of memory")
        return self._episodes.amend(
            ended.key,
            fact("kernel", "oom_kill", "the count of its control group grew as it ended"),
            cause=cause,
            alternatives=_otherwise(_OF_COUNTER),
            remedy=remedy,
        )

    def _by_finding(self, ended: _Ended, seen: _Seen, pids: Collection[int]) -> list[Verdict]:
        share = _share(ended, seen, pids)
        certainty = round(seen.rule.confidence * share, 2)
        known = self._episodes.get(ended.key)
        if certainty <= ended.certainty:
            return []
        ended.certainty = certainty
        rule, found = seen.rule, seen.found
        changes: dict[str, Any] = {
            "cause": rule.known_cause,
            "subject": _subject(rule, found),
            "name": found.name,
            "alternatives": _otherwise(certainty),
            "remedy": advice(rule, found.name, found.detail).remedy,
        }
        if known is not None:
            changes |= _action(known, rule, certainty)
            ago_s = max(0.0, ended.at_s - seen.at_s)
            changes["since_unix_s"] = known.since_unix_s - ago_s
        if rule.kind == "out_of_memory" and share == 1.0:
            self._same.append(Same(seen.key, ended.key, seen.found.line))
        return self._episodes.amend(ended.key, _because(ended, seen), **changes)


def _kept() -> deque[Any]:
    return deque(maxlen=MAX_KEPT)


def _share(ended: _Ended, seen: _Seen, pids: Collection[int]) -> float:
    """How certain it is that a finding is about this process, 0 if it cannot be."""
    rule, found = seen.rule, seen.found
    if found.rank >= 0:
        return float(found.rank == ended.worker.rank)
    named = {int(pid) for pid in _PID.findall(found.line)}
    if ended.worker.pid in named:
        return 1.0
    if not named.isdisjoint(pids) or rule.subject == "peer":
        return 0.0  # of another rank; ``named`` may be pids of another namespace
    is_severe = rule.severity == "error" or rule.kind == "network_fault"
    return OF_NODE if is_severe and rule.kind in _BY_NODE[ended.words] else 0.0


def _action(known: Verdict, rule: Rule, certainty: float) -> dict[str, Any]:
    """The node is replaced if its machine is certainly why the process ended."""
    plain = ADVICE["crash"]
    if known.action == "observe":
        return {}  # its process lives: nothing is to be replaced
    changes: dict[str, Any] = {"action": plain.action, "confidence": plain.confidence}
    is_machine = rule.kind in _OF_MACHINE and rule.source in _MACHINE_SOURCES
    if is_machine and rule.severity == "error" and rule.known_cause != "program_error":
        costly: dict[str, Any] = {"action": "replace_node", "confidence": certainty}
        if response(msgspec.structs.replace(known, **costly)) == "replace_node":  # type: ignore[type-var]
            return costly
    return changes


def _subject(rule: Rule, found: Finding) -> VerdictSubject:
    """A process that reached the limit of its own group is at fault itself, and not the host."""
    if rule.kind == "out_of_memory":
        line = found.line.lower()
        is_own = rule.source != "kernel" or "cgroup out of" in line or "memcg" in line
        return "rank" if is_own else "node"
    if rule.kind == "user_error" or rule.known_cause == "program_error":
        return "program"
    return rule.subject


def _because(ended: _Ended, seen: _Seen) -> Evidence:
    apart_s = ended.at_s - seen.at_s
    when = f"{abs(apart_s):.1f} s {'before' if apart_s >= 0 else 'after'} it was found ended"
    line = seen.found.line.strip()[:MAX_SHOWN]
    source: EvidenceSource = "kernel" if seen.rule.source == "kernel" else "host"
    return fact(source, "because", f"{line} ({when})", seen.found.age_s)


def _otherwise(certainty: float) -> tuple[tuple[str, float], ...]:
    return (("something else", round(1 - certainty, 2)),) if certainty < 1 else ()
