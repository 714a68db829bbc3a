"""How a run on Kubernetes has ended, also one that failed or that somebody else has ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

import pytest
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder
from headway.launch.lease.kubernetes_api import MERGE_PATCH
from headway.testkit.kubernetes.played import Namespace

from tests.kubernetes.outside import CPU, LIMIT_S, OBJECTS, TINY, Console

Until = Callable[[Callable[[], object]], None]


def _lead(namespace: Namespace, outcome: str) -> None:
    """What the driver writes last."""
    holder = Holder(1, 0, 1, 1, "tcp://10.0.0.1:1", space="pod", is_over=True, outcome=outcome)
    patch = {"metadata": {"annotations": {"headway/holder": json.dumps(asdict(holder))}}}
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases/tiny"
    namespace.api.client().json("PATCH", path, patch, media=MERGE_PATCH)


@pytest.mark.parametrize(("outcome", "code"), [("failed", 1), ("stopped", 0), ("finished", 0)])
def test_a_complete_job_ends_as_the_driver_has_written_it_into_the_lease(
    console: Console, namespace: Namespace, until: Until, outcome: str, code: int
) -> None:
    process = console.start(*console.run_words())
    until(lambda: console.everything() == OBJECTS)
    _lead(namespace, outcome)
    namespace.end_job("tiny")
    assert process.wait(LIMIT_S) == code, console.said()
    assert console.says(f"run tiny is {outcome}; its checkpoints") and not console.everything()
    assert f"run tiny is {outcome}; it has no Job" in console.headway("status", "tiny")


def test_a_job_that_somebody_has_deleted_is_a_run_that_failed(
    console: Console, namespace: Namespace, until: Until
) -> None:
    process = console.start(*console.run_words())
    until(lambda: console.everything() == OBJECTS)
    path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs/tiny"
    namespace.api.client().json("DELETE", path, {"propagationPolicy": "Background"})
    assert process.wait(LIMIT_S) == 1, console.said()
    assert console.says("run tiny is failed") and not console.everything()


def test_a_run_that_waits_for_machines_is_deleted_by_ctrl_c(console: Console, until: Until) -> None:
    process = console.start(*console.run_words())
    until(lambda: console.everything() == OBJECTS)
    until(lambda: console.says("no pod yet"))
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 0, console.said()
    assert console.says("none of its pods runs; ending it by force", "run tiny is interrupted")
    assert not console.everything()


@pytest.mark.parametrize("by", ["Ctrl-C", "stop"])
def test_a_run_that_does_not_stop_is_ended_by_force(
    console: Console, namespace: Namespace, until: Until, by: str
) -> None:
    """Its pod comes back as often as it is asked to end, so that it always does something."""
    words = console.run_words("--set", "recovery.stop_timeout_s=2")
    process = console.start(*words, *(["--detach"] if by == "stop" else []))
    until(lambda: console.everything() == OBJECTS)
    namespace.start_pod("tiny", 0)
    if by == "stop":
        assert process.wait(LIMIT_S) == 0, console.said()
        assert "it did not stop within 2 s" in console.headway("stop", "tiny", code=3)
    else:
        until(lambda: console.says("node 0: runs"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0, console.said()
        assert console.says("it did not stop within 2 s", "run tiny is interrupted")
    assert not console.everything()


def test_stop_waits_for_the_checkpoint_of_the_pods(
    console: Console, namespace: Namespace, until: Until
) -> None:
    console.headway(*console.run_words("--detach"))
    pods = [namespace.start_pod("tiny", node) for node in range(3)]
    process = console.start("stop", "tiny")
    until(lambda: pods[2] not in namespace.pods())
    assert process.poll() is None
    _lead(namespace, "stopped")
    namespace.end_job("tiny")
    assert process.wait(LIMIT_S) == 0, console.said()
    assert console.says("run tiny is stopped; its checkpoints are on the claim data")
    assert not console.everything()


def test_records_that_only_pods_have_are_not_taken_for_empty_ones(console: Console) -> None:
    console.headway(*console.run_words("--detach"))
    for verb in ("diagnose", "trace"):
        assert "only the pods of run tiny have its records" in console.refused(verb, "tiny")
    console.headway("stop", "tiny", "--now")


def test_watch_shows_the_last_state_of_a_run_that_is_over(
    console: Console, namespace: Namespace
) -> None:
    console.headway(*console.run_words("--detach"))
    namespace.set_status(namespace.start_pod("tiny", 0), {"phase": "Succeeded"})
    namespace.end_job("tiny", "Failed")
    said = console.headway("watch", "tiny", code=1)
    assert "run tiny is failed: its Job" in said and "node 0: has ended" in said
    console.headway("stop", "tiny")


def test_a_killed_start_on_a_cluster_is_known_to_it_and_cleared_by_down(console: Console) -> None:
    console.headway("cluster", "create", "c", "--kubernetes", "kubernetes.toml")
    words = ["run", str(TINY), "--cluster", "c", "--name", "tiny", *CPU, "--detach"]
    assert console.start(*words, killed=("POST", 2)).wait(LIMIT_S) == -signal.SIGKILL
    assert ClusterFolder(console.folder / "c").run_ids() == [console.run_id()]
    clear = ["clear", "kubernetes.toml", "--cluster", "c", "--run", console.run_id()]
    done = subprocess.run(
        [sys.executable, "-m", "headway.console.pods", *clear], cwd=console.folder, check=False
    )
    assert done.returncode == 0 and not console.everything()
