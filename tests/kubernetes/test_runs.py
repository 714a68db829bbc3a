"""``headway run`` on Kubernetes: objects are created, watched and deleted, whatever comes between.

Each test runs against the real API server where it is built, and against a fake of it. Pods are
played in both: the tests write what kubelets and controllers would.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.played import RUNNING, Kubelet, Namespace
from headway.testkit.kubernetes.served import ADMIN, NOBODY, ServedApi

from tests.kubernetes.outside import LIMIT_S, OBJECTS, Console

CONTAINER = {
    "name": "node", "image": "headway:0.1", "imageID": "", "ready": False, "restartCount": 0,
}  # fmt: skip


# ---- a whole run --------------------------------------------------------------------------------
def test_a_run_is_created_watched_in_words_and_deleted_with_nothing_left(
    console: Console, namespace: Namespace, until: Callable[..., None]
) -> None:
    process = console.start(*console.run_words())
    until(lambda: console.everything() == OBJECTS)
    until(lambda: console.says("nodes 0-2: has no pod yet"))
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    no_room["message"] = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    waits = {"reason": "ImagePullBackOff", "message": "Back-off pulling image headway:0.1"}
    pods = [
        namespace.start_pod("tiny", 0, {"phase": "Pending", "conditions": [no_room]}),
        namespace.start_pod(
            "tiny", 1,
            {
                "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [{**CONTAINER, "state": {"waiting": waits}}],
            },
        ),
        namespace.start_pod("tiny", 2),
    ]  # fmt: skip
    until(
        lambda: console.says("node 0: waits for a machine: 0/3 nodes are available: 3 Insufficient")
    )
    until(
        lambda: console.says("node 1: cannot pull its image headway:0.1: Back-off", "node 2: runs")
    )
    for pod in pods[:2]:
        namespace.set_status(pod, {**RUNNING, "containerStatuses": []})
    until(lambda: console.says("3 of 3 pods run; no driver", "nodes 0-2: runs"))

    status = json.loads(console.headway("status", "tiny", "--json"))
    assert (status["state"], status["nodes"]) == ("running", dict.fromkeys("012", "runs"))
    console.headway("evict", "tiny", "1", "--yes")
    until(lambda: pods[1] not in namespace.pods())
    until(lambda: console.says("node 1: has no pod yet"))
    assert "kubectl exec" in console.refused("pause", "tiny")

    namespace.set_status(namespace.start_pod("tiny", 1), {"phase": "Succeeded"})
    namespace.end_job("tiny")
    assert process.wait(LIMIT_S) == 0, console.said()
    assert console.everything() == set()
    assert "run tiny is finished; its checkpoints are on the claim data" in console.said()
    assert "finished" in console.headway("runs")


def test_a_job_that_fails_is_a_run_that_failed(
    console: Console, namespace: Namespace, until: Callable[..., None]
) -> None:
    process = console.start(*console.run_words("--json"))
    until(lambda: console.everything() == OBJECTS)
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    statuses = [{**CONTAINER, "state": {"terminated": ended}}]
    namespace.start_pod("tiny", 0, {"phase": "Failed", "containerStatuses": statuses})
    until(lambda: console.says("failed with exit code 137 (OOMKilled)"))
    namespace.end_job("tiny", "Failed")
    assert process.wait(LIMIT_S) == 1, console.said()
    assert json.loads(console.said().splitlines()[-1])["outcome"] == "failed"
    assert console.everything() == set()


def test_ctrl_c_asks_the_run_to_stop_by_its_lease_and_the_pod_of_its_last_node(
    console: Console, namespace: Namespace, until: Callable[..., None]
) -> None:
    process = console.start(*console.run_words())
    until(lambda: console.everything() == OBJECTS)
    pods = [namespace.start_pod("tiny", index) for index in range(3)]
    until(lambda: console.says("nodes 0-2: runs"))
    process.send_signal(signal.SIGINT)
    until(lambda: pods[2] not in namespace.pods())
    assert set(namespace.pods()) == set(pods[:2]), "one pod passes it on to the driver"
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases/tiny"
    lease = namespace.api.client().json("GET", path)
    assert "headway/stop" in lease["metadata"]["annotations"]
    assert process.poll() is None, "it waits for the Job"
    namespace.end_job("tiny")
    assert process.wait(LIMIT_S) == 0, console.said()
    assert "run tiny is stopped" in console.said() and console.everything() == set()


def test_a_detached_run_is_followed_again_and_stopped_by_force(
    console: Console, namespace: Namespace
) -> None:
    assert "run tiny is up" in console.headway(*console.run_words("--detach"))
    first = console.run_id()
    namespace.start_pod("tiny", 0)
    again = console.headway(*console.run_words("--detach"))
    assert f"run tiny ({first}) is live: following it" in again and console.run_id() == first
    other = console.run_words("--detach", "--set", "train.steps=7")
    assert "is live" in (text := console.refused(*other)) and "another configuration" in text
    assert f"run tiny ({first})" in text and console.everything() > OBJECTS
    done = json.loads(console.headway("stop", "tiny", "--now", "--json").splitlines()[-1])
    assert (done["outcome"], done["ended"], done["left"]) == ("interrupted", 1, [])
    assert console.everything() == set()
    assert "has no objects on Kubernetes" in console.refused("stop", "tiny")


def test_pods_that_do_not_end_are_named_and_a_second_stop_finishes_the_deletion(
    console: Console, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.console.pods import objects

    monkeypatch.setattr(objects, "PODS_LIMIT_S", 0.5)
    console.headway(*console.run_words("--detach"))
    pod, namespace.ends_pods = namespace.start_pod("tiny", 0), False
    error = console.refused("stop", "tiny", "--now", code=1)
    assert "pods have not ended" in error and pod in error and "--force" in error
    assert console.everything() > {"secrets/tiny", "leases/tiny", f"pods/{pod}"}
    namespace.ends_pods = True
    monkeypatch.setattr(objects, "PODS_LIMIT_S", LIMIT_S)
    console.headway("stop", "tiny", "--now")
    assert console.everything() == set()


def test_logs_of_pods_are_those_that_they_print(console: Console, namespace: Namespace) -> None:
    console.headway(*console.run_words("--detach"))
    line = '{"event": "joined", "level": "info", "timestamp": "2026-01-01T00:00:00Z"}\n'
    logs = {namespace.start_pod("tiny", 1): line}
    with contextlib.ExitStack() as stack:
        if isinstance(namespace.api, FakeApi):
            namespace.api.logs.update(logs)
        else:
            stack.enter_context(Kubelet(namespace.api, logs))
        assert "joined" in console.headway("logs", "tiny", "--name", "n1")
    console.headway("stop", "tiny", "--now")


# ---- killed half-way ----------------------------------------------------------------------------
@pytest.mark.parametrize("created", [1, 4, 6])
def test_a_start_that_was_killed_between_two_creates_is_completed_by_the_next(
    console: Console, created: int
) -> None:
    words = console.run_words("--detach")
    killed = console.start(*words, killed=("POST", created))
    assert killed.wait(LIMIT_S) == -signal.SIGKILL, console.said()
    assert len(console.everything()) == created and "secrets/tiny" in console.everything()
    first = console.run_id()
    assert "was begun: creating the rest" in console.headway(*words)
    assert console.everything() == OBJECTS and console.run_id() == first
    console.headway("stop", "tiny", "--now")


def test_what_a_killed_start_left_is_deleted_where_the_configuration_has_changed(
    console: Console,
) -> None:
    assert console.start(*console.run_words(), killed=("POST", 3)).wait(LIMIT_S) < 0
    first = console.run_id()
    said = console.headway(*console.run_words("--detach", "--set", "train.steps=7"))
    assert f"interrupted start of run {first}" in said
    assert console.everything() == OBJECTS and console.run_id() != first
    console.headway("stop", "tiny", "--now")


@pytest.mark.parametrize("deleted", [0, 1, 4])
def test_a_deletion_that_was_killed_is_finished_by_the_next_command(
    console: Console, deleted: int
) -> None:
    console.headway(*console.run_words("--detach"))
    first = console.run_id()
    killed = console.start("stop", "tiny", "--now", killed=("DELETE", deleted))
    assert killed.wait(LIMIT_S) == -signal.SIGKILL, console.said()
    assert len(console.everything()) == len(OBJECTS) - deleted
    if deleted == 1:
        console.headway("stop", "tiny", "--now")
        assert console.everything() == set()
        return
    said = console.headway(*console.run_words("--detach"))
    assert f"deleting what run tiny ({first}), which is over, has left" in said
    assert console.run_id() != first and console.everything() == OBJECTS
    console.headway("stop", "tiny", "--now")


# ---- what is refused ----------------------------------------------------------------------------
def test_a_user_without_rights_is_refused_before_anything_is_created(console: Console) -> None:
    console.use(token=NOBODY)
    error = console.refused(*console.run_words())
    assert "may not create, list, delete jobs" in error and "ask for a Role" in error
    assert console.everything() == set() and not (console.folder / "runs" / "tiny").exists()


def test_a_rejected_token_an_absent_server_and_an_unknown_namespace_are_one_line_each(
    console: Console, namespace: Namespace
) -> None:
    console.use(token="old")
    error = console.refused(*console.run_words(), code=1)
    assert "answers with 401" in error and "was rejected: renew it" in error
    console.use(token=ADMIN, namespace="absent")
    error = console.refused(*console.run_words())
    assert "claim 'data' does not exist in namespace absent" in error
    path = console.folder / "kubeconfig"
    path.write_text(path.read_text().replace(f":{namespace.api.port}", ":9"))
    error = console.refused(*console.run_words(), code=1)
    assert "https://127.0.0.1:9, cannot be used" in error
    assert console.everything() == set() and not (console.folder / "runs" / "tiny").exists()


def test_an_object_of_somebody_else_stays_and_the_start_leaves_nothing(
    console: Console, namespace: Namespace
) -> None:
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    theirs = {"kind": "ServiceAccount", "metadata": {"name": "tiny"}}
    namespace.create(path, "", theirs)
    error = console.refused(*console.run_words())
    assert "ServiceAccount tiny exists" in error and "belongs to somebody else" in error
    assert console.everything() == set() and not (console.folder / "runs" / "tiny").exists()
    assert namespace.api.client().json("GET", f"{path}/tiny")["metadata"]["name"] == "tiny"
    assert "run name 'Tiny'" in console.refused(*console.run_words("--name", "Tiny"))


# ---- only the real one knows --------------------------------------------------------------------
def test_a_client_certificate_proves_the_user_too(
    real_api: ServedApi, real_namespace: Namespace, tmp_path: Path
) -> None:
    console = Console(tmp_path, real_namespace)
    made = real_api.authority.issue(f"me-{real_namespace.name}", "/O=system:masters/CN=me")
    files = dict(zip(("client-certificate", "client-key"), made, strict=True))
    data = {f"{k}-data": base64.b64encode(v.read_bytes()).decode() for k, v in files.items()}
    for user in ({key: str(path) for key, path in files.items()}, data):
        console.use(**user)
        console.headway(*console.run_words("--detach"))
        assert console.everything() == OBJECTS
        console.headway("stop", "tiny", "--now")
        assert console.everything() == set()
