"""What pods and Jobs do, in words, and what becomes of objects that were left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from headway.common.errors import CorruptError
from headway.console.pods import rights, words
from headway.console.pods.kinds import JOB, SECRET, Kind
from headway.console.pods.leftovers import judge
from headway.console.pods.objects import ENDING, Found

ROOT = Path(__file__).resolve().parents[2]
SCHEDULED = [{"type": "PodScheduled", "status": "True"}]


def _pod(name: str = "tiny-1-abcde", **more: Any) -> dict[str, Any]:
    status = more.pop("status", {})
    return {"metadata": {"name": name, **more}, "status": status}


def _container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "node", "image": "h:1", "state": state}]


STATES: dict[str, dict[str, Any]] = {
    "waits for a machine": {"phase": "Pending"},
    "waits for a machine: 0/3 nodes": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3\n nodes"}],
    },
    "is starting": {"phase": "Pending", "conditions": SCHEDULED},
    "cannot pull its image h:1: ErrImagePull": {
        "phase": "Pending",
        "conditions": SCHEDULED,
        "containerStatuses": _container(waiting={"reason": "ErrImagePull"}),
    },
    "waits: CreateContainerConfigError: no secret": {
        "phase": "Pending",
        "conditions": SCHEDULED,
        "containerStatuses": _container(
            waiting={"reason": "CreateContainerConfigError", "message": "no secret"}
        ),
    },
    "runs": {"phase": "Running", "conditions": SCHEDULED},
    "runs, but its machine may be lost": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
    },
    "has ended": {"phase": "Succeeded"},
    "failed with exit code 1": {
        "phase": "Failed",
        "containerStatuses": _container(terminated={"exitCode": 1, "reason": "Error"}),
    },
    "failed: Evicted: low on disk": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "low on disk",
    },
    "is unknown: its machine does not answer": {"phase": "Unknown"},
}


@pytest.mark.parametrize(("expected", "status"), STATES.items(), ids=STATES)
def test_a_pod_in_words(expected: str, status: dict[str, Any]) -> None:
    assert words.of_pod(_pod(status=status)) == expected


def test_a_pod_that_is_asked_to_end_is_ending_until_it_has() -> None:
    marks = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert words.of_pod(_pod(**marks, status={"phase": "Running"})) == "is ending"
    assert words.of_pod(_pod(**marks, status={"phase": "Succeeded"})) == "has ended"
    assert not words.is_up(_pod(**marks, status={"phase": "Running"}))


def test_the_newest_pod_of_a_node_counts() -> None:
    pods = [
        _pod("tiny-0-b", creationTimestamp="2026-01-02T00:00:00Z", status={"phase": "Running"}),
        _pod("tiny-0-a", creationTimestamp="2026-01-01T00:00:00Z", status={"phase": "Failed"}),
        _pod("stranger"),
        _pod("tiny-9-x"),
    ]
    assert words.of_nodes(pods, 2) == {0: "runs", 1: "has no pod yet"}
    indexed = _pod("other", annotations={words.INDEX: "7"})
    assert words.node_of(indexed) == 7


def test_the_state_of_a_job() -> None:
    def job(kind: str, status: str = "True") -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": status}]}}

    assert words.of_job(None) == "absent" and words.of_job({}) == "running"
    assert words.of_job(job("Complete")) == "complete" and words.of_job(job("Failed")) == "failed"
    assert words.of_job(job("Complete", "False")) == "running"


def test_the_role_on_the_page_has_the_rights_that_are_checked_and_no_others() -> None:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
    [text] = re.findall(r"```yaml\n(rules:.*?)```", page, re.DOTALL)
    granted = {
        (verb, group, resource)
        for rule in yaml.safe_load(text)["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == set(rights.needed())


def _found(kind: Kind, run_id: str, **data: Any) -> Found:
    return Found(kind, "tiny", run_id, "uid", {"metadata": {"name": "tiny"}, **data})


def test_what_has_no_secret_or_one_that_is_being_deleted_is_only_a_remnant() -> None:
    marked = {"metadata": {"name": "tiny", "annotations": {ENDING: "true"}}}
    over = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    found = judge(
        [
            _found(JOB, "a"),
            Found(SECRET, "tiny", "b", "uid", marked),
            _found(JOB, "c", **over),
            _found(SECRET, "c"),
        ]
    )
    assert found.earlier is None and found.remains == ("a", "b", "c")


@pytest.mark.parametrize("data", [{}, {"data": {}}, {"data": {"bundle.json": "%"}}])
def test_a_secret_that_does_not_describe_a_run_is_named(data: dict[str, Any]) -> None:
    with pytest.raises(CorruptError, match="Secret tiny is not that of a run") as error:
        judge([_found(SECRET, "a", **data)])
    assert "delete it" in error.value.remedy
