"""Assigns findings of the agents to new or known problems."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import PurePath

from headway.common.wire.messages.health import (
    Evidence,
    EvidenceSource,
    Finding,
    Machine,
    Verdict,
)
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.detectors.repeats import Repeats
from headway.health.first_cause.crashes import CrashCauses
from headway.health.first_cause.stage import FirstCause
from headway.health.policy import advice
from headway.health.rulebook import LINE_SOURCES, Rule, RuleBook

KEY = "finding"
_SERVICE = re.compile(r'"service":\s*"([\w.-]+)"')


class FindingEpisodes:
    """One episode per (rule, node, rank, subject's name); it ends when its findings stop.

    A rule may require several findings within a time before an episode opens. A symptom opens none
    while another problem of the same subject is open.
    """

    def __init__(
        self,
        episodes: Episodes,
        rules: RuleBook,
        config: HealthConfig,
        first_cause: FirstCause,
        crashes: CrashCauses,
    ) -> None:
        self._episodes, self._rules = episodes, rules
        self._first_cause, self._crashes = first_cause, crashes
        self._quiet_s, self._error_s = config.log_quiet_s, config.beat_interval_s
        self._read_up_to: dict[tuple[int, str, int], int] = {}
        """(node, file, inode) -> offset of the newest finding, as agents repeat them. Files of two
        nodes may have one name and one number, where both were made from one image."""
        self._newest_s: dict[Key, float] = {}
        self._counts: dict[Key, int] = {}
        self._repeats = Repeats()

    def restore(self, verdicts: list[Verdict], now_s: float) -> None:
        """Adopt the findings that an earlier monitor reported.

        Its open episodes end after a quiet time.
        """
        for verdict in verdicts:
            for row in verdict.evidence:
                if row.name == "at":
                    file, inode, offset = row.value.rsplit(":", 2)
                    self._note((verdict.node, file, int(inode)), int(offset))
        for key in self._episodes.open_keys():
            if key[0] == KEY:
                self._newest_s[key], self._counts[key] = now_s, 1

    def judge(
        self,
        node: int,
        generation: int,
        findings: tuple[Finding, ...],
        machine: Machine,
        pids: Collection[int],
        now_s: float,
    ) -> list[Verdict]:
        """Verdicts for the new findings of a beat; ``pids`` are those of the ranks of its node.

        Rules of another version are skipped.
        """
        verdicts: list[Verdict] = []
        for found in findings:
            place = (node, found.file, found.inode)
            rule = self._rules.by_name.get(found.rule)
            if rule is None or found.offset <= self._read_up_to.get(place, -1):
                continue
            self._note(place, found.offset)
            verdicts += self._on_new(node, generation, rule, found, machine, now_s)
            key = _key(node, rule, found)
            verdicts += self._crashes.on_finding(key, node, rule, found, pids, now_s)
        return verdicts

    def tick(self, now_s: float) -> list[Verdict]:
        """Close the episodes that have been quiet."""
        closed: list[Verdict] = []
        for key in [key for key, at_s in self._newest_s.items() if now_s - at_s > self._quiet_s]:
            del self._newest_s[key]
            count = self._counts.pop(key)
            value = f"{count} findings, then quiet for {self._quiet_s:.0f} s"
            closed += self._episodes.close(key, fact("log", "ended", value))
        return closed

    def _on_new(
        self,
        node: int,
        generation: int,
        rule: Rule,
        found: Finding,
        machine: Machine,
        now_s: float,
    ) -> list[Verdict]:
        key = _key(node, rule, found)
        if rule.symptom:
            if self._has_other(node, rule, found):
                return []
            if (known := self._first_cause.symptom(node, found, now_s)) is not None:
                return known
        self._repeats.note(key, rule, found.count, now_s)
        if self._repeats.count(key, rule.within_s, now_s) < rule.times:
            return []
        self._newest_s[key] = now_s
        self._counts[key] = self._counts.get(key, 0) + found.count
        report = functools.partial(
            self._episodes.report,
            key,
            cause=rule.known_cause,
            subject="domain" if rule.names_nobody else rule.subject,
            name=found.name,
            node=-1 if rule.names_nobody else node,
            rank=-1 if rule.names_nobody else found.rank,
            generation=generation,
            since=Since(found.age_s, self._error_s),
        )
        again, open_one = rule.repeat, self._episodes.get(key)
        verdicts: list[Verdict] = []
        if again is None or open_one is None or open_one.kind != again.kind:
            plain = advice(rule, found.name, found.detail)
            verdicts = report(rule.kind, _evidence(rule, found, machine), advice=plain)
        if again is not None and self._repeats.is_alone(key, rule, now_s):
            further = advice(rule, found.name, found.detail, is_repeated=True)
            value = f"{again.times} within {again.within_s:.0f} s, and only here"
            why = fact("log", "repeated", value)
            if again.kind is not None:
                verdicts += report(again.kind, (why,), advice=further)
            else:
                verdicts += self._episodes.advise(key, further, why)
        return verdicts

    def _has_other(self, node: int, rule: Rule, found: Finding) -> bool:
        """Whether another problem of the same subject is open."""
        part = _part(found.name)
        return any(
            key[0] == KEY and key[1] != rule.name and key[2] == node and key[4:] == (part,)
            for key in self._newest_s
        )

    def _note(self, place: tuple[int, str, int], offset: int) -> None:
        self._read_up_to[place] = max(self._read_up_to.get(place, -1), offset)


def _key(node: int, rule: Rule, found: Finding) -> Key:
    key: Key = (KEY, found.rule, node, found.rank)
    return (*key, _part(found.name)) if rule.names_device and found.name else key


def program_of(found: Finding) -> str:
    """Which program has printed a line: as a line of JSON says itself, else by its file's name."""
    if said := _SERVICE.search(found.line):
        return said[1]
    stem = re.sub(r"^n\d+-", "", PurePath(found.file).stem)
    return "worker" if re.fullmatch(r"n\d+w\d+", stem) else stem


def _evidence(rule: Rule, found: Finding, machine: Machine) -> tuple[Evidence, ...]:
    """The line with its place and program, or the sentence about a counter; then the hardware."""
    at, ago_s = f"{found.file}:{found.inode}:{found.offset}", found.age_s
    rows = [fact("host", "finding", found.line, ago_s), fact("host", "at", at, ago_s)]
    if found.source in LINE_SOURCES:
        source: EvidenceSource = "kernel" if found.source == "kernel" else "log"
        program = "kernel" if found.source == "kernel" else program_of(found)
        rows = [
            fact(source, "line", found.line, ago_s),
            fact(source, "at", at, ago_s),
            fact(source, "program", program, ago_s),
        ]
        if rule.is_sentence:
            rows.append(fact(source, "finding", found.detail, ago_s))
    if found.source == "kernel" and machine.kernel:
        rows.append(fact("kernel", "release", machine.kernel))
    if hardware := _hardware(found, machine):
        rows.append(fact("host", "hardware", hardware))
    return tuple(rows)


def _hardware(found: Finding, machine: Machine) -> str:
    """What the subject is called by those who exchange it; empty if unknown."""
    known: list[str] = []
    if found.subject == "gpu":
        known = [
            f"GPU {gpu.index} {gpu.name} {gpu.uuid} driver {machine.driver}"
            for gpu in machine.gpus
            if found.name == gpu.pci or (found.uuid and found.uuid == gpu.uuid)
        ] or [found.uuid]
    elif found.subject == "nic":
        known = [
            f"{nic.name} port {nic.port} {nic.link_layer} {nic.rate}, firmware {nic.firmware}"
            for nic in machine.nics
            if found.name.replace(":", "/") == f"{nic.name}/{nic.port}"
        ]
    return " ".join(filter(None, [*known[:1], machine.host_type if any(known) else ""]))


def _part(name: str) -> str:
    """A name as part of a key, whose parts are joined by colons; never a plain number."""
    return "dev-" + re.sub(r"[^\w.-]+", ".", name)
