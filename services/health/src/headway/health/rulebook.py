"""Rules: which lines and counters indicate a problem, its kind, and what a person should do.

The first rule of a source that matches a line wins, a run's own rules before those of
``headway.health.rules``. A line is what some program has printed, at some time, about some machine:
it never ends a worker, a node or a run, and every rule's action is ``observe``. The one exception
is a missing module, on which a process that has ended ends the run's start (see ``responses``).
A rule whose line only shows that somebody *else* failed has a low confidence: a rank that reports
"closed by peer" is a victim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec
from headway.common.wire.messages.health import (
    Cause,
    FindingKind,
    FindingSource,
    FindingSubject,
    VerdictAction,
)
from headway.health.causes import cause_of
from headway.health.own_patterns import OwnPattern

Severity = Literal["info", "warning", "error"]
LINE_SOURCES: Final = ("kernel", "nccl", "rank", "service")
"""Sources that are lines of text, which rules search by patterns."""
_EACH: Final = ("gpu", "nic", "mount", "peer")
"""Subjects of which a node has several."""
_PCI_ADDRESS: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?"
_WORDS: Final = {"%PCI%": rf"(?:PCI:)?(?P<name>{_PCI_ADDRESS})", "%PCI_ADDRESS%": _PCI_ADDRESS}
"""What a pattern may use for the address of a PCI device, which becomes the subject's name."""


class Repeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is advised once one subject repeats a finding and no other of the run does."""

    times: int
    within_s: float
    remedy: str
    kind: Literal["link_flapping"] | None = None
    """What it is then, if more than the rule's own kind. Never of a line of a log."""
    confidence: float | None = None
    """Then, if another one than the rule's own."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[rule]]`` of a file. A group ``name`` of its patterns names the subject."""

    name: str
    source: FindingSource
    kind: FindingKind
    subject: FindingSubject
    remedy: str
    """What a person should do, as one sentence."""
    confidence: float
    """0..1."""
    cause: Cause | None = None
    """Where it says more than the kind."""
    severity: Severity = "warning"
    action: VerdictAction = "observe"
    contains: tuple[str, ...] = ()
    """Lower-case texts of which a line must have one, tried before the patterns since that is
    cheap; without any, every line is searched."""
    pattern: str = ""
    patterns: tuple[str, ...] = ()
    """Regular expressions of Python, without regard to case; their groups become the detail."""
    times: int = 1
    """How many there must be within ``within_s`` for a verdict."""
    within_s: float = 0.0
    repeat: Repeat | None = None
    is_sentence: bool = False
    """Its detail is a sentence for people, shown while the verdict is open."""
    names_nobody: bool = False
    """Its line does not show which rank or node it is about, whichever has printed it."""
    symptom: bool = False
    """It follows another error of the same subject, and is not a verdict of its own then."""
    bad: tuple[str, ...] = ()
    """Lines that this rule must match."""
    good: tuple[str, ...] = ()
    """Lines that no rule of this source may match."""

    @property
    def known_cause(self) -> Cause:
        """Its own cause, else that of its kind."""
        return self.cause or cause_of(self.kind, self.subject)

    @property
    def names_device(self) -> bool:
        """Whether each subject of it has a verdict of its own."""
        return self.subject in _EACH or "(?P<name>" in "".join(self.expressions)

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its regular expressions, with the words for a PCI address replaced."""
        found = []
        for text in (*self.patterns, *filter(None, [self.pattern])):
            for word, meaning in _WORDS.items():
                text = text.replace(word, meaning)
            found.append(text)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Match:
    """The rule that a line has matched, the subject that it names, and the other captures."""

    rule: Rule
    name: str
    detail: str


class Pattern(Protocol):
    """What searches a line; ``re.Pattern`` is one."""

    def search(self, line: str, /) -> Any: ...


class RuleBook:
    """Rules by source, in the order in which they are tried."""

    def __init__(self, rules: Sequence[Rule], num_own: int = 0) -> None:
        """``num_own`` of them, the first ones, were written by a user."""
        self.rules = tuple(rules)
        self.by_name = {rule.name: rule for rule in self.rules}
        self._compiled: dict[str, list[tuple[Rule, Sequence[Pattern]]]] = {}
        self._own: list[OwnPattern] = []
        for rule in self.rules[:num_own]:
            made = [OwnPattern(rule.name, text) for text in rule.expressions]
            self._own += made
            self._compiled.setdefault(rule.source, []).append((rule, made))
        for rule in self.rules[num_own:]:
            patterns = [re.compile(text, re.IGNORECASE) for text in rule.expressions]
            self._compiled.setdefault(rule.source, []).append((rule, patterns))

    def turned_off(self) -> list[str]:
        """Why own rules are not searched for any more, each returned once."""
        found = [pattern for pattern in self._own if pattern.refused]
        for pattern in found:
            self._own.remove(pattern)
        return [pattern.refused for pattern in found]

    def match(self, line: str, sources: Iterable[str]) -> Match | None:
        """The first rule that matches a line, source by source; None if there is none."""
        lowered = line.lower()
        for source in sources:
            for rule, patterns in self._compiled.get(source, ()):
                if rule.contains and not any(text in lowered for text in rule.contains):
                    continue
                for pattern in patterns:
                    if found := pattern.search(line):
                        return _matched(rule, found)
        return None


def _matched(rule: Rule, found: Any) -> Match:
    groups = found.groupdict()
    name = groups.get("name") or ""
    index = found.re.groupindex.get("name")
    others = [text for at, text in enumerate(found.groups(), 1) if text and at != index]
    return Match(rule, _subject(name), " ".join(others))


def _subject(name: str) -> str:
    """A subject's name in the one form that all sources use: a port is ``mlx5_3/1``."""
    return re.sub(r"^(\w+):(\d+)$", r"\1/\2", pci_address(name))


def pci_address(text: str) -> str:
    """A PCI address in one form, ``0000:3b:00.0``; any other text as it is.

    The driver's log leaves out the function, and NVML gives the domain eight digits.
    """
    found = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", text, 2)
    if found is None:
        return text
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}".lower()
