"""The last stage of the monitor's decisions: what is reported of what its detectors have found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headway.common.wire.messages.health import Finding, Verdict
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes
from headway.health.detectors.follow_ups import FollowUps
from headway.health.first_cause import common, victims
from headway.health.first_cause.common import Common
from headway.health.first_cause.crashes import Same
from headway.health.first_cause.outlet import Outlet
from headway.health.first_cause.victims import Victims

_HEADS: Final = (common.KEY, victims.KEY)


class FirstCause:
    """One verdict per fault, in whichever order its signs come."""

    def __init__(self, episodes: Episodes, follow_ups: FollowUps, config: HealthConfig) -> None:
        self._episodes, self._quiet_s = episodes, config.log_quiet_s
        self._outlet = Outlet(episodes, follow_ups)
        self._victims = Victims(episodes, self._outlet)
        self._common = Common(episodes, self._outlet, config)

    def restore(self, now_s: float) -> None:
        """Adopt the open verdicts of an earlier monitor, which were all reported."""
        heads = [key for key in self._episodes.open_keys() if key[0] in _HEADS]
        self._outlet.restore(self._episodes.verdicts(), heads, now_s + self._quiet_s)
        for verdict in self._episodes.verdicts():
            self._victims.note(verdict, now_s)

    def is_reported(self, verdict: Verdict) -> bool:
        """Whether an open verdict is known outside, and not a part of another one."""
        return self._outlet.is_reported(verdict)

    def judge(
        self,
        verdicts: list[Verdict],
        same: list[Same],
        num_nodes: int,
        now_s: float,
    ) -> list[Verdict]:
        """What is reported of the new revisions of one event."""
        merged = [row for one in same for row in self._merge(one, now_s)]
        newest = _newest(verdicts)
        for verdict in newest:
            self._victims.complain(verdict, now_s)
        reported: list[Verdict] = []
        for verdict in newest:
            reported += self._judge(verdict, num_nodes, now_s)
        return _newest(reported + merged + self._victims.settle(now_s))

    def tick(
        self, num_nodes: int, addresses: Callable[[], Mapping[str, int]], now_s: float
    ) -> list[Verdict]:
        """What is reported as time passes."""
        reported = self._common.tick(num_nodes, addresses, now_s)
        for verdict in reported:
            if verdict.is_open:
                self._victims.note(verdict, now_s)
        return _newest([*reported, *self._victims.tick(now_s), *self._outlet.tick(now_s)])

    def symptom(self, node: int, found: Finding, now_s: float) -> list[Verdict] | None:
        """What a line that follows from another error adds to it; None if no other is known."""
        return self._victims.symptom(node, found.line, now_s - found.age_s)

    def _merge(self, same: Same, now_s: float) -> list[Verdict]:
        """Make a sign part of what it is a sign of, with the place of its line in the log."""
        verdict = self._episodes.get(same.sign)
        facts = {row.name: row.value for row in verdict.evidence} if verdict is not None else {}
        if verdict is None or facts.get("line") != same.line:
            return []
        return self._outlet.add(verdict, same.of, "at", facts["at"], now_s)

    def _judge(self, verdict: Verdict, num_nodes: int, now_s: float) -> list[Verdict]:
        if not verdict.is_open:
            last = self._common.close(verdict)
            self._victims.forget(verdict, now_s)
            outlet = self._outlet
            if not last and not any(
                (outlet.is_reported(verdict), outlet.was_reported(verdict), outlet.is_part(verdict))
            ):
                return []
            return [*last, *outlet.close(verdict, now_s)]
        if self._outlet.is_part(verdict):
            return []
        if self._victims.has(verdict, now_s):
            return self._victims.add(verdict, now_s)
        if self._common.takes(verdict, num_nodes):
            return self._common.add(verdict, now_s)
        self._victims.note(verdict, now_s)
        return self._outlet.report(verdict)


def _newest(verdicts: list[Verdict]) -> list[Verdict]:
    """The newest open revision and the newest closed one of each verdict, in order."""
    last = {(verdict.id, verdict.is_open): verdict for verdict in verdicts}
    return [one for one in verdicts if last[one.id, one.is_open] is one]
