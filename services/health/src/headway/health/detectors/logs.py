"""Assigns matched log lines to new or known problems."""

from __future__ import annotations

import re
from pathlib import PurePath

from headway.common.wire.messages.health import LogHit, Verdict
from headway.health.detectors.episodes import Episodes, Key, fact
from headway.health.log_rules import RULES_BY_NAME
from headway.health.policy import advice

_SERVICE = re.compile(r'"service":\s*"([\w.-]+)"')


class LogEpisodes:
    """One episode per (rule, node, rank, device in the line); it ends when its lines stop."""

    def __init__(self, episodes: Episodes, quiet_s: float) -> None:
        self._episodes, self._quiet_s = episodes, quiet_s
        self._read_up_to: dict[tuple[str, int], int] = {}
        """(file, inode) -> offset of the newest line seen; agents repeat lines, and two
        may follow one file."""
        self._heard_s: dict[Key, float] = {}
        self._counts: dict[Key, int] = {}

    def restore(self, verdicts: list[Verdict], now_s: float) -> None:
        """Adopt the lines that an earlier monitor reported.

        Its open episodes end after a quiet time.
        """
        for verdict in verdicts:
            for row in verdict.evidence:
                if row.source == "log" and row.name == "at":
                    file, inode, offset = row.value.rsplit(":", 2)
                    self._note((file, int(inode)), int(offset))
        for key in self._episodes.open_keys():
            if key[0] == "log":
                self._heard_s[key], self._counts[key] = now_s, 1

    def judge(
        self, node: int, generation: int, hits: tuple[LogHit, ...], now_s: float
    ) -> list[Verdict]:
        """Verdicts for new lines of a beat. Rules of another version are skipped."""
        verdicts: list[Verdict] = []
        for hit in hits:
            place = (hit.file, hit.inode)
            rule = RULES_BY_NAME.get(hit.rule)
            if rule is None or hit.offset <= self._read_up_to.get(place, -1):
                continue
            self._note(place, hit.offset)
            key: Key = ("log", hit.rule, node, hit.rank)
            detail = hit.detail
            if rule.names_device and detail:
                key = (*key, _part(detail))
            self._heard_s[key] = now_s
            self._counts[key] = self._counts.get(key, 0) + 1
            rows = (
                fact("log", "line", hit.line),
                fact("log", "at", f"{hit.file}:{hit.inode}:{hit.offset}"),
                fact("log", "program", program_of(hit)),
            )
            verdicts += self._episodes.report(
                key,
                rule.kind,
                rows,
                advice=advice(rule, detail),
                node=node,
                rank=hit.rank,
                generation=generation,
            )
        return verdicts

    def tick(self, now_s: float) -> list[Verdict]:
        """Close the episodes that have been quiet."""
        closed: list[Verdict] = []
        for key in [
            key for key, heard_s in self._heard_s.items() if now_s - heard_s > self._quiet_s
        ]:
            del self._heard_s[key]
            num_lines = self._counts.pop(key)
            value = f"{num_lines} lines, then quiet for {self._quiet_s:.0f} s"
            closed += self._episodes.close(key, fact("log", "ended", value))
        return closed

    def _note(self, place: tuple[str, int], offset: int) -> None:
        self._read_up_to[place] = max(self._read_up_to.get(place, -1), offset)


def program_of(hit: LogHit) -> str:
    """Which program has printed a line: as a line of JSON says itself, else by its file's name."""
    if said := _SERVICE.search(hit.line):
        return said[1]
    stem = re.sub(r"^n\d+-", "", PurePath(hit.file).stem)
    return "worker" if re.fullmatch(r"n\d+w\d+", stem) else stem


def _part(detail: str) -> str:
    """A device as part of a key, whose parts are joined by colons; never a plain number."""
    return "dev-" + re.sub(r"[^\w.-]+", ".", detail)
