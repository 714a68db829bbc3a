"""What the driver journals of a verdict, and that a line of a log alone ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.node.run_dir import RunDir
from headway.common.wire.messages.health import Evidence, Finding, Verdict
from headway.controller.driver.verdict_events import journal_fields, judged
from headway.health.config import HealthConfig
from headway.health.rule_files import shipped
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, lockstep

RUN = RunDir(Path("/r"))


def from_line(rule: str, line: str, file: str = "/r/logs/n0w1.log") -> Verdict:
    """As the monitor gives it."""
    found = Finding(rule=rule, source="rank", file=file, inode=1, offset=30, line=line)
    node = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4))
    (told,) = MonitorState(HealthConfig(), RUN_ID).on_beat(node.beat(1.0, (found,)), 1.0)
    return told


@pytest.mark.parametrize(
    "rule",
    [
        rule.name
        for rule in shipped().rules
        if rule.kind not in ("user_error", "peer_lost", "collective_timeout") and rule.times == 1
    ],
)
def test_a_line_is_observed_whatever_it_says(rule: str) -> None:
    event = judged(from_line(rule, "some line"), RUN, "zygote does not run: exit code 1")
    assert event is not None and event.response == "observe"
    assert event.detail.endswith("; see /r/logs/n0w1.log")


@pytest.mark.parametrize(
    ("trouble", "response"),
    [
        ("", None),
        ("dataloader does not run: exit code 1", None),
        ("zygote does not run: exit code 1", "stop_run"),
    ],
)
def test_a_missing_module_counts_once_its_process_is_known_to_have_ended(
    trouble: str, response: str | None
) -> None:
    line = "ModuleNotFoundError: No module named 'torch'"
    event = judged(from_line("missing_module", line, "/r/logs/n0-zygote.log"), RUN, trouble)
    assert (event.response if event is not None else None) == response
    begun = judged(from_line("missing_module", line), RUN, trouble, has_begun=True)
    assert begun is not None and begun.response == "observe", "the rank that fails reports it"


def test_the_journal_has_the_line_its_file_and_its_program() -> None:
    fields = journal_fields(from_line("read_only_disk", "Input/output error: '/mnt/a'"))
    assert fields["line"] == "Input/output error: '/mnt/a'"
    assert (fields["file"], fields["program"]) == ("/r/logs/n0w1.log", "worker")
    assert fields["is_open"] and fields["id"].startswith("finding:read_only_disk:0:-1#")


@pytest.mark.parametrize(
    ("service", "file"),
    [("dataloader", "/r/logs/n2-dataloader.log"), ("", "/r/verdicts.jsonl")],
)
def test_other_verdicts_point_to_the_file_that_has_more(service: str, file: str) -> None:
    verdict = Verdict(
        id="a#1", revision=0, kind="x", is_open=True, run_id=RUN_ID, node=2,
        subject="service" if service else "rank", name=service,
        evidence=(Evidence(source="flight", name="finding", value="rank 1 computes 3x"),),
    )  # fmt: skip
    event = judged(verdict, RUN, "")
    assert event is not None and event.detail.endswith(f"; see {file}")
    assert journal_fields(verdict)["finding"] == "rank 1 computes 3x"


def test_what_a_hung_rank_does_is_shown_with_it() -> None:
    rows = {"why": "it never began operation 41 of the tp group of rank 0", "where": "a.py:8 read"}
    verdict = Verdict(
        id="silence:1#1", revision=1, kind="silence", is_open=True, run_id=RUN_ID, node=0, rank=1,
        evidence=tuple(Evidence(source="stack", name=n, value=v) for n, v in rows.items()),
    )  # fmt: skip
    event = judged(verdict, RUN, "")
    expected = "it never began operation 41 of the tp group of rank 0; a.py:8 read"
    assert event is not None and event.why == journal_fields(verdict)["why"] == expected
