"""One table says what the driver does about each kind, action and confidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.wire.messages.health import Verdict
from headway.health.client import reason, response
from headway.health.policy import ADVICE, RAISED
from headway.health.responses import RESPONSES
from headway.health.rule_files import shipped
from headway.health.rulebook import Rule

_OBSERVED = ("node_silent", "fabric_split", "slow_rank", "common_fault")
README = Path(__file__).parents[1] / "README.md"


def verdict(kind: str, action: str, confidence: float) -> Verdict:
    return Verdict(
        id="a#1", revision=0, kind=kind, is_open=True, run_id="0badcafe", node=1,
        action=action, confidence=confidence,
    )  # fmt: skip


def test_every_kind_and_action_that_the_monitor_gives_has_its_row_and_no_other() -> None:
    given = {(kind, one.action) for kind, one in ADVICE.items()}
    given |= {(rule.kind, rule.action) for rule in shipped().rules}
    given |= {("crash", RAISED.action)}
    given |= {("crash", "replace_node")}  # of what explains a crash: first_cause/crashes.py
    assert given == {(row.kind, row.action) for row in RESPONSES}
    assert len(given) == len(RESPONSES)


@pytest.mark.parametrize(
    ("kind", "action", "confidence", "expected"),
    [
        ("crash", "replace_worker", 0.99, "replace_worker"),
        ("crash", "replace_node", 0.9, "replace_node"),
        ("crash", "replace_node", 0.89, "observe"),
        ("link_flapping", "replace_node", 0.85, "replace_node"),
        ("link_flapping", "replace_node", 0.7, "observe"),
        ("common_fault", "replace_node", 1.0, "observe"),
        ("stopped", "kill_worker", 0.95, "kill_worker"),
        ("silence", "kill_worker", 0.8, "kill_worker"),
        ("silence", "kill_worker", 0.5, "observe"),
        ("unexplained_hang", "restart_ranks", 0.5, "restart_ranks"),
        ("data_stall", "restart_service", 0.9, "restart_service"),
        ("node_silent", "replace_node", 0.7, "observe"),
        ("gpu_fault", "replace_node", 0.95, "observe"),
        ("disk_fault", "replace_node", 1.0, "observe"),
        ("disk_full", "observe", 0.95, "observe"),
        ("out_of_memory", "stop_run", 0.9, "observe"),
        ("user_error", "stop_run", 0.8, "stop_run"),
        ("nan_loss", "observe", 0.9, "observe"),
        ("a kind of tomorrow", "replace_node", 1.0, "observe"),
    ],
)
def test_what_is_done(kind: str, action: str, confidence: float, expected: str) -> None:
    one = verdict(kind, action, confidence)
    assert response(one) == expected
    assert reason(one)


def test_the_reason_names_the_confidence_that_is_missing() -> None:
    said = reason(verdict("silence", "kill_worker", 0.5))
    assert "0.50" in said and "0.80" in said and "kill_worker" in said


def test_what_the_monitor_advises_at_its_own_confidence_is_done() -> None:
    """But for a node whose agent alone is silent."""
    for kind, one in ADVICE.items():
        done = response(verdict(kind, one.action, one.confidence))
        assert (done == "observe") == (kind in _OBSERVED)


@pytest.mark.parametrize("rule", shipped().rules, ids=lambda rule: str(rule.name))
def test_no_line_of_a_log_ends_a_rank_or_a_node(rule: Rule) -> None:
    """Whatever action is advised, also by a monitor of another version, and however certain."""
    for action in ("replace_node", "replace_worker", "kill_worker", rule.action):
        done = response(verdict(rule.kind, action, 1.0))
        assert done == "observe" or (rule.kind, done) == ("user_error", "stop_run")


def test_the_readme_shows_the_table() -> None:
    lines = README.read_text().splitlines()
    start = lines.index("| kind | action | from | because |")
    shown = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        shown.append(tuple(cell.strip().strip("`") for cell in line.strip("|").split("|")))
    assert shown == [
        (row.kind, row.action, f"{row.min_confidence:.1f}", row.why) for row in RESPONSES
    ]
