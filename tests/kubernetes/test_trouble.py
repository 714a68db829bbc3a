"""An API server in trouble, and tokens that change: starts and deletions are carried through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from headway.console.pods import patience
from headway.console.pods.kubeconfig import connect
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.lease.kubernetes_api import ApiError
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.faults import Fault
from headway.testkit.kubernetes.played import Namespace

from tests.kubernetes.outside import LIMIT_S, OBJECTS, Console


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)


@pytest.mark.parametrize("code", [429, 500, 503, 0])
@pytest.mark.parametrize("is_late", [False, True], ids=["undone", "done"])
def test_a_start_and_a_deletion_outlast_some_failures_of_every_kind_of_request(
    fake_console: Console, fake_api: FakeApi, code: int, is_late: bool
) -> None:
    def failing(*requests: str) -> list[Fault]:
        parts = [request.split() for request in requests]
        return [Fault(code, 2, method, part, is_late=is_late) for method, part in parts]

    starting = failing("POST reviews", "POST /secrets", "POST /jobs", "GET /secrets", "GET /jobs")
    ending = failing("PATCH /secrets", "GET /pods", "DELETE /jobs", "DELETE /secrets")
    words = fake_console.run_words("--detach")
    for faults, command in ((starting, words), (ending, ["stop", "tiny", "--now"])):
        with contextlib.ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fake_api.faults.during(fault))
            fake_console.headway(*command)
        assert [fault.num_seen for fault in faults] == [2] * len(faults)
        assert fake_console.everything() == (OBJECTS if faults is starting else set())


def test_a_server_that_fails_for_ever_is_one_error_and_nothing_is_lost(
    fake_console: Console, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.2)
    words = fake_console.run_words("--detach")
    with fake_api.faults.during(Fault(500, method="POST", part="/jobs")) as fault:
        assert "answers with 500: this is a fault" in fake_console.refused(*words, code=1)
    assert fault.num_seen > 2 and fake_console.everything() == set()

    with (
        fake_api.faults.during(Fault(500, method="POST", part="/jobs")),
        fake_api.faults.during(Fault(500, method="DELETE")),
    ):
        assert "answers with 500" in fake_console.refused(*words, code=1)
    first = fake_console.run_id()
    assert fake_console.everything() == OBJECTS - {"jobs/tiny"}
    said = fake_console.headway(*words)
    assert f"deleting what run tiny ({first}), which is over, has left" in said

    with fake_api.faults.during(Fault(500, method="DELETE")):
        assert "answers with 500" in fake_console.refused("stop", "tiny", "--now", code=1)
    assert fake_console.everything() == OBJECTS
    fake_console.headway("stop", "tiny", "--now")
    assert fake_console.everything() == set()


def _config(console: Console) -> KubernetesConfig:
    return KubernetesConfig("i", "c", kubeconfig=str(console.folder / "kubeconfig"))


@pytest.mark.parametrize(("asked", "paused"), [("2", 2.0), ("3600", patience.MOST_ASKED_S)])
def test_a_server_that_is_asked_too_often_says_for_how_long_to_wait(
    fake_console: Console, fake_api: FakeApi, asked: str, paused: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append)
    monkeypatch.setattr(patience, "time", clock)
    api = connect(_config(fake_console)).api
    with fake_api.faults.during(Fault(429, 1, retry_after=asked)):
        if paused > patience.LOOK_PATIENCE_S:
            with pytest.raises(ApiError, match="answers with 429"):
                api.json("GET", "/api/v1/namespaces")
    api.be_patient()
    with fake_api.faults.during(Fault(429, 1, retry_after=asked)):
        api.json("GET", "/api/v1/namespaces")
    assert pauses == [paused]


def test_an_answer_that_no_repetition_changes_is_an_error_at_once(
    fake_console: Console, fake_api: FakeApi
) -> None:
    api = connect(_config(fake_console)).api
    api.be_patient()
    for code in (400, 403, 409, 422):
        with fake_api.faults.during(Fault(code)) as fault, pytest.raises(ApiError):
            api.json("GET", "/api/v1/namespaces")
        assert fault.num_seen == 1


def test_a_log_that_cannot_be_read_holds_no_deletion_up(
    fake_console: Console, fake_api: FakeApi, fake_namespace: Namespace
) -> None:
    fake_console.headway(*fake_console.run_words("--detach"))
    fake_namespace.start_pod("tiny", 0)
    with fake_api.faults.during(Fault(500, part="/log")) as fault:
        assert "cannot be read" in fake_console.headway("stop", "tiny", "--now")
    assert fault.num_seen == 1 and fake_console.everything() == set()


# ---- tokens -------------------------------------------------------------------------------------
def test_a_command_that_runs_for_long_takes_a_renewed_token(
    fake_console: Console, fake_api: FakeApi, fake_namespace: Namespace,
    until: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(fake_api.users, "first", "admin")
    monkeypatch.setitem(fake_api.users, "second", "admin")
    fake_console.use(token="first")
    process = fake_console.start(*fake_console.run_words())
    until(lambda: "nodes 0-2: has no pod yet" in fake_console.said())
    fake_console.use(token="second")
    monkeypatch.delitem(fake_api.users, "first")
    fake_namespace.start_pod("tiny", 0)
    until(lambda: "node 0: runs" in fake_console.said())
    assert "trying again" not in fake_console.said()
    fake_namespace.end_job("tiny")
    assert process.wait(LIMIT_S) == 0, fake_console.said()
    assert fake_console.everything() == set()


def test_a_token_that_stays_rejected_is_an_error_with_a_remedy(
    fake_console: Console, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_api.users, "first", "admin")
    fake_console.use(token="first")
    api = connect(_config(fake_console)).api
    api.json("GET", "/api/v1/namespaces")
    monkeypatch.delitem(fake_api.users, "first")
    for token in ("first", "second"):
        fake_console.use(token=token)
        with pytest.raises(ApiError, match="answers with 401") as error:
            api.json("GET", "/api/v1/namespaces")
        assert "renew it" in error.value.remedy
    (fake_console.folder / "kubeconfig").write_text("a: [")
    with pytest.raises(ApiError, match="answers with 401"):
        api.json("GET", "/api/v1/namespaces")
