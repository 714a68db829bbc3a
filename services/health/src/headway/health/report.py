"""The document that ``headway health check --json`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headway.health.baseline import Baseline
from headway.health.judging import Judgement, judge, rates, with_judgements
from headway.health.limits import shipped_limits
from headway.health.machine import Machine
from headway.health.runner import CheckResult

SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """What the checks of one machine have found."""

    schema: int
    suite: str
    is_healthy: bool
    """No check has failed; those that were not run count as neither."""
    machine: Machine
    results: Sequence[CheckResult]
    judgements: Sequence[Judgement]

    @property
    def values(self) -> dict[str, float]:
        """What a baseline keeps: ``CHECK VALUE`` -> rate."""
        return {
            f"{result.name} {name}": value
            for result in self.results
            for name, value in rates(result).items()
        }


class Judge:
    """Judges results one by one, as soon as each is there."""

    def __init__(self, machine: Machine, baseline: Baseline) -> None:
        self.judgements: list[Judgement] = []
        self.results: list[CheckResult] = []
        self._machine, self._baseline = machine, baseline

    def each(self, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
        """Yield each result, failed if one of its values is worse than expected."""
        for result in results:
            found = judge([result], self._machine, self._baseline, shipped_limits())
            self.judgements += found
            self.results.append(with_judgements(result, found))
            yield self.results[-1]

    def report(self, suite: str) -> Report:
        """All that was judged so far."""
        is_healthy = not any(result.failed for result in self.results)
        return Report(SCHEMA, suite, is_healthy, self._machine, self.results, self.judgements)


def summary(report: Report) -> str:
    """One line on what the values were compared with."""
    counts = Counter(one.basis for one in report.judgements)
    return (
        f"{report.machine.hostname}, {report.machine.host_type}: {counts['fleet']} values judged "
        f"by the fleet, {counts['table']} by the table, {counts['none']} not judged"
    )
