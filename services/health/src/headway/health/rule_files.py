"""Reads rules from TOML and checks them: those of ``headway.health.rules``, and a run's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
from headway.common.errors import ConfigError
from headway.common.log import get_logger
from headway.health.detectors.repeats import MOST
from headway.health.own_patterns import unfit
from headway.health.rulebook import LINE_SOURCES, Rule, RuleBook
from headway.health.xids import xid_rules

_SHIPPED: Final = ("kernel.toml", "nccl.toml", "rank.toml", "service.toml", "machine.toml")

_log = get_logger("rules")


@functools.cache
def shipped() -> RuleBook:
    """The rules that come with Headway."""
    rules: list[Rule] = []
    for name in _SHIPPED:
        rules += _read(_shipped_text(name), f"headway.health.rules/{name}")
        if name == "kernel.toml":
            rules += xid_rules(_shipped_text("xids.toml"))
    return RuleBook(rules)


def with_own(files: Sequence[Path]) -> RuleBook:
    """The shipped rules behind a run's own.

    Raises:
        ConfigError: a file cannot be read, or a rule in it is not valid; it names file, rule and
            value.
    """
    own: list[Rule] = []
    for file in files:
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the rules in {file} cannot be read: {error}", remedy="check [health] rules"
            ) from error
        own += _read(text, str(file))
        for rule in own:
            _check_own(rule, str(file))
    names = [rule.name for rule in (*own, *shipped().rules)]
    for rule in own:
        if names.count(rule.name) > 1:
            raise ConfigError(
                f"the name of rule {rule.name!r} is taken", remedy="give the rule another name"
            )
    book = RuleBook([*own, *shipped().rules], len(own))
    for rule in own:
        _check_samples(rule, RuleBook([rule], 1))
    return book


def _check_samples(rule: Rule, alone: RuleBook) -> None:
    for is_wanted, field, lines in ((True, "bad", rule.bad), (False, "good", rule.good)):
        for line in lines:
            if (alone.match(line, [rule.source]) is not None) != is_wanted:
                verb = "does not match" if is_wanted else "matches"
                raise ConfigError(
                    f"rule {rule.name!r} {verb} its line in {field!r}: {line}",
                    remedy="correct the pattern or the line",
                )


def rules_of(files: Sequence[str]) -> tuple[RuleBook, str]:
    """The rules of a run, for a daemon that must run whatever is in its files.

    If they are not valid, those that come with Headway are used alone, and the second value says
    why.
    """
    try:
        return with_own([Path(name) for name in files]), ""
    except ConfigError as error:
        _log.error(
            "custom rules rejected, using the built-in ones",
            reason=error.message,
            remedy=error.remedy,
        )
        return shipped(), f"{error.message}; {error.remedy}"


def _check_own(rule: Rule, file: str) -> None:
    """What is asked of a run's rule: it is about lines, and only observes."""
    if rule.source not in LINE_SOURCES:
        _refuse(file, rule.name, "source", rule.source, f"one of {', '.join(LINE_SOURCES)}")
    if not rule.expressions:
        _refuse(file, rule.name, "pattern", "", "a regular expression")
    for text in rule.expressions:
        if reason := unfit(text):
            message = f"{file}: rule {rule.name!r} has the pattern {text}: {reason}"
            raise ConfigError(message, remedy="write this regular expression differently")
    if rule.action != "observe":
        _refuse(file, rule.name, "action", rule.action, "observe: a line ends nothing")
    if rule.repeat is not None and rule.repeat.kind is not None:
        _refuse(file, rule.name, "repeat.kind", rule.repeat.kind, "none: a line ends nothing")


def _refuse(file: str, rule: str, field: str, value: object, wanted: str) -> None:
    message = f"{file}: rule {rule!r} has {field} = {value!r}"
    raise ConfigError(message, remedy=f"give {wanted}")


def _read(text: str, file: str) -> list[Rule]:
    """The rules of a file, each of them checked.

    Raises:
        ConfigError: naming file, rule and value.
    """
    try:
        document = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        message = f"{file} is not valid TOML: {error}"
        raise ConfigError(message, remedy="fix the line named above") from error
    entries = document.get("rule", [])
    if set(document) - {"rule"} or not isinstance(entries, list):
        unknown = ", ".join(sorted(set(document) - {"rule"})) or "rule"
        message = f"{file}: unknown key {unknown}"
        raise ConfigError(message, remedy="write each rule as [[rule]] with keys below")
    return [_rule(entry, file) for entry in entries]


def _rule(entry: object, file: str) -> Rule:
    name = entry.get("name", "without a name") if isinstance(entry, dict) else str(entry)
    try:
        rule = msgspec.convert(entry, Rule)
    except msgspec.ValidationError as error:
        message = f"{file}: rule {name!r}: {error}"
        raise ConfigError(message, remedy="see the rules in services/health/README.md") from error
    if not re.fullmatch(r"[a-z][a-z0-9_]*", rule.name):
        _refuse(file, rule.name, "name", rule.name, "a name of a to z, 0 to 9 and _")
    if not 0 <= rule.confidence <= 1:
        _refuse(file, rule.name, "confidence", rule.confidence, "a number from 0 to 1")
    then = rule.repeat.confidence if rule.repeat is not None else None
    if then is not None and not 0 <= then <= 1:
        _refuse(file, rule.name, "repeat.confidence", then, "a number from 0 to 1")
    _check_times(file, rule)
    for text in rule.expressions:
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            message = f"{file}: rule {rule.name!r} has the pattern {text}: {error}"
            raise ConfigError(message, remedy="fix this regular expression") from error
    contains = tuple(text.lower() for text in rule.contains)
    return msgspec.structs.replace(rule, contains=contains)


def _check_times(file: str, rule: Rule) -> None:
    wanted = f"a count from 1 to {MOST}, and a time above 0 for it"
    if not 1 <= rule.times <= MOST or (rule.times > 1 and not rule.within_s > 0):
        _refuse(file, rule.name, "times", f"{rule.times} within {rule.within_s} s", wanted)
    if (again := rule.repeat) and not (1 <= again.times <= MOST and again.within_s > 0):
        _refuse(file, rule.name, "repeat", f"{again.times} within {again.within_s} s", wanted)


def _shipped_text(name: str) -> str:
    return resources.files("headway.health").joinpath("rules", name).read_text("utf-8")
