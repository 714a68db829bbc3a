"""Judges the values of checks against the fleet, or a first machine's against a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headway.health.baseline import Baseline
from headway.health.checks.base import WITHIN_FLEET
from headway.health.judgement import Spread, is_worse
from headway.health.limits import Limit, limit_of
from headway.health.machine import Machine
from headway.health.runner import CheckResult

LEAST_FLEET = 5
"""Other machines of the same type: with fewer, two bad ones would make the median."""

Basis = Literal["fleet", "table", "none"]


@dataclass(frozen=True)
class Judgement:
    """A measured value next to what it should be."""

    check: str
    value: str
    """Name of the value, with its unit."""
    measured: float
    basis: Basis
    """What it was compared with. Without a fleet and a row in the table it is not judged."""
    expected: float | None
    """The fleet's median, or the least value of the table."""
    is_worse: bool
    """Beyond both thresholds; never true for a value that is better than expected."""
    source: str
    """Where the expectation comes from."""

    def __str__(self) -> str:
        expected = "" if self.expected is None else f" {self.expected:.4g}"
        return f"{self.measured:.4g} {self.value} is worse than{expected} ({self.source})"


def judge(
    results: Iterable[CheckResult], machine: Machine, baseline: Baseline, limits: Sequence[Limit]
) -> list[Judgement]:
    """Judge every rate that checks which passed have measured; more is better for all of them."""
    return [
        _judge(result.name, name, value, machine, baseline, limits)
        for result in results
        if result.ok
        for name, value in rates(result).items()
    ]


def rates(result: CheckResult) -> dict[str, float]:
    """The values that machines are compared by."""
    return {
        name: float(value)
        for name, value in result.values.items()
        if name.endswith("/s") and not isinstance(value, str)
    }


def with_judgements(result: CheckResult, judgements: Iterable[Judgement]) -> CheckResult:
    """The result, failed if one of its values is worse than expected."""
    worse = [one for one in judgements if one.check == result.name and one.is_worse]
    if not worse:
        return result
    return replace(
        result,
        ok=False,
        message="; ".join(map(str, worse)),
        remedy="check again while nothing else runs there; then compare it in pairs or drain it",
    )


def _judge(
    check: str,
    name: str,
    measured: float,
    machine: Machine,
    baseline: Baseline,
    limits: Sequence[Limit],
) -> Judgement:
    full_name = f"{check} {name}"
    others = baseline.others(machine, full_name)
    if len(others) >= LEAST_FLEET:
        spread = Spread.of(others)
        worse = is_worse(measured, spread, WITHIN_FLEET)
        source = f"median of {len(others)} machines"
        return Judgement(check, name, measured, "fleet", spread.median, worse, source)
    row = limit_of(limits, machine.host_type, full_name)
    if row is not None:
        worse = measured < row.at_least
        return Judgement(check, name, measured, "table", row.at_least, worse, row.source)
    source = f"{len(others)} other machines, {LEAST_FLEET} are needed; not in the table"
    return Judgement(check, name, measured, "none", None, False, source)
