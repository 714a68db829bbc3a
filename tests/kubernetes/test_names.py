"""One name, several runs: of another context, over, or ended by another command meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.console.pods import objects
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.played import Namespace

from tests.kubernetes.outside import LIMIT_S, OBJECTS, Console


# ---- two servers --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def other_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeApi]:
    with FakeApi(tmp_path_factory.mktemp("other")) as api:
        yield api


def _add_context(console: Console, api: FakeApi, namespace: str) -> None:
    path = console.folder / "kubeconfig"
    found = json.loads(path.read_text())
    cluster = {"server": api.url, "certificate-authority": str(api.authority.certificate)}
    found["clusters"].append({"name": "there", "cluster": cluster})
    context = {"cluster": "there", "user": "me", "namespace": namespace}
    found["contexts"].append({"name": "there", "context": context})
    path.write_text(json.dumps(found))


def _switch(console: Console, context: str) -> None:
    """What ``kubectl config use-context`` does."""
    path = console.folder / "kubeconfig"
    path.write_text(json.dumps({**json.loads(path.read_text()), "current-context": context}))


def test_a_run_is_looked_for_where_it_was_started_whatever_the_current_context_is(
    console: Console, other_api: FakeApi
) -> None:
    with Namespace(other_api) as elsewhere:
        _add_context(console, other_api, elsewhere.name)
        console.headway(*console.run_words("--detach"))
        first = console.run_id()
        _switch(console, "there")
        assert json.loads(console.headway("status", "tiny", "--json"))["state"] == "running"
        assert "is live: following it" in console.headway(*console.run_words("--detach"))
        assert console.run_id() == first and elsewhere.everything() == []

        settings = console.folder / "kubernetes.toml"
        before = settings.read_text()
        settings.write_text(f'{before}context = "there"\n')
        error = console.refused(*console.run_words("--detach"))
        assert f"run tiny ({first}) is in namespace {console.namespace.name} of" in error
        assert console.run_id() == first and console.everything() == OBJECTS
        settings.write_text(before)

        console.headway("stop", "tiny", "--now")
        assert console.everything() == set()
        console.headway(*console.run_words("--detach"))
        assert set(elsewhere.everything()) == OBJECTS, "the next run begins where is meant now"
        console.headway("stop", "tiny", "--now")


# ---- over ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_other", [False, True], ids=["here", "elsewhere"])
def test_the_name_of_a_finished_run_is_refused_after_its_logs_and_outcome_are_kept(
    console: Console, namespace: Namespace, tmp_path: Path, is_other: bool
) -> None:
    console.headway(*console.run_words("--detach"))
    first, pod = console.run_id(), namespace.start_pod("tiny", 1)
    if isinstance(namespace.api, FakeApi):
        namespace.api.logs[pod] = "trained\n"
    namespace.end_job("tiny")
    if is_other:  # a machine that has not started it
        (tmp_path / "other").mkdir()
        console = Console(tmp_path / "other", namespace)
    words = console.run_words("--detach")
    taken = "run name 'tiny' is taken by a finished run; choose another --name"
    assert taken in console.refused(*words) and taken in console.refused(*words)
    assert console.everything() == set() and console.run_id() == first
    assert "finished" in console.headway("runs")
    if isinstance(namespace.api, FakeApi):
        assert [path.read_text() for path in _logs(console)] == ["trained\n"]


def _logs(console: Console) -> list[Path]:
    return list((console.folder / "runs/tiny/logs").iterdir())


def test_a_run_of_the_name_of_a_failed_one_begins_at_step_0_and_keeps_what_that_has_left(
    console: Console, namespace: Namespace
) -> None:
    console.headway(*console.run_words("--detach"))
    first = console.run_id()
    namespace.end_job("tiny", "Failed")
    said = console.headway(*console.run_words("--detach"))
    assert f"run tiny ({first}) is failed" in said
    assert f"begins at step 0: run {first} before it is failed" in said
    assert console.everything() == OBJECTS and console.run_id() != first
    earlier = console.folder / "runs/tiny/earlier" / first
    assert json.loads((earlier / "run.json").read_text())["outcome"] == "failed"
    console.headway("stop", "tiny", "--now")


def test_a_start_that_fails_leaves_the_folder_of_the_run_before_as_it_was(
    console: Console, namespace: Namespace
) -> None:
    console.headway(*console.run_words("--detach"))
    first = console.run_id()
    console.headway("stop", "tiny", "--now")
    theirs = {"kind": "ServiceAccount", "metadata": {"name": "tiny"}}
    namespace.create(f"/api/v1/namespaces/{namespace.name}/serviceaccounts", "", theirs)
    assert "belongs to somebody else" in console.refused(*console.run_words())
    assert console.run_id() == first and "interrupted" in console.headway("runs")
    assert not (console.folder / "runs/tiny/earlier").exists()


# ---- ended while it is started ------------------------------------------------------------------
def test_a_run_that_is_ended_while_it_is_started_leaves_nothing(
    console: Console, until: Callable[..., None]
) -> None:
    start = console.start_held("POST", "/jobs", *console.run_words("--detach"))
    until(lambda: console.waits)
    console.headway("stop", "tiny", "--now")
    assert console.everything() == set()
    console.go_on()
    assert start.wait(LIMIT_S) == 2, console.said()
    assert "was stopped while it was being started; start it again" in console.said()
    assert console.everything() == set() and not (console.folder / "runs/tiny").exists()


def test_what_is_created_after_the_deletion_is_garbage_to_kubernetes(
    console: Console, namespace: Namespace, until: Callable[..., None]
) -> None:
    start = console.start_held("GET", "/secrets/tiny", *console.run_words("--detach"))
    until(lambda: console.waits)
    assert console.everything() == OBJECTS
    start.send_signal(signal.SIGKILL)
    assert start.wait(LIMIT_S) < 0
    namespace.collect_garbage()
    assert console.everything() == OBJECTS, "nothing is garbage while the Secret is there"
    admin = namespace.api.client()
    admin.json("DELETE", f"/api/v1/namespaces/{namespace.name}/secrets/tiny")
    namespace.collect_garbage()
    assert console.everything() == set()


# ---- pages --------------------------------------------------------------------------------------
def test_lists_are_read_to_their_last_page(
    console: Console, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PAGE", 1)
    console.headway(*console.run_words("--detach"))
    for index in range(3):
        namespace.start_pod("tiny", index)
    status = json.loads(console.headway("status", "tiny", "--json"))
    assert status["nodes"] == dict.fromkeys("012", "runs")
    console.headway("stop", "tiny", "--now")
    assert console.everything() == set()


def test_an_object_of_another_name_is_not_taken_for_the_runs_own(
    console: Console, namespace: Namespace
) -> None:
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    namespace.create(path, "", {"kind": "ServiceAccount", "metadata": {"name": "another"}})
    words = console.run_words("--detach")
    assert console.start(*words, killed=("POST", 4)).wait(LIMIT_S) == -signal.SIGKILL
    console.headway(*words)
    assert console.everything() == OBJECTS
    console.headway("stop", "tiny", "--now")
