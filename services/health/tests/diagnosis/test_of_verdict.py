"""Verdicts in the words of a diagnosis."""

from __future__ import annotations

import json

import pytest
from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.diagnosis.words import lines_of

LINE = {
    "service": "worker", "run_id": "7", "node": 0, "rank": 3, "event": "cannot read a shard",
    "path": "/mnt/a.bin", "level": "error", "timestamp": "2026-11-27T09:00:00Z",
}  # fmt: skip


def verdict_with(line: str, **more: str) -> Verdict:
    return Verdict(
        id="a#1", revision=1, kind="disk_fault", is_open=True, run_id="7", node=0,
        evidence=tuple(
            Evidence(source="log", name=name, value=line) for name in ("line", "first_line")
        ),
        **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (json.dumps(LINE), "cannot read a shard (path /mnt/a.bin)"),
        (json.dumps(LINE)[:60], json.dumps(LINE)[:60]),
        ('{"a": 1}', '{"a": 1}'),
        ("RuntimeError: {'a': 1}", "RuntimeError: {'a': 1}"),
    ],
    ids=["own", "cut", "foreign", "plain"],
)
def test_own_log_lines_are_said_without_their_json(line: str, said: str) -> None:
    found = diagnosis_of(verdict_with(line))
    assert found.summary.endswith(said)
    assert found.why == (f"first line: {said}",)
    assert found.evidence[0].text == f"line: {line}", "evidence is kept as it was"


def test_what_is_only_observed_is_said_to_be_left_alone() -> None:
    observed = diagnosis_of(verdict_with("a line", taken="observe", remedy="repair it"))
    [sure] = [line for line in lines_of([observed]) if line.startswith("sure")]
    assert sure.endswith("; done: nothing")
